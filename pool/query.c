/* Questions about addresses. */
#include "pool/arena.h"

#include "pool/blocks/segment.h"
#include "pool/blocks/span.h"
#include "pool/state.h"

uint64_t ca_arena_address(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    uint64_t address = arena->segments ? arena->segments->base : 0;
    ca_lock_drop(&arena->lock);
    return address;
}

ca_arena_t *ca_span_lock(uint64_t address)
{
    ca_arena_t *arena = ca_span_arena(address);

    if (arena)
        ca_lock_take(&arena->lock);
    return arena;
}

ca_pool_place_t ca_pool_place(uint64_t address)
{
    ca_arena_t *arena = ca_span_lock(address);
    ca_pool_place_t place = {0};

    if (!arena)
        return place;
    /* A retired arena has no segments; one that was given back meanwhile is not in the list. */
    const ca_segment_t *segment = ca_segment_at(arena, address);
    const ca_block_t *block = segment ? ca_segment_block_at(segment, address) : NULL;
    ca_block_state_t state = block ? ca_block_state(block) : 0;
    place.segment = segment ? segment->base : 0;
    if (state == CA_BLOCK_LIVE || state == CA_BLOCK_CACHED) {
        place.block = block->address;
        place.bytes = ca_block_size(block);
        place.cached = state == CA_BLOCK_CACHED;
        place.payload = __atomic_load_n(&block->record.payload[3], __ATOMIC_RELAXED);
        place.context = arena->context;
        place.host = arena->params.host;
    }
    ca_lock_drop(&arena->lock);
    return place;
}

uint64_t ca_pool_block_at(uint64_t address)
{
    ca_pool_place_t place = ca_pool_place(address);

    return place.cached ? 0 : place.block;
}
