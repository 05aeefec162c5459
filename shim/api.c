/* The public functions of include/cachealloc.h, and the totals behind them. */
#include "include/cachealloc.h"
#include <errno.h>
#include <string.h>
#include "config/counters.h"
#include "registry/registry.h"
#include "shim/contexts.h"
#include "shim/totals.h"
#include "shim/device_memory.h"

#define EXPORT __attribute__((visibility("default")))

size_t ca_totals(ca_arena_stats_t *total)
{
    size_t arenas = 0;
    memset(total, 0, sizeof(*total));
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c)) {
        ca_arena_stats_t one;
        if (!c->arena)
            continue;
        ca_arena_stats(c->arena, &one);
        arenas += atomic_load(&c->state) != CA_CONTEXT_RETIRED;
        total->reserved_bytes += one.reserved_bytes;
        total->reserved_peak += one.reserved_peak;
        total->live_bytes += one.live_bytes;
        total->live_peak += one.live_peak;
        total->pending_bytes += one.pending_bytes;
        total->ready_bytes += one.ready_bytes;
        total->segments += one.segments;
        total->blocks += one.blocks;
        total->epochs += one.epochs;
        if (one.largest_ready > total->largest_ready)
            total->largest_ready = one.largest_ready;
    }
    return arenas;
}

EXPORT int cachealloc_get_stats(cachealloc_stats_t *stats)
{
    if (!stats || stats->size < sizeof(stats->size) + sizeof(stats->version))
        return EINVAL;
    ca_arena_stats_t pool;
    ca_totals(&pool);
    cachealloc_stats_t now = {
        .size = stats->size,
        .version = CACHEALLOC_STATS_VERSION,
        .alloc_calls = ca_counter_read(alloc_calls),
        .free_calls = ca_counter_read(free_calls),
        .hits = ca_counter_read(pool_hits),
        .misses = ca_counter_read(pool_misses),
        .upstream_allocs = ca_counter_read(upstream_allocs),
        .upstream_frees = ca_counter_read(upstream_frees),
        .live_bytes = ca_registry_total().bytes,
        .live_peak_bytes = ca_registry_peak_bytes(),
        .reserved_bytes = pool.reserved_bytes,
        .reserved_peak_bytes = pool.reserved_peak,
        .fence_records = ca_counter_read(fence_records),
        .fence_queries = ca_counter_read(fence_queries),
        .fence_waits = ca_counter_read(fence_waits),
    };
    memcpy(stats, &now, stats->size < sizeof(now) ? stats->size : sizeof(now));
    return 0;
}

EXPORT size_t cachealloc_trim(void)
{
    size_t given = 0;
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c))
        if (c->arena && atomic_load(&c->state) == CA_CONTEXT_SERVING)
            given += ca_arena_trim(c->arena, SIZE_MAX);
    return given;
}

EXPORT const char *cachealloc_version(void)
{
    return "0.1.0";
}
