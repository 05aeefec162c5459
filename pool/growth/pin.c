/* Pin mode; see pin.h.
 *
 * A program that replays recorded work hands the same addresses to the device again and again. What
 * it frees and asks for again must be where it was: so nothing merges, and nothing leaves. */
#include "pool/growth/pin.h"

#include <limits.h>
#include "pool/cache/cache.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"
#include "pool/range/view.h"

void ca_arena_pin(ca_arena_t *arena, bool on)
{
    ca_lock_take(&arena->lock);
    ca_blocks_merge(arena);
    if (on)
        arena->pins++;
    else if (arena->pins)
        arena->pins--;
    ca_caches_review(arena);
    ca_lock_drop(&arena->lock);
}

void ca_pin_merge(ca_arena_t *arena)
{
    ca_blocks_merge(arena);
    if (!arena->unmerged)
        return;
    ca_view_merge(arena);
    for (ca_segment_t *segment = arena->segments; segment; segment = segment->next)
        ca_segment_merge(arena, segment);
    arena->unmerged = false;
}

ca_block_t *ca_pin_take(ca_arena_t *arena, size_t bytes)
{
    if (!arena->unmerged)
        return NULL;
    ca_view_merge(arena);
    for (ca_segment_t *segment = arena->segments; segment; segment = segment->next) {
        ca_block_t *block = NULL;
        if (ca_segment_merge(arena, segment))
            block = ca_block_take(arena, bytes, UINT_MAX);
        if (block)
            return block;
    }
    arena->unmerged = false;
    return NULL;
}
