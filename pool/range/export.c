/* See export.h. */
#include "pool/range/export.h"

#include "pool/fence/epoch.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"

_Atomic bool ca_export_dedicating, ca_export_own_pool;

/* Of the program's requests: for whole segment units, and those of them that were freed; others. */
static _Atomic size_t whole, freed, others;

void ca_pool_dedicate(bool on)
{
    atomic_store(&ca_export_dedicating, on);
}

static bool has_pool(void)
{
    return atomic_load_explicit(&ca_export_own_pool, memory_order_relaxed);
}

static inline void review(void)
{
    size_t pieces = atomic_load(&whole), at_first = pieces;

    if (at_first > CA_EXPORT_OTHERS)
        at_first = CA_EXPORT_OTHERS;
    bool own = atomic_load(&freed) <= CA_EXPORT_OTHERS + pieces / 2 &&
               atomic_load(&others) <= at_first + pieces / CA_EXPORT_OTHERS;
    if (own != has_pool())
        atomic_store(&ca_export_own_pool, own);
}

void ca_pool_note_request(size_t bytes)
{
    if (atomic_load_explicit(&others, memory_order_relaxed) >= CA_EXPORT_OTHERS_MOST)
        return;
    bool piece = bytes % CA_SEGMENT_UNIT == 0;
    atomic_fetch_add(piece ? &whole : &others, 1);
    if (piece != has_pool()) /* only then may that change */
        review();
}

void ca_pool_note_free(size_t bytes)
{
    if (bytes % CA_SEGMENT_UNIT != 0 ||
        atomic_load_explicit(&others, memory_order_relaxed) >= CA_EXPORT_OTHERS_MOST)
        return;
    atomic_fetch_add(&freed, 1);
    if (has_pool())
        review();
}

void ca_pool_reset_requests(void)
{
    atomic_store(&whole, 0);
    atomic_store(&freed, 0);
    atomic_store(&others, 0);
    atomic_store(&ca_export_own_pool, false);
}

/* The blocks that may be meant; see export.h. Other threads may be freeing theirs. No cache takes
 * what has no class. */
static void mark(ca_segment_t *segment)
{
    segment->exported = true;
    for (ca_block_t *block = segment->first; block; block = ca_block_upper(block)) {
        if (ca_block_state(block) != CA_BLOCK_LIVE)
            continue;
        __atomic_store_n(&block->exported, true, __ATOMIC_RELAXED);
        ca_block_bar_fast_path(block);
    }
}

bool ca_export_reclaim(ca_arena_t *arena)
{
    bool any = arena->exported > 0;

    for (ca_segment_t *segment = any ? arena->segments : NULL; segment; segment = segment->next)
        for (ca_block_t *block = segment->exported ? segment->first : NULL; block;
             block = ca_block_upper(block)) {
            if (ca_block_state(block) != CA_BLOCK_EXPORTED)
                continue;
            arena->exported -= ca_block_size(block);
            arena->pending += ca_block_size(block);
            block->state = CA_BLOCK_PENDING;
            block->exported = false;
            ca_epoch_push(arena, &arena->plain_fences, block);
            ca_epoch_freed_by(arena->plain_fences.open, CA_BY_SEVERAL);
        }
    return any;
}

/* `also`: marks it. */
static ca_export_t export_at(uint64_t address, bool also)
{
    ca_arena_t *arena = ca_span_lock(address);
    ca_export_t what = CA_EXPORT_NONE;

    if (arena) {
        /* A retired arena has no segments; one that was given back meanwhile is not in the list. */
        ca_segment_t *segment = ca_segment_at(arena, address);
        if (segment) {
            ca_block_t *block = ca_segment_block_at(segment, address);
            what = block && block != segment->first ? CA_EXPORT_INTERIOR : CA_EXPORT_BASE;
            if (also)
                mark(segment);
        }
        ca_lock_drop(&arena->lock);
    }
    return what;
}

ca_export_t ca_pool_export(uint64_t address)
{
    return export_at(address, true);
}

ca_export_t ca_pool_exports(uint64_t address)
{
    return export_at(address, false);
}
