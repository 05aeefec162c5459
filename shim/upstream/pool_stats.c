#include "shim/upstream/pool_stats.h"
#include <string.h>
#include "shim/cuda/contexts.h"

/* False where the arena is in use. */
static bool add(ca_arena_t *arena, ca_arena_stats_t *total)
{
    ca_arena_stats_t one;
    if (!arena)
        return true;
    if (!ca_arena_stats_try(arena, &one))
        return false;
    total->reserved_bytes += one.reserved_bytes;
    total->live_bytes += one.live_bytes;
    total->live_peak += one.live_peak;
    total->pending_bytes += one.pending_bytes;
    total->ready_bytes += one.ready_bytes;
    total->exported_bytes += one.exported_bytes;
    total->idle_bytes += one.idle_bytes;
    total->segments += one.segments;
    total->blocks += one.blocks;
    total->epochs += one.epochs;
    if (one.largest_ready > total->largest_ready)
        total->largest_ready = one.largest_ready;
    return true;
}

bool ca_pool_stats(ca_arena_stats_t *total, size_t *contexts)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count;
    bool complete = ca_contexts_try_living(living, &count);
    memset(total, 0, sizeof(*total));
    for (size_t i = 0; i < count; i++)
        complete &= add(living[i]->arena, total);
    ca_pool_reserved(false, &total->reserved_bytes, &total->reserved_peak);
    *contexts = count;
    return complete;
}

bool ca_pool_stats_on(unsigned device, ca_arena_stats_t *total)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count;
    bool complete = ca_contexts_try_living(living, &count);
    memset(total, 0, sizeof(*total));
    for (size_t i = 0; i < count; i++)
        if (living[i]->device == device)
            complete &= add(living[i]->arena, total);
    return complete;
}

bool ca_pool_stats_pieces(unsigned device, ca_pieces_t *pieces)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count;
    bool complete = ca_contexts_try_living(living, &count);
    memset(pieces, 0, sizeof(*pieces));
    for (size_t i = 0; i < count; i++)
        if (living[i]->device == device && living[i]->arena)
            complete &= ca_arena_pieces_try(living[i]->arena, pieces);
    return complete;
}

bool ca_pool_stats_pinned(ca_arena_stats_t *total)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count;
    bool complete = ca_contexts_try_living(living, &count);
    memset(total, 0, sizeof(*total));
    for (size_t i = 0; i < count; i++)
        for (unsigned k = 0; k < CA_PINNED_KINDS; k++)
            complete &= add(atomic_load(&living[i]->pinned[k]), total);
    ca_pool_reserved(true, &total->reserved_bytes, &total->reserved_peak);
    return complete;
}
