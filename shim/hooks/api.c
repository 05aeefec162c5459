/* The public functions of include/cachealloc.h that concern the whole process. */
#include "include/cachealloc.h"
#include <errno.h>
#include "base/counters.h"
#include "base/mem.h"
#include "registry/table/marks.h"
#include "registry/table/registry.h"
#include "registry/stack/stack.h"
#include "shim/alloc/oom.h"
#include "shim/hooks/api_struct.h"
#include "shim/upstream/backend_async.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/pin_mode.h"
#include "shim/upstream/pool_stats.h"
#include "shim/upstream/upstream_pinned.h"

CA_PUBLIC int cachealloc_stats(cachealloc_stats_t *stats)
{
    if (!stats || stats->size < offsetof(cachealloc_stats_t, alloc_calls))
        return EINVAL;
    ca_arena_stats_t pool;
    size_t contexts;
    ca_arena_stats_t pinned;
    bool complete = ca_pool_stats(&pool, &contexts);
    complete = ca_pool_stats_pinned(&pinned) && complete;
    ca_registry_total_t live = ca_registry_total(), lost = ca_registry_lost();
    const cachealloc_stats_t now = {
        .size = stats->size,
        .version = CACHEALLOC_STATS_VERSION,
        .incomplete = !complete,
        .alloc_calls = ca_counter_read(alloc_calls),
        .free_calls = ca_counter_read(free_calls),
        .hits = ca_counter_read(pool_hits),
        .misses = ca_counter_read(pool_misses),
        .upstream_allocs = ca_counter_read(upstream_allocs),
        .upstream_frees = ca_counter_read(upstream_frees),
        .live_bytes = live.bytes,
        .live_peak_bytes = ca_registry_peak_bytes(),
        .reserved_bytes = pool.reserved_bytes,
        .reserved_peak_bytes = pool.reserved_peak,
        .fence_records = ca_counter_read(fence_records),
        .fence_queries = ca_counter_read(fence_queries),
        .fence_waits = ca_counter_read(fence_waits),
        .live_allocations = live.count,
        .lost_allocations = lost.count,
        .lost_bytes = lost.bytes,
        .block_bytes = pool.live_bytes,
        .pending_bytes = pool.pending_bytes,
        .ready_bytes = pool.ready_bytes,
        .largest_ready_bytes = pool.largest_ready,
        .idle_bytes = pool.idle_bytes,
        .segments = pool.segments,
        .blocks = pool.blocks,
        .contexts = contexts,
        .splits = ca_counter_read(splits),
        .merges = ca_counter_read(merges),
        .passed_through = ca_counter_read(passed_through),
        .out_of_memory = ca_counter_read(out_of_memory),
        .wrong_frees = ca_counter_read(wrong_frees),
        .stacks = ca_stack_count(),
        .host_bytes = ca_mem_mapped(),
        .pinned_reserved_bytes = pinned.reserved_bytes,
        .pinned_reserved_peak_bytes = pinned.reserved_peak,
        .exported_bytes = pool.exported_bytes,
        .fence_joins = ca_counter_read(fence_joins),
    };
    ca_api_fill(stats, stats->size, &now, sizeof(now));
    return 0;
}

CA_PUBLIC size_t cachealloc_trim(void)
{
    size_t released = 0;
    ca_graph_memory_release();
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c))
        if (c->arena && atomic_load(&c->state) == CA_CONTEXT_SERVING)
            released += ca_arena_trim_as(c->arena, SIZE_MAX, CA_TRIM_ASKED);
        else if (atomic_load(&c->state) == CA_CONTEXT_SERVING)
            released += ca_backend_async_trim(c, CA_TRIM_ASKED);
    return released + ca_pinned_trim(SIZE_MAX);
}

CA_PUBLIC int cachealloc_set_pin_mode(int on)
{
    if (!ca_life_active())
        return ENOTSUP;
    ca_pin_mode_set(on != 0);
    return 0;
}

CA_PUBLIC int cachealloc_on_oom(cachealloc_oom_t wanted, void *arg)
{
    if (!ca_life_active())
        return ENOTSUP;
    ca_oom_set_function(wanted, arg);
    return 0;
}

CA_PUBLIC void cachealloc_mark(const char *name)
{
    if (name && ca_life_active())
        ca_marks_add(name);
}

CA_PUBLIC const char *cachealloc_version(void)
{
    return CACHEALLOC_VERSION;
}
