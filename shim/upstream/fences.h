/* The fences of the pool's upstream on CUDA. A fence is a chain of events, one for each context
 * whose work may touch the memory (cuCtxRecordEvent), or one behind a stream. The functions are as
 * pool/upstream.h says of those in its table; `context` is a ca_context_t. */
#ifndef CA_SHIM_UPSTREAM_FENCES_H
#define CA_SHIM_UPSTREAM_FENCES_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/cuda/contexts.h"

/* Behind all work on device memory of the context, with `all` of every context that may have freed
 * it on one of its streams; `_host`: on host memory, which any context may be at. */
int ca_fence_record(void *context, bool all, void **fence);
int ca_fence_record_host(void *context, bool all, void **fence);
int ca_fence_record_on(void *context, void *queue, void **fence);
int ca_fence_join(void *context, void *queue, void *fence);
int ca_fence_query(void *context, void *fence);
int ca_fence_wait(void *context, void *fence, uint64_t nanoseconds);
void ca_fence_release(void *context, void *fence);

/* Whether all work of the context alone is done. */
bool ca_fence_own_idle(ca_context_t *context);

/* For an entry's first context. */
void ca_fences_prepare(ca_context_t *context);

/* Whether somebody has a fence with an event of the context. */
bool ca_fences_held(const ca_context_t *context);

/* The context is gone, and its events with it: none is kept. */
void ca_fences_forget(ca_context_t *context);

/* Waits for the same work as a fence would, where there is none. For the context's own work without
 * bound, as the plain free does; for others' that may be at the memory a second at most, as it may
 * be waiting for this very thread: then the answer is -EAGAIN. With `all` for as long as it takes.
 */
int ca_fence_synchronize(void *context, bool all);
int ca_fence_synchronize_host(void *context, bool all);

void ca_fences_reset_after_fork(void);

#endif
