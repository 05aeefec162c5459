/* See giving.h. */
#include "pool/growth/giving.h"

#include <stdatomic.h>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/lock.h"

#define WAIT_NS ((uint64_t)1000 * 1000 * 1000)
#define STEP_NS 20000

#define JUST_NOW_NS ((uint64_t)100 * 1000 * 1000)

static _Atomic unsigned under_way, pieces;
static _Atomic uint64_t last_ns; /* when the last one was given; 0: none */

void ca_giving_begin(void)
{
    atomic_fetch_add(&under_way, 1);
}

/* In this order: one that is not seen under way any more is seen done. */
void ca_giving_end(bool given)
{
    if (given) {
        atomic_store(&last_ns, ca_clock_ns());
        atomic_fetch_add(&pieces, 1);
    }
    atomic_fetch_sub(&under_way, 1);
}

unsigned ca_giving_done(void)
{
    return atomic_load(&pieces);
}

bool ca_giving_just_now(void)
{
    uint64_t last = atomic_load(&last_ns);

    return last && ca_clock_ns() - last < JUST_NOW_NS;
}

bool ca_giving_wait(unsigned *done)
{
    uint64_t end = 0;

    ca_lock_assert_none("a wait for memory that others give back");
    for (;;) {
        bool any = atomic_load(&under_way) > 0;
        unsigned now = ca_giving_done();
        bool came = now != *done;
        *done = now;
        if (came || !any)
            return came;
        if (!end)
            end = ca_clock_ns() + ca_bound(WAIT_NS);
        else if (ca_clock_ns() >= end)
            return false;
        ca_sleep(STEP_NS);
    }
}

void ca_giving_reset_after_fork(void)
{
    atomic_store(&under_way, 0);
}
