/* A wait for a fence with a bound. CUDA has none: a helper thread waits in the driver, the caller
 * waits for the helper until its time is up, and goes on without it. */
#ifndef CA_SHIM_UPSTREAM_WAITER_H
#define CA_SHIM_UPSTREAM_WAITER_H

#include <stdint.h>
#include "shim/cuda/contexts.h"

/* A fence is a chain of events, one for each context. */
typedef struct ca_event {
    struct ca_event *next;
    ca_context_t *context;
    CUevent handle;
    unsigned part; /* of the context's events */
} ca_event_t;

/* Waits for one event of `owner`'s fence without bound: 1 passed, 0 not yet, or a negative errno.
 * Called by the helper, for events that it has a copy of: `handle` may have been recorded anew, but
 * is never destroyed before its context. */
typedef int ca_waiter_wait_t(ca_context_t *owner, ca_context_t *context, CUevent handle);

/* Waits at most `nanoseconds` for all events of `fence`, which must hold out until this returns.
 * 1: passed, 0: time is up, -EBUSY: the helper is at work for somebody else, or there is none; then
 * no time was spent. Anything else is what `wait` answered. From any thread, under no lock. */
int ca_waiter_wait(ca_context_t *owner, const ca_event_t *fence, ca_waiter_wait_t *wait,
                   uint64_t nanoseconds);

/* The child of a fork has no helper. */
void ca_waiter_reset_after_fork(void);

#endif
