/* Taking a lock at exit: exit() may run in a signal handler whose interrupted frame holds the lock,
 * and would wait for itself. */
#ifndef CA_CONFIG_PATIENCE_H
#define CA_CONFIG_PATIENCE_H

#include <sched.h>
#include "config/lock.h"

/* Some milliseconds: only a table that grows to a huge size keeps a lock that long. */
#define CA_PATIENCE_TRIES 10000

/* False when the lock stayed in use. */
static inline bool ca_patience_take(ca_lock_t *lock)
{
    for (unsigned tries = 0; tries < CA_PATIENCE_TRIES; tries++) {
        if (ca_lock_try(lock))
            return true;
        sched_yield();
    }
    return false;
}

#endif
