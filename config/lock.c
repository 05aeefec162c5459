/* Mutexes, and in debug builds the proof that nobody can wait in a circle: a thread's locks are
 * taken in rising rank. The check comes before the wait, so that a wrong order is reported the
 * first time it is tried and not the first time that it deadlocks. */
#include "config/lock.h"

#define TRIES 100u /* some 50 us in all, 5 to 150 by the processor */
#define PAUSES_LEAST 4u
#define PAUSES_MOST 32u

#if CA_DEBUG

#include "config/out.h"
#include "config/text.h"

#include <stdlib.h>
#include <unistd.h>

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

static void check_order(const ca_lock_t *lock)
{
    for (unsigned i = 0; i < held.count; i++)
        if (held.locks[i]->rank >= lock->rank)
            fail("taken out of order", rank_name(lock->rank));
}

static void remember(const ca_lock_t *lock)
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

unsigned ca_lock_held(void)
{
    return held.count;
}

void ca_lock_assert_none(const char *what)
{
    if (held.count)
        fail("held at", what);
}

#else

static inline void check_order(const ca_lock_t *lock)
{
    (void)lock;
}
static inline void remember(const ca_lock_t *lock)
{
    (void)lock;
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

/* Locks are held for less time than it takes to go to sleep and to be woken, above all in a virtual
 * machine. glibc's adaptive mutexes look more often and give up after a microsecond or two. */
static __attribute__((noinline)) void wait_for(pthread_mutex_t *mutex)
{
    for (unsigned tries = 0, pauses = PAUSES_LEAST; tries < TRIES; tries++) {
        for (unsigned i = 0; i < pauses; i++)
            relax();
        if (pthread_mutex_trylock(mutex) == 0)
            return;
        if (pauses < PAUSES_MOST)
            pauses *= 2;
    }
    pthread_mutex_lock(mutex);
}

bool ca_lock_take(ca_lock_t *lock)
{
    check_order(lock);
    bool held = pthread_mutex_trylock(&lock->mutex) != 0;
    if (held)
        wait_for(&lock->mutex);
    remember(lock);
    return held;
}

bool ca_lock_try(ca_lock_t *lock)
{
    if (pthread_mutex_trylock(&lock->mutex) != 0)
        return false;
    remember(lock);
    return true;
}

void ca_lock_drop(ca_lock_t *lock)
{
#if CA_DEBUG
    if (!forget(lock))
        fail("dropped by a thread that does not hold it", rank_name(lock->rank));
#endif
    pthread_mutex_unlock(&lock->mutex);
}
