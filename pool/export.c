/* See export.h. */
#include "pool/export.h"

#include "pool/epoch.h"
#include "pool/segment.h"
#include "pool/span.h"
#include "pool/state.h"

_Atomic bool ca_export_dedicating;

void ca_pool_dedicate(bool on)
{
    atomic_store(&ca_export_dedicating, on);
}

/* Other threads may be freeing theirs. No cache takes what has no class. */
static void export_block(ca_block_t *block)
{
    __atomic_store_n(&block->exported, true, __ATOMIC_RELAXED);
    ca_block_bar_hits(block);
}

/* The blocks that are meant; see export.h. */
static void mark(ca_segment_t *segment, ca_block_t *at, uint64_t address)
{
    segment->exported = true;
    if (at && ca_block_state(at) == CA_BLOCK_LIVE && at->address == address &&
        at != segment->first) {
        export_block(at);
        return;
    }
    for (ca_block_t *block = segment->first; block; block = ca_block_upper(block))
        if (ca_block_state(block) == CA_BLOCK_LIVE)
            export_block(block);
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
            ca_epoch_push(arena, &arena->whole, block);
            ca_epoch_freed_by(arena->whole.open, CA_BY_SEVERAL);
        }
    return any;
}

ca_export_t ca_pool_export(uint64_t address)
{
    ca_arena_t *arena = ca_span_lock(address);
    ca_export_t what = CA_EXPORT_NONE;

    if (arena) {
        /* A retired arena has no segments; one that was given back meanwhile is not in the list. */
        ca_segment_t *segment = ca_segment_at(arena, address);
        if (segment) {
            ca_block_t *block = ca_segment_block_at(segment, address);
            mark(segment, block, address);
            what = block && block != segment->first ? CA_EXPORT_INTERIOR : CA_EXPORT_BASE;
        }
        ca_lock_drop(&arena->lock);
    }
    return what;
}
