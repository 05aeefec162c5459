/* Reuse in order: where all work goes to one stream, what comes later is behind what came before,
 * and freed memory that is still in flight may serve at once.
 *
 * Every submission says on which stream it is, before the driver's call and after it (with either
 * alone there are races: tests/order_model.py). The stream of the last one is the current stream.
 * As long as it stays the same, a submission costs two loads and two comparisons here. One on
 * another stream makes the context one of several streams, until a fence has passed that was begun
 * after it: from then on all work that has not passed is on one stream again. Until the next fence
 * is begun the thread that submits to several has said all there is to say: whichever stream it
 * goes on with costs it a few loads and comparisons, too (CA_ORDER_SEVERAL).
 *
 * Meanwhile an epoch whose fence has not passed yet (epoch.h) may serve on behalf of a thread that
 * plain CUDA would have made to wait for that fence (fence_order.h): what takes its memory submits
 * to the current stream, which is behind it. The fence is then a debt: a submission to any other
 * stream makes this one wait for it first, on the device, until it has passed. A thread that would
 * not have slept for the fence asks first, then waits on the host for a second at most.
 *
 * Where nothing has been submitted since a fence was begun, that fence is behind what is freed now,
 * too: a large free then records none of its own (ca_epoch_cover). The mark that says so is taken
 * away by both checks of the next submission. The second is enough for a block that is freed after
 * the submissions that touch it have returned (tests/order_model.py, order_not_woken). The first is
 * for a thread that learns from the work itself that it has begun.
 *
 * Nothing is handed out so where work may be in flight that waits for a thread (a host function, a
 * value in memory, another process), and for good not any more once a second thread uses a second
 * stream, once there is a second context, or something submits that cannot be seen.
 *
 * Streams have numbers here, not given twice while anything is known of them:
 * shim/cuda/stream_id.h. Any thread may call; all but ca_order_may and ca_order_take reach
 * upstream, so that no lock may be held. One context at a time has it. */
#ifndef CA_POOL_FENCE_ORDER_H
#define CA_POOL_FENCE_ORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/counters.h"
#include "base/inline.h"
#include "base/thread_state.h"
#include "base/mutation.h"
#include "pool/upstream.h"

typedef enum {
    CA_WORK = 0,
    CA_WORK_HELD = 1,  /* may wait for a thread: host function, wait value, external wait */
    CA_WORK_EARLY = 2, /* may begin before its predecessor has ended (programmatic launch) */
    CA_WORK_COPY = 4,  /* the host may do it, out of the order of streams */
} ca_work_t;

/* The number of the current stream; 0: nothing was submitted yet. CA_ORDER_OFF: no submission is
 * checked any more; no stream has it. */
#define CA_ORDER_OFF UINT64_MAX
extern __attribute__((visibility("hidden"))) _Atomic uint64_t ca_order_current;

/* Or'ed with it while nothing has been submitted since the newest fence was begun: the checks of
 * the first submission take it away. */
#define CA_ORDER_QUIET (UINT64_C(1) << 62)

/* Instead of it, while no fence has been begun since one thread submitted to a second stream, and
 * nothing is owed. */
#define CA_ORDER_SEVERAL (CA_ORDER_OFF - 1)

/* What order.c alone changes, in one object, so that a check needs one address. */
typedef struct ca_order_gate {
    void *_Atomic only; /* the context; NULL: off */
    _Atomic bool ended;
    _Atomic unsigned held;
    _Atomic uint64_t several_until; /* a fence begun at this number, or later, has to pass */
    _Atomic uint64_t passed;        /* the latest begun that is known to have */
    _Atomic uint64_t quiet;         /* CA_ORDER_QUIET is about the fence begun at this number */
    _Atomic unsigned changer;       /* the thread that changed the stream last */
    _Atomic uint64_t last;          /* the current stream, where CA_ORDER_SEVERAL stands for it */
} ca_order_gate_t;
extern __attribute__((visibility("hidden"))) ca_order_gate_t ca_order_gate;

/* The number of the newest fence that anything was handed out behind; 0: none. */
extern __attribute__((visibility("hidden"))) _Atomic uint64_t ca_order_newest;

void ca_order_before_other(uint64_t stream, void *queue, unsigned work);
void ca_order_after_other(uint64_t stream, unsigned work);

/* Before the call: whether the thread that submits to several streams goes on with `stream`, where
 * `current` was the current one, and this is all there is to say. What comes after a fence was
 * begun sees another current one, before its call or after it. */
CA_INLINE bool ca_order_goes_on(uint64_t current, uint64_t stream)
{
    ca_order_gate_t *gate = &ca_order_gate;

    if (current != CA_ORDER_SEVERAL || !ca_word_is(&gate->changer, ca_thread.number))
        return false;
    if (atomic_load_explicit(&gate->last, memory_order_relaxed) != stream) {
        atomic_store_explicit(&gate->last, stream, memory_order_relaxed);
        ca_count(submissions_elsewhere);
    }
    return true;
}

/* Around the driver's call that submits to `stream`. `queue` is the handle that means it
 * everywhere: of a thread's own stream CU_STREAM_PER_THREAD. */
