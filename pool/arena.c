/* The public functions: rounding, the hit path, free, trim, statistics. */
#include "pool/arena.h"

#include <errno.h>
#include <stdlib.h>
#include "config/counters.h"
#include "config/log.h"
#include "config/mutation.h"
#include "pool/grow.h"
#include "pool/ladder.h"
#include "pool/segment.h"
#include "pool/span.h"
#include "pool/state.h"

#define HARVEST_BY_FREE 2 /* epochs asked about by the free that closed one */

#if CA_DEBUG
#define CHECK_EVERY 4096 /* operations */
static void check_now_and_then(ca_arena_t *arena)
{
    const char *broken = arena->operations % CHECK_EVERY ? NULL : ca_check_locked(arena);

    if (broken) {
        ca_lock_drop(&arena->lock); /* nothing is written under a lock */
        ca_error("arena %p: %s", (const void *)arena, broken);
        abort();
    }
}
#else
static inline void check_now_and_then(ca_arena_t *arena)
{
    (void)arena;
}
#endif

ca_arena_t *ca_arena_create(const ca_upstream_t *upstream, void *context,
                            const ca_arena_params_t *params)
{
    ca_arena_t *arena = ca_mem_map(sizeof *arena);

    if (!arena)
        return NULL;
    ca_lock_init(&arena->lock, CA_RANK_ARENA);
    pthread_cond_init(&arena->grown, NULL);
    arena->upstream = upstream;
    arena->context = context;
    arena->params = *params;
    ca_slab_init(&arena->blocks, sizeof(ca_block_t));
    ca_slab_init(&arena->segment_slab, sizeof(ca_segment_t));
    ca_slab_init(&arena->epochs, sizeof(ca_epoch_t));
    arena->room = SIZE_MAX;
    arena->open = ca_slab_take(&arena->epochs);
    if (!arena->open) {
        ca_mem_unmap(arena, sizeof *arena);
        return NULL;
    }
    return arena;
}

/* What a request of `bytes` occupies. */
static size_t rounded(size_t bytes)
{
    return ca_round_up(bytes, bytes >= CA_PAGE_FROM ? CA_PAGE : CA_GRANULE);
}

/* Under the lock: `block` becomes the caller's. */
static void hand_out(ca_block_t *found, ca_block_t **block, uint64_t *address, bool *reused)
{
    *block = found;
    *address = found->address;
    if (reused)
        *reused = found->touched;
    found->touched = true;
}

int ca_arena_alloc_ready(ca_arena_t *arena, size_t bytes, ca_block_t **block, uint64_t *address,
                         bool *reused)
{
    if (bytes > CA_BYTES_MOST)
        return -EAGAIN;
    size_t size = rounded(bytes ? bytes : 1);

    ca_lock_take(&arena->lock);
    arena->operations++;
    check_now_and_then(arena);
    ca_block_t *found = ca_arena_serving(arena) ? ca_block_take(arena, size, CA_BIN_LOOK) : NULL;
    if (found)
        hand_out(found, block, address, reused);
    ca_lock_drop(&arena->lock);

    if (!found)
        return -EAGAIN;
    ca_count(pool_hits);
    return 0;
}

int ca_arena_alloc(ca_arena_t *arena, size_t bytes, ca_block_t **block, uint64_t *address,
                   bool *reused)
{
    if (bytes > CA_BYTES_MOST)
        return -ENOMEM;
    size_t size = rounded(bytes ? bytes : 1);
    bool grown = false;
    int rc = 0;

    ca_lock_take(&arena->lock);
    arena->operations++;
    check_now_and_then(arena);
    ca_block_t *found = ca_arena_serving(arena) ? ca_block_take(arena, size, CA_BIN_LOOK) : NULL;
    if (!found)
        rc = ca_ladder_climb(arena, size, &found, &grown);
    if (rc == 0)
        hand_out(found, block, address, reused);
    ca_lock_drop(&arena->lock);

    if (grown)
        ca_count(pool_misses);
    else if (rc == 0)
        ca_count(pool_hits);
    return rc;
}

void ca_arena_free(ca_block_t *block)
{
    ca_arena_t *arena = block->segment->arena;

    ca_lock_take(&arena->lock);
    if (!arena->retired && block->state == CA_BLOCK_LIVE) {
        arena->operations++;
        arena->frees++;
        block->state = CA_BLOCK_PENDING;
        block->segment->live_blocks--;
        arena->live -= block->bytes;
        arena->pending += block->bytes;
        if (CA_MUTATED(reuse_pending)) {
            arena->pending -= block->bytes;
            ca_block_ready(arena, block);
        } else {
            ca_epoch_push(arena, block);
        }
        check_now_and_then(arena);
        if (ca_epoch_due(arena)) {
            ca_epoch_close(arena, CA_BY_FREE);
            /* The newest fence was recorded this instant: not worth a query. */
            if (arena->closed.count > 1)
                ca_epoch_harvest(arena, HARVEST_BY_FREE, false);
        }
    }
    ca_lock_drop(&arena->lock);
}

void ca_arena_retire(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    if (!arena->retired) {
        arena->retired = true;
        for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
            ca_span_remove(segment->base, segment->bytes);
        pthread_cond_broadcast(&arena->grown);
    }
    ca_lock_drop(&arena->lock);
}

size_t ca_arena_trim(ca_arena_t *arena, size_t bytes)
{
    ca_lock_take(&arena->lock);
    ca_epoch_harvest(arena, SIZE_MAX, true);
    bool none_before = !arena->closed.head;
    ca_epoch_close(arena, CA_BY_ALLOC);
    if (none_before)
        ca_epoch_harvest(arena, SIZE_MAX, true);
    size_t given = ca_give_back(arena, bytes, CA_GIVE_IDLE);
    ca_lock_drop(&arena->lock);
    return given;
}

ca_arena_t *ca_block_arena(const ca_block_t *block)
{
    return block->segment->arena;
}

void *ca_arena_context(const ca_arena_t *arena)
{
    return arena->context;
}

bool ca_arena_stopped(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    bool stopped = arena->stopped;
    ca_lock_drop(&arena->lock);
    return stopped;
}

void ca_arena_stats(ca_arena_t *arena, ca_arena_stats_t *stats)
{
    ca_lock_take(&arena->lock);
    *stats =
        (ca_arena_stats_t){.reserved_peak = arena->reserved_peak, .live_peak = arena->live_peak};
    if (!arena->retired) {
        size_t split = ca_bins_largest(&arena->bins[0]),
               oversize = ca_bins_largest(&arena->bins[1]);
        stats->reserved_bytes = arena->reserved;
        stats->live_bytes = arena->live;
        stats->pending_bytes = arena->pending;
        stats->ready_bytes = arena->ready;
        stats->largest_ready = split > oversize ? split : oversize;
        stats->segments = arena->segment_count;
        stats->blocks = arena->blocks.live;
        stats->epochs = arena->closed.count;
        for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
            stats->idle_bytes += segment->live_blocks ? 0 : segment->bytes;
    }
    ca_lock_drop(&arena->lock);
}
