#include "shim/turn.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include "shim/track.h"

/* No mutex: who waits must know whether it waits for itself. */
static _Atomic uint32_t holder; /* thread id, or 0 */

bool ca_turn_take(unsigned wait_ms)
{
    const struct timespec millisecond = {.tv_nsec = 1000000};
    uint32_t self = ca_track_thread(), other = 0;
    int saved = errno;
    while (!atomic_compare_exchange_strong(&holder, &other, self) && other != self && wait_ms > 0) {
        nanosleep(&millisecond, NULL);
        wait_ms--;
        other = 0;
    }
    errno = saved;
    return other == 0;
}

void ca_turn_drop(void)
{
    atomic_store(&holder, 0);
}

void ca_turn_reset_after_fork(void)
{
    atomic_store(&holder, 0);
}
