/* Taking a lock at exit: exit() may run in a signal handler whose interrupted frame holds the lock,
 * and would wait for itself. */
#ifndef CA_BASE_LOCK_TIMED_H
#define CA_BASE_LOCK_TIMED_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/clock.h"
#include "base/lock.h"

/* Some milliseconds, where nobody else wants the core: only a table that grows to a huge size keeps
 * a lock that long. On a busy machine every try may cost a slice of somebody's time. */
#define CA_TIMED_TRIES 10000
#define CA_TIMED_NS 100000000

/* False when the lock stayed in use. */
static inline bool ca_lock_take_timed(ca_lock_t *lock)
{
    if (ca_lock_try(lock))
        return true;
    uint64_t begin = ca_clock_ns();
    for (unsigned tries = 1; tries < CA_TIMED_TRIES && ca_clock_ns() - begin < CA_TIMED_NS;
         tries++) {
        sched_yield();
        if (ca_lock_try(lock))
            return true;
    }
    return false;
}

#endif
