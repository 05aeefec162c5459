/* Locks, and in debug builds the proof that no threads can wait in a circle: a thread's locks are
 * taken in rising rank. The check comes before the wait, so that a wrong order is reported the
 * first time it is tried and not the first time that it deadlocks. */
#include "base/lock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread_state.h"

#define TRIES 100u /* some 50 us in all, 5 to 150 by the processor */
#define PAUSES_LEAST 4u
#define PAUSES_MOST 32u

/* Some milliseconds, where no other thread wants the core. On a busy machine every try may cost a
 * slice of another's time. */
#define TIMED_TRIES 10000
#define TIMED_NS 100000000

#define BACKOFF_SPINS 200u
#define BACKOFF_YIELDS 100u
#define BACKOFF_NS 50000u

#if CA_DEBUG

#include "base/out.h"
#include "base/text.h"

#include <stdlib.h>

#define HELD_MAX 16

static _Thread_local struct {
    unsigned count;
    const ca_lock_t *locks[HELD_MAX];
} held;

static const char *rank_name(ca_rank_t rank)
{
    switch (rank) {
    case CA_RANK_CONTEXTS:
        return "contexts";
    case CA_RANK_GRAPHS:
        return "graphs";
    case CA_RANK_ARENA:
        return "arena";
    case CA_RANK_ORDER:
        return "order";
    case CA_RANK_SPANS:
        return "spans";
    case CA_RANK_REGISTRY:
        return "registry";
    case CA_RANK_STACKS:
        return "stacks";
    case CA_RANK_MEMORY:
        return "memory";
    }
    return "unknown";
}

/* Not through ca_log: that checks locks. */
static void fail(const char *what, const char *which)
{
    char buffer[256];
    ca_text_t text;
    ca_text_init(&text, buffer, sizeof buffer - 1);
    ca_text_printf(&text, "cachealloc[%d]: lock order: %s (%s), holding", (int)getpid(), what,
                   which);
    for (unsigned i = 0; i < held.count; i++)
        ca_text_printf(&text, " %s", rank_name(held.locks[i]->rank));
    ca_text_mark_cut(&text);
    buffer[text.length++] = '\n';
    ca_out_write(STDERR_FILENO, buffer, text.length, 0);
    abort();
}

void ca_lock_check_order(const ca_lock_t *lock)
{
    for (unsigned i = 0; i < held.count; i++)
        if (held.locks[i]->rank >= lock->rank)
            fail("taken out of order", rank_name(lock->rank));
}

void ca_lock_remember(const ca_lock_t *lock)
{
    if (held.count == HELD_MAX)
        fail("too many at once", rank_name(lock->rank));
    held.locks[held.count++] = lock;
}

static bool forget(const ca_lock_t *lock)
{
    for (unsigned i = held.count; i-- > 0;)
        if (held.locks[i] == lock) {
            for (held.count--; i < held.count; i++)
                held.locks[i] = held.locks[i + 1];
            return true;
        }
    return false;
}

void ca_lock_forget(const ca_lock_t *lock)
{
    if (!forget(lock))
        fail("dropped by a thread that does not hold it", rank_name(lock->rank));
}

unsigned ca_lock_held(void)
{
    return held.count;
}

void ca_lock_assert_none(const char *what)
{
    if (held.count)
        fail("held at", what);
}

#endif

void ca_lock_init(ca_lock_t *lock, ca_rank_t rank)
{
#if CA_DEBUG
    forget(lock); /* the child of a fork inherits what its thread held */
#endif
    *lock = (ca_lock_t)CA_LOCK_INIT(rank);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while the word is as the caller saw it, until `until`; or not. Whether it was woken, or
 * need not sleep, in time. */
static bool sleep_on(_Atomic uint32_t *word, uint32_t seen, uint64_t until)
{
    const struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int saved = errno;
    bool in_time = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, seen,
                           until == UINT64_MAX ? NULL : &at, NULL, FUTEX_BITSET_MATCH_ANY) == 0 ||
                   errno != ETIMEDOUT;
    errno = saved;
    return in_time;
}

static void wake(_Atomic uint32_t *word, int most)
{
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, most, NULL, NULL, 0);
    errno = saved;
}

/* Locks are held for less time than it takes to go to sleep and to be woken, above all in a virtual
 * machine. A thread that slept cannot tell whether others still do. */
void ca_lock_wait(ca_lock_t *lock)
{
    for (unsigned tries = 0, pauses = PAUSES_LEAST; tries < TRIES; tries++) {
        for (unsigned i = 0; i < pauses; i++)
            relax();
        uint32_t word = CA_LOCK_FREE;
        if (atomic_load_explicit(&lock->word, memory_order_relaxed) == CA_LOCK_FREE &&
            atomic_compare_exchange_strong_explicit(&lock->word, &word, CA_LOCK_HELD,
                                                    memory_order_acquire, memory_order_relaxed))
            return;
        if (pauses < PAUSES_MOST)
            pauses *= 2;
    }
    while (atomic_exchange_explicit(&lock->word, CA_LOCK_AWAITED, memory_order_acquire) !=
           CA_LOCK_FREE)
        sleep_on(&lock->word, CA_LOCK_AWAITED, UINT64_MAX);
}

void ca_lock_wake(ca_lock_t *lock)
{
    wake(&lock->word, 1);
}

bool ca_signal_wait(ca_signal_t *signal, ca_lock_t *lock, uint64_t until)
{
    uint32_t seen = atomic_load_explicit(&signal->count, memory_order_relaxed);

    ca_lock_drop(lock);
    bool in_time = sleep_on(&signal->count, seen, until);
    ca_lock_take(lock);
    return in_time;
}

void ca_signal_all(ca_signal_t *signal)
{
    atomic_fetch_add_explicit(&signal->count, 1, memory_order_relaxed);
    wake(&signal->count, INT_MAX);
}

bool ca_lock_take_timed(ca_lock_t *lock)
{
    if (ca_lock_try(lock))
        return true;
    uint64_t begin = ca_clock_ns();
    for (unsigned tries = 1; tries < TIMED_TRIES && ca_clock_ns() - begin < TIMED_NS; tries++) {
        sched_yield();
        if (ca_lock_try(lock))
            return true;
    }
    return false;
}

void ca_sleep(uint64_t nanoseconds)
{
    const struct timespec time = {.tv_sec = (time_t)(nanoseconds / 1000000000u),
                                  .tv_nsec = (long)(nanoseconds % 1000000000u)};
    int saved = errno, cancel = ca_cancel_hold();
    nanosleep(&time, NULL);
    ca_cancel_resume(cancel);
    errno = saved;
}

void ca_backoff(unsigned tries)
{
    int saved = errno;
    if (tries >= BACKOFF_SPINS + BACKOFF_YIELDS)
        ca_sleep(BACKOFF_NS);
    else if (tries >= BACKOFF_SPINS)
        sched_yield();
    errno = saved;
}
