/* The fences of the pool's upstream on CUDA. A fence is a chain of events, one for each context
 * whose work may touch the memory (cuCtxRecordEvent), or one behind a stream. The functions keep
 * the contracts of those in the table of pool/upstream.h: results are 0, 1 or a negative errno,
 * times nanoseconds, and a fence belongs to the caller until it is released. `context` is a
 * ca_context_t. From any thread, with no lock held. */
#ifndef CA_SHIM_UPSTREAM_FENCES_H
#define CA_SHIM_UPSTREAM_FENCES_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/cuda/contexts.h"

/* Records behind all work on device memory of the context, with `all` of every context that may
 * have freed it on one of its streams; `_host`: on host memory, which any context may use. */
int ca_fence_record(void *context, bool all, void **fence);
int ca_fence_record_host(void *context, bool all, void **fence);
int ca_fence_record_on(void *context, void *queue, void **fence);
int ca_fence_join(void *context, void *queue, void *fence);
int ca_fence_query(void *context, void *fence);
int ca_fence_wait(void *context, void *fence, uint64_t nanoseconds);
void ca_fence_release(void *context, void *fence);

/* Whether all work of the context alone is done. */
bool ca_fence_own_idle(ca_context_t *context);

/* Prepares an entry for its first context. */
void ca_fences_prepare(ca_context_t *context);

/* Whether any fence has an event of the context. */
bool ca_fences_held(const ca_context_t *context);

/* The context was destroyed, and its events with it: none is reused. */
void ca_fences_forget(ca_context_t *context);

/* Without a fence, waits for the work that one would cover. For the context's own work without
 * bound, as the plain free does; for others' that may use the memory a second at most, since it may
 * be waiting for this very thread: then the answer is -EAGAIN. With `all` for as long as it takes.
 */
int ca_fence_synchronize(void *context, bool all);
int ca_fence_synchronize_host(void *context, bool all);

void ca_fences_reset_after_fork(void);

#endif
