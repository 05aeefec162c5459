/* Questions about single blocks. */
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

/* In that state, or NULL. Under the arena's lock. */
static const ca_block_t *block_at(const ca_arena_t *arena, uint64_t address, ca_block_state_t state)
{
    /* A retired arena has no segments; one that was given back meanwhile is not in the list. */
    const ca_segment_t *segment = ca_segment_at(arena, address);
    const ca_block_t *block = segment ? ca_segment_block_at(segment, address) : NULL;
    return block && ca_block_state(block) == state ? block : NULL;
}

uint64_t ca_pool_block_at(uint64_t address)
{
    ca_arena_t *arena = ca_span_lock(address);
    uint64_t start = 0;

    if (!arena)
        return 0;
    const ca_block_t *block = block_at(arena, address, CA_BLOCK_LIVE);
    if (block)
        start = block->address;
    ca_lock_drop(&arena->lock);
    return start;
}

uint64_t ca_pool_segment_at(uint64_t address)
{
    ca_arena_t *arena = ca_span_lock(address);
    uint64_t base = 0;

    if (!arena)
        return 0;
    const ca_segment_t *segment = ca_segment_at(arena, address);
    if (segment)
        base = segment->base;
    ca_lock_drop(&arena->lock);
    return base;
}

bool ca_pool_cached_at(uint64_t address, ca_pool_cached_t *cached)
{
    ca_arena_t *arena = ca_span_lock(address);

    if (!arena)
        return false;
    const ca_block_t *block = block_at(arena, address, CA_BLOCK_CACHED);
    if (block)
        *cached = (ca_pool_cached_t){
            .address = block->address,
            .bytes = ca_block_size(block),
            .payload = __atomic_load_n(&block->record.payload[3], __ATOMIC_RELAXED),
            .context = arena->context,
            .host = arena->params.host,
        };
    ca_lock_drop(&arena->lock);
    return block != NULL;
}
