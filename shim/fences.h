/* The fences of the pool's upstream on CUDA. A fence is a chain of events, one for each context
 * whose work may touch the memory (cuCtxRecordEvent), or one behind a stream. The functions are as
 * pool/upstream.h says of those in its table; `context` is a ca_context_t. */
#ifndef CA_SHIM_FENCES_H
#define CA_SHIM_FENCES_H

#include <stdbool.h>
#include <stdint.h>
#include "shim/contexts.h"

/* Behind all work on device memory of the context; `_host`: on host memory, which more reach. */
int ca_fence_record(void *context, void **fence);
int ca_fence_record_host(void *context, void **fence);
int ca_fence_record_on(void *context, void *queue, void **fence);
int ca_fence_join(void *context, void *queue, void *fence);
int ca_fence_query(void *context, void *fence);
int ca_fence_wait(void *context, void *fence, uint64_t nanoseconds);
void ca_fence_release(void *context, void *fence);

/* For an entry's first context. */
void ca_fences_prepare(ca_context_t *context);

/* Whether somebody has a fence with an event of the context. */
bool ca_fences_held(const ca_context_t *context);

/* The context is gone, and its events with it: none is kept. */
void ca_fences_forget(ca_context_t *context);

/* Waits for the same work as a fence would, where there is none; without `all` not for other
 * contexts', as no plain free of device memory does, unless they are of other devices and have been
 * let in as peers. At host memory all contexts may be: their work is waited for too, a second at
 * most, then the answer is -EAGAIN. */
int ca_fence_synchronize(void *context, bool all);
int ca_fence_synchronize_host(void *context, bool all);

void ca_fences_reset_after_fork(void);

#endif
