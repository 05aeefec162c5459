/* See waiter.h. One helper, one job at a time:
 *
 *   free -> submitted (by a caller) -> running (by the helper) -> answered -> free (by the caller)
 *            |                          |
 *            +-> free                   +-> abandoned -> free (by the helper)     when time is up
 *
 * The helper works on a copy: the caller's fence is recycled as soon as the caller has returned.
 * The work it waits for may never end, so an abandoned job keeps the helper for as long as it
 * takes, and others find it busy; no thread ever waits for the helper without a bound. It cannot be
 * interrupted: while it waits for work of a context that is being destroyed or released, that call
 * is held up as by any call of this library, a second at most (ca_context_suspend). The destruction
 * then waits for the same work anyway [hw]; a release that does not destroy would not have.
 *
 * It is started with the first wait and ends when it has had no job for a second: a process whose
 * threads have all ended must end too. */
#include "shim/upstream/waiter.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/thread_state.h"
#include "base/clock.h"
#include "base/lock.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/helper.h"

#define IDLE_NS ((uint64_t)1000 * 1000 * 1000)
#define STACK_BYTES ((size_t)1 << 20) /* for the driver, and for tools in its calls */

enum { FREE, SUBMITTED, RUNNING, ANSWERED, ABANDONED };

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS); /* innermost */
static ca_signal_t submitted, answered;
static bool helped; /* the helper runs, or is starting */

static struct {
    int state;
    int answer;
    ca_waiter_wait_t *wait;
    ca_context_t *owner;
    size_t count;
    struct {
        ca_context_t *context;
        CUevent handle;
    } events[CA_CONTEXTS_MAX];
} job;

/* Under the lock, which it drops meanwhile. */
static void wake(ca_signal_t *signal)
{
    ca_lock_drop(&lock);
    ca_signal_all(signal);
    ca_lock_take(&lock);
}

/* --- the helper ------------------------------------------------------------------------------- */

/* Under the lock, which is dropped during the waits. */
static void work(void)
{
    int answer = 1;
    job.state = RUNNING;
    for (size_t i = 0; i < job.count && answer == 1 && job.state == RUNNING; i++) {
        ca_context_t *context = job.events[i].context;
        CUevent handle = job.events[i].handle;
        ca_lock_drop(&lock);
        answer = job.wait(job.owner, context, handle);
        ca_lock_take(&lock);
    }
    if (job.state == ABANDONED) {
        job.state = FREE;
        return;
    }
    job.answer = answer;
    job.state = ANSWERED;
    wake(&answered);
}

static void *help(void *unused)
{
    __typeof__(cuThreadExchangeStreamCaptureMode) *exchange =
        ca_driver()->cuThreadExchangeStreamCaptureMode;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pthread_setname_np(pthread_self(), "cachealloc");
    /* Relaxed for good: a capture may begin between any two calls of this thread. */
    if (exchange)
        exchange(&mode);

    ca_lock_take(&lock);
    for (bool in_time = true; in_time || job.state == SUBMITTED;) {
        uint64_t until = ca_clock_ns() + IDLE_NS;
        while (job.state != SUBMITTED && in_time)
            in_time = ca_signal_wait(&submitted, &lock, until);
        if (job.state == SUBMITTED) {
            work();
            in_time = true;
        }
    }
    helped = false;
    ca_lock_drop(&lock);
    return unused;
}

/* --- its callers ------------------------------------------------------------------------------ */

/* Under the lock. */
static void submit(ca_context_t *owner, const ca_event_t *fence, ca_waiter_wait_t *wait)
{
    job.wait = wait;
    job.owner = owner;
    job.count = 0;
    for (const ca_event_t *event = fence; event && job.count < CA_CONTEXTS_MAX;
         event = event->next) {
        job.events[job.count].context = event->context;
        job.events[job.count++].handle = event->handle;
    }
    job.state = SUBMITTED;
}

/* Under the lock, while no job is there. */
static int wait_for_helper(ca_context_t *owner, const ca_event_t *fence, ca_waiter_wait_t *wait,
                           uint64_t nanoseconds)
{
    uint64_t until = ca_clock_ns() + nanoseconds;
    bool in_time = true;
    int answer = 0;

    submit(owner, fence, wait);
    if (helped) {
        wake(&submitted);
    } else {
        helped = true;
        ca_lock_drop(&lock);
        bool started = ca_helper_start(help, NULL, STACK_BYTES) == 0;
        ca_lock_take(&lock);
        if (!started) {
            helped = false;
            job.state = FREE;
            return -EBUSY;
        }
    }
    while (job.state != ANSWERED && in_time)
        in_time = ca_signal_wait(&answered, &lock, until);
    if (job.state == ANSWERED)
        answer = job.answer;
    job.state = job.state == RUNNING ? ABANDONED : FREE;
    return answer;
}

int ca_waiter_wait(ca_context_t *owner, const ca_event_t *fence, ca_waiter_wait_t *wait,
                   uint64_t nanoseconds)
{
    int cancel = ca_cancel_hold(); /* a cancelled caller would leave its job behind */
    ca_lock_take(&lock);
    int answer = job.state == FREE ? wait_for_helper(owner, fence, wait, nanoseconds) : -EBUSY;
    ca_lock_drop(&lock);
    ca_cancel_resume(cancel);
    return answer;
}

void ca_waiter_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    helped = false;
    job.state = FREE;
}
