/* What all arenas of the process together have reserved, and what is on its way back upstream; see
 * giving.h. */
#include "pool/growth/giving.h"

#include <stdatomic.h>
#include "base/clock.h"
#include "base/inline.h"
#include "pool/state.h"

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
void ca_giving_end(bool released)
{
    if (released) {
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

/* --- reserved --------------------------------------------------------------------------------- */

/* Device and host memory apart. A sum of the arenas' own peaks would count memory that was never
 * reserved together. */
typedef struct total {
    _Atomic size_t now;
    _Atomic uint64_t peak;
} total_t;

static total_t totals[2]; /* [0] device memory, [1] host memory */

void ca_reserved_raise(ca_arena_t *arena, size_t bytes)
{
    arena->reserved += bytes;
    if (arena->reserved > arena->reserved_peak)
        arena->reserved_peak = arena->reserved;

    total_t *total = &totals[arena->params.host];
    size_t now = atomic_fetch_add_explicit(&total->now, bytes, memory_order_relaxed) + bytes;
    ca_raise(&total->peak, now);
}

void ca_reserved_lower(ca_arena_t *arena, size_t bytes)
{
    arena->reserved -= bytes;
    if (!arena->retired)
        atomic_fetch_sub_explicit(&totals[arena->params.host].now, bytes, memory_order_relaxed);
}

void ca_reserved_forget(const ca_arena_t *arena)
{
    atomic_fetch_sub_explicit(&totals[arena->params.host].now, arena->reserved,
                              memory_order_relaxed);
}

void ca_pool_reserved(bool host, size_t *now, size_t *peak)
{
    *now = atomic_load_explicit(&totals[host].now, memory_order_relaxed);
    *peak = atomic_load_explicit(&totals[host].peak, memory_order_relaxed);
}

void ca_giving_reset_after_fork(void)
{
    atomic_store(&under_way, 0);
    for (unsigned i = 0; i < 2; i++) {
        atomic_store(&totals[i].now, 0);
        atomic_store(&totals[i].peak, 0);
    }
}
