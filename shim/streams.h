/* The streams that memory is allocated or freed on, and what the pool calls them.
 *
 * A stream is known by its handle until it is destroyed: the same handle is then another stream.
 * The legacy stream is one in each context, the per-thread default stream one in each thread and
 * context. */
#ifndef CA_SHIM_STREAMS_H
#define CA_SHIM_STREAMS_H

#include <stdbool.h>
#include "shim/contexts.h"

/* The pool's stream for `stream` (NULL: the legacy one), and the context it belongs to. An error is
 * the driver's about the handle. NULL with success: the driver has to serve it; without `ask`,
 * which makes no driver call but cuCtxGetCurrent, also when it was not met before. */
CUresult ca_streams_find(CUstream stream, bool ask, ca_context_t **context, ca_stream_t **found);

/* Around cuStreamDestroy: before the call. */
void ca_streams_destroyed(CUstream stream);

/* All streams of the context that we know may be gone after this. */
void ca_streams_forget(const ca_context_t *context);

/* In a per-thread twin the null stream is the thread's own. */
static inline CUstream ca_stream_per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

void ca_known_streams_reset_after_fork(void);

#endif
