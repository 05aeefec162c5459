/* The streams that memory is allocated or freed on, and what the pool calls them.
 *
 * A stream is known by its handle until it is destroyed: the same handle is then another stream.
 * The per-thread default stream is one in each thread and context. */
#ifndef CA_SHIM_CUDA_STREAMS_H
#define CA_SHIM_CUDA_STREAMS_H

#include <stdbool.h>
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"

/* The context that `stream` (NULL: the legacy one) belongs to, and the pool's stream for it. An
 * error is the driver's about the handle, or about a default stream in a thread that has no context
 * (cuda.h, cuMemFreeAsync). With success: no context where the driver has to serve
 * it, and, without `ask`, which makes no driver call but cuCtxGetCurrent, where it was not met
 * before. No stream where memory is served and freed behind all work, which is right for every
 * stream: the default ones of green contexts. */
CUresult ca_streams_find(CUstream stream, bool ask, ca_context_t **context, ca_stream_t **found);

/* The same, with `ask`, for a caller that has looked up the current context: `context` is its entry
 * on entry, as ca_context_current returns it. */
CUresult ca_streams_find_in(CUcontext current, CUstream stream, ca_context_t **context,
                            ca_stream_t **found);

/* The pool's stream, of a context that is about to end too; NULL where it was not met before. Makes
 * no driver call but cuCtxGetCurrent. */
ca_stream_t *ca_streams_known(CUstream stream);

/* The pool's stream that pooled memory of `context` was allocated on, by its record. NULL where
 * that was destroyed, or where it is not known. */
ca_stream_t *ca_streams_of(const ca_allocation_t *record, ca_context_t *context);

/* The entry of the context that a stream is of, served or not: of the current one for the default
 * streams, and where nothing is known. May be NULL. */
ca_context_t *ca_streams_context(CUstream stream);

/* Around cuStreamDestroy: before the call. */
void ca_streams_destroyed(CUstream stream);

/* All streams that were made in `owner`, NULL or a green context, may have ended after this. */
void ca_streams_forget(CUcontext owner);

/* Memory that had been served before was served again in the order of the stream; and whether any
 * was, on any stream. */
void ca_streams_reused(ca_stream_t *stream);
bool ca_streams_any_reused(void);

/* In a per-thread twin the null stream is the thread's own. */
static inline CUstream ca_stream_per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

void ca_known_streams_reset_after_fork(void);

#endif
