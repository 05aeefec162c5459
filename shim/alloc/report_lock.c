#include "shim/alloc/report_lock.h"
#include <stdatomic.h>
#include <stdint.h>
#include "base/lock.h"
#include "base/clock.h"
#include "shim/alloc/track.h"

/* No mutex: a thread that waits must know whether it waits for itself. */
static _Atomic uint32_t holder; /* thread id, or 0 */

bool ca_report_lock_take(unsigned wait_ms)
{
    uint32_t self = ca_track_thread(), other = 0;
    wait_ms = ca_bound_ms(wait_ms);
    while (!atomic_compare_exchange_strong(&holder, &other, self) && other != self && wait_ms > 0) {
        ca_sleep(1000000);
        wait_ms--;
        other = 0;
    }
    return other == 0;
}

void ca_report_lock_drop(void)
{
    atomic_store(&holder, 0);
}

void ca_report_lock_reset_after_fork(void)
{
    atomic_store(&holder, 0);
}
