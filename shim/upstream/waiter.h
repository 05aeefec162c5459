/* A wait for a fence with a bound. CUDA has none: a helper thread waits in the driver, the caller
 * waits for the helper until its time is up, and goes on without it. Times are nanoseconds. From
 * any thread, with no lock held. */
#ifndef CA_SHIM_UPSTREAM_WAITER_H
#define CA_SHIM_UPSTREAM_WAITER_H

#include <stdint.h>
#include "shim/cuda/contexts.h"

/* A fence is a chain of events, one for each context. It belongs to the caller. */
typedef struct ca_event {
    struct ca_event *next;
    ca_context_t *context;
    CUevent handle;
    unsigned part; /* of the context that it came from */
} ca_event_t;

/* Waits for one event of `owner`'s fence without bound: 1 passed, 0 not yet, or a negative errno.
 * The helper calls it, for events that it has a copy of: `handle` may have been recorded again, but
 * is never destroyed before its context. */
typedef int ca_waiter_wait_t(ca_context_t *owner, ca_context_t *context, CUevent handle);

/* Waits at most `nanoseconds` for all events of `fence`, which must stay valid until this returns.
 * 1: passed, 0: time is up, -EBUSY: the helper is at work for another caller, or there is none;
 * then no time was spent. Any other answer is that of `wait`. */
int ca_waiter_wait(ca_context_t *owner, const ca_event_t *fence, ca_waiter_wait_t *wait,
                   uint64_t nanoseconds);

/* In the child of a fork, which has no helper. */
void ca_waiter_reset_after_fork(void);

#endif
