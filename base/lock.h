/* Locks with ranks. A thread may only take a lock of a higher rank than those it holds; debug
 * builds (CA_DEBUG) check that and keep a count, so that the upstream table can prove that no
 * driver call is made under a lock.
 *
 * Words that the kernel lets threads sleep on: a lock that no thread waits for takes two
 * instructions that write, and a dozen in all; a call on the slow path takes several locks. */
#ifndef CA_BASE_LOCK_H
#define CA_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Outermost first. */
typedef enum {
    CA_RANK_CONTEXTS = 1, /* shim: context to arena */
    CA_RANK_GRAPHS,       /* shim: memory that captures touched */
    CA_RANK_ARENA,        /* pool: one arena */
    CA_RANK_ORDER,        /* pool: what was handed out in flight */
    CA_RANK_SPANS,        /* pool: address ranges of all segments; shim: addresses on their way */
    CA_RANK_REGISTRY,     /* registry: one stripe */
    CA_RANK_STACKS,       /* registry: interned stacks */
    CA_RANK_MEMORY,       /* config: host memory of our own */
} ca_rank_t;

typedef enum { CA_LOCK_FREE, CA_LOCK_HELD, CA_LOCK_AWAITED } ca_lock_word_t;

typedef struct ca_lock {
    _Atomic uint32_t word; /* ca_lock_word_t; awaited: held, and others may sleep until it is not */
    ca_rank_t rank;
} ca_lock_t;

#define CA_LOCK_INIT(rank_)                                                                        \
    {                                                                                              \
        CA_LOCK_FREE, rank_                                                                        \
    }

/* How the holder of a lock wakes threads that wait for something that it guards. Zeroed it is
 * ready; in the child of a fork it is as good as before. */
typedef struct ca_signal {
    _Atomic uint32_t count; /* of calls of ca_signal_all */
} ca_signal_t;

/* Drops the lock until the signal is given, or it is `until` (ca_clock_ns; UINT64_MAX: for ever);
 * also for no reason. False: time is up. No cancellation point. */
bool ca_signal_wait(ca_signal_t *signal, ca_lock_t *lock, uint64_t until);
/* What it is about was changed under the lock. Under it too, or behind it: there a thread that
 * wakes at once need not wait for the lock. */
void ca_signal_all(ca_signal_t *signal);

/* Also how an owner makes a lock good again in the child of a fork, whichever thread held it. */
void ca_lock_init(ca_lock_t *lock, ca_rank_t rank);

/* Where it is held: looks for a moment, then sleeps. */
void ca_lock_wait(ca_lock_t *lock);
void ca_lock_wake(ca_lock_t *lock);

#if CA_DEBUG
void ca_lock_check_order(const ca_lock_t *lock);
void ca_lock_remember(const ca_lock_t *lock);
void ca_lock_forget(const ca_lock_t *lock);
/* How many of our locks this thread holds. */
unsigned ca_lock_held(void);
/* Debug builds only: stops the process where `what` is about to happen under a lock. */
void ca_lock_assert_none(const char *what);
#else
static inline void ca_lock_check_order(const ca_lock_t *lock)
{
    (void)lock;
}
static inline void ca_lock_remember(const ca_lock_t *lock)
{
    (void)lock;
}
static inline void ca_lock_forget(const ca_lock_t *lock)
{
    (void)lock;
}
static inline unsigned ca_lock_held(void)
{
    return 0;
}
static inline void ca_lock_assert_none(const char *what)
{
    (void)what;
}
#endif

/* Takes it if that needs no wait. For _exit and kin, which may run in a signal handler; as it
 * cannot deadlock, its rank is not checked. */
static inline bool ca_lock_try(ca_lock_t *lock)
{
    uint32_t word = CA_LOCK_FREE;

    if (!atomic_compare_exchange_strong_explicit(&lock->word, &word, CA_LOCK_HELD,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    ca_lock_remember(lock);
    return true;
}

/* Where another thread holds it: tries for a moment, then sleeps. Returns whether that was so. */
static inline bool ca_lock_take(ca_lock_t *lock)
{
    ca_lock_check_order(lock);
    if (__builtin_expect(ca_lock_try(lock), 1))
        return false;
    ca_lock_wait(lock);
    ca_lock_remember(lock);
    return true;
}

static inline void ca_lock_drop(ca_lock_t *lock)
{
    ca_lock_forget(lock);
    if (__builtin_expect(atomic_exchange_explicit(&lock->word, CA_LOCK_FREE,
                                                  memory_order_release) == CA_LOCK_AWAITED,
                         0))
        ca_lock_wake(lock);
}

/* The same at exit, where exit() may run in a signal handler whose interrupted frame holds the
 * lock, and would wait for itself. False when the lock stayed in use for as long as only a table
 * that grows to a huge size keeps one. */
bool ca_lock_take_timed(ca_lock_t *lock);

/* --- waiting without a lock ------------------------------------------------------------------- */

/* No cancellation points: a thread may not end in a call where it would not without us, with what
 * the call was for half done. They leave errno alone. */

/* Sleeps for so long, or until a signal handler has run. */
void ca_sleep(uint64_t nanoseconds);

/* For the nth read of what another thread is changing: it needs the processor, then, as it may be
 * of lower priority, some time. */
void ca_backoff(unsigned tries);

#endif
