/* See apart.h. */
#include "pool/blocks/apart.h"

#include <stdint.h>

/* Others read it without the lock. */
static void set_small(ca_arena_t *arena, size_t bytes)
{
    if (bytes > arena->params.max_split)
        bytes = arena->params.max_split;
    if (arena->params.small < bytes)
        __atomic_store_n(&arena->params.small, bytes, __ATOMIC_RELAXED);
}

void ca_apart_small(ca_arena_t *arena)
{
    set_small(arena, CA_APART_SMALL);
}

void ca_apart_refused(ca_arena_t *arena, size_t bytes)
{
    size_t pieces = 0;

    if (arena->apart || arena->range) /* pages go back whatever lives beside them */
        return;
    for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
        pieces += segment->live_blocks ? segment->bytes - segment->live : 0;
    if (pieces < bytes)
        return;
    /* Others read it without the lock. A `max_split` that was chosen stays as it is. */
    if (arena->params.max_split == SIZE_MAX) {
        __atomic_store_n(&arena->params.max_split, CA_SEGMENT_UNIT - 1, __ATOMIC_RELAXED);
        arena->apart = true;
    }
    set_small(arena, CA_SEGMENT_UNIT - 1);
}
