/* What all arenas of the process have reserved upstream at a time. A sum of the arenas' own peaks
 * would count memory that was never reserved together. */
#include <stdatomic.h>
#include "pool/state.h"

static _Atomic size_t total, total_peak;

void ca_reserved_raise(ca_arena_t *arena, size_t bytes)
{
    arena->reserved += bytes;
    if (arena->reserved > arena->reserved_peak)
        arena->reserved_peak = arena->reserved;

    size_t now = atomic_fetch_add_explicit(&total, bytes, memory_order_relaxed) + bytes;
    size_t peak = atomic_load_explicit(&total_peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &total_peak, &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

void ca_reserved_lower(ca_arena_t *arena, size_t bytes)
{
    arena->reserved -= bytes;
    if (!arena->retired)
        atomic_fetch_sub_explicit(&total, bytes, memory_order_relaxed);
}

void ca_reserved_forget(const ca_arena_t *arena)
{
    atomic_fetch_sub_explicit(&total, arena->reserved, memory_order_relaxed);
}

void ca_reserved_reset_after_fork(void)
{
    atomic_store(&total, 0);
    atomic_store(&total_peak, 0);
}

void ca_pool_reserved(size_t *now, size_t *peak)
{
    *now = atomic_load_explicit(&total, memory_order_relaxed);
    *peak = atomic_load_explicit(&total_peak, memory_order_relaxed);
}