CA_INLINE void ca_order_before(uint64_t stream, void *queue, unsigned work)
{
    uint64_t current = atomic_load_explicit(&ca_order_current, memory_order_relaxed);
    if (__builtin_expect(work || stream != current, 0) && current != CA_ORDER_OFF &&
        (work || !ca_order_goes_on(current, stream)))
        ca_order_before_other(stream, queue, work);
}

CA_INLINE void ca_order_after(uint64_t stream, unsigned work)
{
    uint64_t current = atomic_load_explicit(&ca_order_current, memory_order_relaxed);
    if (__builtin_expect(work || stream != current, 0) && current != CA_ORDER_OFF &&
        (work || current != CA_ORDER_SEVERAL))
        ca_order_after_other(stream, work);
}

/* The calling thread is about to wait for a stream, or to ask about it; 0: for all of them. */
void ca_order_waits_for(uint64_t stream);

/* Around a wait for the current stream, or with 0 for all work of the context: what was recorded
 * before it has passed when the wait has succeeded. `begun` is what the first one gave; 0: it
 * proves nothing. */
uint64_t ca_order_wait_begins(uint64_t stream);
void ca_order_wait_ended(uint64_t begun);

/* The stream is about to end, and its number may come again after that; 0: all streams end, with
 * their context. */
void ca_order_stream_ends(uint64_t stream);

/* The context is the only one: order may begin there. With NULL it ends, and with it its fences. */
void ca_order_start(const ca_upstream_t *upstream, void *context, uint64_t wait_ns);
void ca_order_forget(const void *context);

/* From now on nothing is handed out in flight any more, for the reason `why` (a constant, for the
 * log; NULL where it is not wanted at all). What was is waited for on the host, for a second at
 * most where plain CUDA would not have waited; if that is in vain, every stream is made to wait for
 * it from now on. */
void ca_order_end(const char *why);

/* Memory leaves the order of streams (another process, a device on the bus): waits on the host, as
 * above, for all that anything was handed out behind. */
void ca_order_leave(void);

/* Whether there is anything to wait for, so that finding out whose memory it is pays. */
static inline bool ca_order_owed(void)
{
    return atomic_load_explicit(&ca_order_newest, memory_order_relaxed) != 0;
}

/* Whether that was said. */
bool ca_order_is_over(void);

/* While something is captured nothing is handed out in flight, and no stream is made to wait.
 * Counted. */
void ca_order_hold(bool on);

/* Bytes. Where memory in flight serves, nearly all of it is used well but for what small blocks
 * between large ones keep from merging, which is most where threads keep some of them: so they get
 * segments of their own, unless `small` says otherwise, and threads keep no others. */
#define CA_ORDER_SMALL ((size_t)64 << 10)

/* --- for the pool ----------------------------------------------------------------------------- */

/* Whether memory of the context may be handed out in flight now, as far as the streams go. */
static inline bool ca_order_may(const void *context)
{
    const ca_order_gate_t *gate = &ca_order_gate;

    return context && atomic_load_explicit(&gate->only, memory_order_relaxed) == context &&
           !atomic_load_explicit(&gate->ended, memory_order_relaxed) &&
           (!atomic_load_explicit(&gate->held, memory_order_relaxed) ||
            CA_MUTATED(order_in_capture)) &&
           atomic_load_explicit(&gate->passed, memory_order_relaxed) >=
               atomic_load_explicit(&gate->several_until, memory_order_relaxed);
}

/* A number for a fence that is about to be recorded (fence_order.h): what a check has written
 * is behind it or not yet there, never half. */
uint64_t ca_order_record_begins(void);

/* Something was submitted, if by none of the wrappers. */
void ca_order_unquiet(void);

/* Of what ca_order_current is. */
static inline bool ca_order_is_quiet(uint64_t current)
{
    return current & CA_ORDER_QUIET && current < CA_ORDER_SEVERAL;
}

/* The number that the newest fence was begun at, where nothing has been submitted since; else 0.
 * What is freed now is behind that fence, too, once it is recorded: the calls that submitted work
 * on it have returned. It says nothing where the pool may not hand out memory in flight. */
static inline uint64_t ca_order_quiet_since(void)
{
    return ca_order_is_quiet(atomic_load(&ca_order_current)) ? atomic_load(&ca_order_gate.quiet)
                                                             : 0;
}

/* A fence begun and recorded at these numbers becomes a debt, if that may be: false where not. The
 * fence stays the caller's too, until it gives it up. `former`: the one that it gives up for it, or
 * NULL. `released`: up to two that neither a debt nor an epoch names any more, or NULL, which the
 * caller releases when it holds no lock. */
bool ca_order_take(const void *context, void *fence, uint64_t began, uint64_t number, void *former,
                   void *released[2]);

/* The caller stops naming the fence that it handed in. True: no debt names it either, so that the
 * caller releases it. */
bool ca_order_give_up(void *fence);

/* A fence of the context that was begun at this number has passed. */
void ca_order_passed(const void *context, uint64_t began);

/* Whether a fence recorded at this number is known to have passed. */
bool ca_order_has_passed(const void *context, uint64_t number);

/* Whether anything that was handed out in flight may still be: as far as is known; and asked, and
 * waited for where plain CUDA would have made the thread wait. The second returns whether all has
 * passed. */
bool ca_order_owes(const void *context);
bool ca_order_paid(const void *context);

void ca_order_reset_after_fork(void);

#endif
