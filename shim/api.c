/* The public functions of include/cachealloc.h. */
#include "include/cachealloc.h"
#include <errno.h>
#include <string.h>
#include "config/counters.h"
#include "registry/registry.h"
#include "shim/contexts.h"
#include "shim/pinned_memory.h"
#include "shim/totals.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int cachealloc_get_stats(cachealloc_stats_t *stats)
{
    if (!stats || stats->size < sizeof(stats->size) + sizeof(stats->version))
        return EINVAL;
    ca_arena_stats_t pool;
    size_t contexts;
    ca_totals(&pool, &contexts);
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
    size_t size = stats->size;
    if (size > sizeof(now))
        memset((char *)stats + sizeof(now), 0, size - sizeof(now));
    memcpy(stats, &now, size < sizeof(now) ? size : sizeof(now));
    return 0;
}

EXPORT size_t cachealloc_trim(void)
{
    size_t given = 0;
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c))
        if (c->arena && atomic_load(&c->state) == CA_CONTEXT_SERVING)
            given += ca_arena_trim(c->arena, SIZE_MAX);
    return given + ca_pinned_trim(SIZE_MAX);
}

EXPORT const char *cachealloc_version(void)
{
    return "0.1.0";
}
