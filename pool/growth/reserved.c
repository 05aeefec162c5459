/* What all arenas of the process have reserved upstream at a time, device and host memory apart. A
 * sum of the arenas' own peaks would count memory that was never reserved together. */
#include <stdatomic.h>
#include "pool/state.h"

typedef struct total {
    _Atomic size_t now, peak;
} total_t;

static total_t totals[2]; /* [0] device memory, [1] host memory */

void ca_reserved_raise(ca_arena_t *arena, size_t bytes)
{
    arena->reserved += bytes;
    arena->news = true;
    if (arena->reserved > arena->reserved_peak)
        arena->reserved_peak = arena->reserved;
    ca_arena_set_obtained(arena); /* claimed before upstream was asked */

    total_t *total = &totals[arena->params.host];
    size_t now = atomic_fetch_add_explicit(&total->now, bytes, memory_order_relaxed) + bytes;
    ca_raise_peak(&total->peak, now);
}

void ca_reserved_lower(ca_arena_t *arena, size_t bytes)
{
    arena->reserved -= bytes;
    arena->news = true;
    ca_arena_set_give_up(arena, bytes);
    if (!arena->retired)
        atomic_fetch_sub_explicit(&totals[arena->params.host].now, bytes, memory_order_relaxed);
}

void ca_reserved_move(ca_arena_t *from, ca_arena_t *to, size_t bytes)
{
    from->reserved -= bytes;
    to->reserved += bytes;
    from->news = to->news = true;
    if (to->reserved > to->reserved_peak)
        to->reserved_peak = to->reserved;
}

void ca_reserved_forget(const ca_arena_t *arena)
{
    atomic_fetch_sub_explicit(&totals[arena->params.host].now, arena->reserved,
                              memory_order_relaxed);
}

void ca_reserved_reset_after_fork(void)
{
    for (unsigned i = 0; i < 2; i++) {
        atomic_store(&totals[i].now, 0);
        atomic_store(&totals[i].peak, 0);
    }
}

static void tell(total_t *total, size_t *now, size_t *peak)
{
    *now = atomic_load_explicit(&total->now, memory_order_relaxed);
    *peak = atomic_load_explicit(&total->peak, memory_order_relaxed);
}

void ca_pool_reserved(size_t *now, size_t *peak)
{
    tell(&totals[0], now, peak);
}

void ca_pool_reserved_host(size_t *now, size_t *peak)
{
    tell(&totals[1], now, peak);
}
