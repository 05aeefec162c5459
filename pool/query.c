/* Questions about single blocks. */
#include "pool/arena.h"

#include "pool/segment.h"
#include "pool/span.h"
#include "pool/state.h"

size_t ca_block_bytes(ca_block_t *block)
{
    ca_arena_t *arena = ca_block_arena(block);
    size_t bytes = 0;

    if (!arena)
        return 0; /* its context is gone */
    ca_lock_take(&arena->lock);
    if (!arena->retired && ca_block_state(block) == CA_BLOCK_LIVE)
        bytes = ca_block_size(block);
    ca_lock_drop(&arena->lock);
    return bytes;
}

uint64_t ca_pool_block_at(uint64_t address)
{
    ca_arena_t *arena = ca_span_arena(address);
    uint64_t start = 0;

    if (!arena)
        return 0;
    ca_lock_take(&arena->lock);
    /* A retired arena has no segments; one that was given back meanwhile is not in the list. */
    const ca_segment_t *segment = ca_segment_at(arena, address);
    const ca_block_t *block = segment ? ca_segment_block_at(segment, address) : NULL;
    if (block && ca_block_state(block) == CA_BLOCK_LIVE)
        start = block->address;
    ca_lock_drop(&arena->lock);
    return start;
}
