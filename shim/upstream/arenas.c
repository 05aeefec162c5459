#include "shim/upstream/arenas.h"
#include <errno.h>
#include <sched.h>
#include "pool/cache/cache.h"
#include "shim/upstream/upstream.h"

#define ARENAS_MOST 4u

/* As many as are useful, a power of two. */
static unsigned arenas_by_processors(void)
{
    cpu_set_t allowed;
    int saved = errno, processors = ARENAS_MOST;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        processors = CPU_COUNT(&allowed);
    errno = saved;
    unsigned arenas = 1;
    while (arenas < ARENAS_MOST && 2 * arenas <= (unsigned)processors)
        arenas *= 2;
    return arenas;
}

void ca_arenas_make(ca_context_t *context, const ca_arena_params_t *params, unsigned count)
{
    unsigned most = count;
    if (count == 0) {
        count = 1;
        most = arenas_by_processors();
    }
    if (most > 1)
        context->set = ca_arena_set_create(&ca_upstream_cuda, context, params, count, most);
    context->arena = context->set ? ca_arena_set_heap(context->set, 0)
                                  : ca_arena_create(&ca_upstream_cuda, context, params);
}

ca_arena_t *ca_arenas_at(const ca_context_t *context, unsigned index)
{
    if (index == 0)
        return context->arena;
    return context->set ? ca_arena_set_heap(context->set, index) : NULL;
}

void ca_arenas_retire_begin(ca_context_t *context)
{
    ca_arena_t *arena;
    for (unsigned i = 0; (arena = ca_arenas_at(context, i)); i++)
        ca_arena_retire_begin(arena);
}

void ca_arenas_retire_end(ca_context_t *context)
{
    ca_arena_t *arena;
    for (unsigned i = 0; (arena = ca_arenas_at(context, i)); i++)
        ca_arena_retire_end(arena);
}

void ca_arenas_retire(ca_context_t *context)
{
    ca_arenas_retire_begin(context);
    ca_arenas_retire_end(context);
}

bool ca_arenas_revive(ca_context_t *context)
{
    ca_arena_t *arena;
    for (unsigned i = 0; (arena = ca_arenas_at(context, i)); i++) {
        if (ca_arena_revive(arena))
            continue;
        while (i-- > 0)
            ca_arena_retire(ca_arenas_at(context, i));
        return false;
    }
    return true;
}

static int alloc(const ca_context_t *context, ca_stream_t *order, size_t bytes, bool ready_only,
                 ca_block_t **block, uint64_t *address, bool *reused)
{
    if (context->set)
        return ca_arena_set_alloc(context->set, order, bytes, ready_only, block, address, reused);
    return ready_only
               ? ca_arena_alloc_ready_on(context->arena, order, bytes, block, address, reused)
               : ca_arena_alloc_on(context->arena, order, bytes, block, address, reused);
}

int ca_arenas_alloc(const ca_context_t *context, ca_stream_t *order, size_t bytes, bool ready_only,
                    ca_block_t **block, uint64_t *address, bool *reused)
{
    size_t asked = bytes;
    if (order && !ca_stream_is_legacy(order)) {
        if (ca_cache_alloc_on(order, &bytes, block, address, reused) == 0)
            return 0;
    } else {
        ca_arena_t *home = context->set ? ca_arena_set_home(context->set) : context->arena;
        if (ca_cache_alloc(home, &bytes, ready_only, block, address, reused) == 0)
            return 0;
    }
    int rc = alloc(context, order, bytes, ready_only, block, address, reused);
    /* The ladder has tried everything but a block of exactly the requested size. */
    if (rc == -ENOMEM && bytes != asked &&
        alloc(context, order, asked, true, block, address, reused) == 0)
        return 0;
    return rc;
}

size_t ca_arenas_reserved(const ca_context_t *context, size_t *idle)
{
    ca_arena_t *arena;
    size_t reserved = 0;
    *idle = 0;
    for (unsigned i = 0; (arena = ca_arenas_at(context, i)); i++) {
        ca_arena_stats_t stats;
        ca_arena_stats(arena, &stats);
        reserved += stats.reserved_bytes;
        *idle += stats.idle_bytes;
    }
    return reserved;
}

size_t ca_arenas_trim(const ca_context_t *context, size_t bytes, ca_trim_t how)
{
    ca_arena_t *arena;
    size_t released = 0;
    if (how == CA_TRIM_SHORTAGE && context->set) /* no wait while another arena has enough */
        released = ca_arenas_trim(context, bytes, CA_TRIM_IDLE);
    for (unsigned i = 0; released < bytes && (arena = ca_arenas_at(context, i)); i++)
        released += ca_arena_trim_as(arena, bytes - released, how);
    return released;
}
