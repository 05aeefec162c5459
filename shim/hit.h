/* Hits: allocations and frees that the calling thread's stock serves (pool/cache.h), in one piece
 * and in as few instructions as it takes. They do what the general way does (device_memory.c,
 * pinned_memory.c, track.c), for what is plain; false means that nothing has changed, and that the
 * general way is to be gone. Whatever is rare, and whatever an option asks for, is not plain.
 *
 * No lock, no system call, and of the driver only cuCtxGetCurrent. */
#ifndef CA_SHIM_HIT_H
#define CA_SHIM_HIT_H

#include "config/counters.h"
#include "config/inline.h"
#include "config/options.h"
#include "pool/cache_hit.h"
#include "registry/hit.h"
#include "shim/attributes.h"
#include "shim/contexts.h"
#include "shim/driver_table.h"
#include "shim/life.h"
#include "shim/track.h"

typedef enum {
    CA_HITS_DRIVER = 1,
    CA_HITS_RUNTIME = 2, /* in lane R */
} ca_hits_t;

/* Whether hits are allowed; never in the child of a fork. */
CA_INLINE bool ca_hits_allowed(ca_hits_t lane)
{
    return atomic_load_explicit(&ca_life_get_page()->hits, memory_order_relaxed) & lane;
}

/* Something changed that decides about that. */
void ca_hit_settle(void);

/* The first record of a block. Takes the index's lock. */
bool ca_hit_note_first(ca_block_t *block, ca_hit_t hit);

/* NULL where none is, and where the driver cannot tell. */
CA_INLINE CUcontext ca_hit_context(void)
{
    CUcontext handle = NULL;
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    return get && get(&handle) == CUDA_SUCCESS ? handle : NULL;
}

CA_INLINE bool ca_hit_broken(const ca_context_t *context)
{
    return __builtin_expect(atomic_load_explicit(&context->broken, memory_order_relaxed) != 0, 0);
}

CA_INLINE bool ca_hit_take(ca_hits_t lane, const ca_context_t *context, const ca_arena_t *arena,
                           ca_kind_t kind, size_t bytes, uint64_t *address)
{
    ca_cache_t *cache = arena ? ca_cache_memo(arena) : NULL;
    ca_tally_t *tally = ca_tally_mine;
    size_t class_bytes;
    if (!cache || !tally || bytes - 1 >= cache->most || ca_hit_broken(context))
        return false;
    unsigned index = ca_cache_class_of(ca_round_up(bytes, cache->granule), &class_bytes);
    /* Here, since other threads may wait for whoever is inside the cache. */
    uint32_t stack = ca_options.stacks == CA_STACKS_OFF ? 0 : ca_track_stack();
    uint32_t thread = ca_track_thread();
    if (!ca_cache_enter(cache))
        return false;
    ca_block_t *block = ca_cache_take(cache, index);
    if (!block) {
        ca_cache_leave_hit(cache);
        return false;
    }
    ca_block_touch(block);
    const ca_hit_t hit = {
        .bytes = bytes,
        .kind = kind,
        .device = context->device,
        .context = context->number,
        .owner = block,
        .stack = stack,
        .thread = thread,
    };
    *address = block->address;
    bool noted = ca_registry_insert_again(&block->slot, hit, tally);
    ca_cache_leave_hit(cache);
    if (__builtin_expect(!noted, 0) && !ca_hit_note_first(block, hit))
        return false;
    /* A context that is retired drops its records once: one that comes later goes by itself. */
    if (__builtin_expect(atomic_load(&context->state) == CA_CONTEXT_RETIRED, 0))
        ca_track_dropped(context, *address);
    ca_tally_count(tally, pool_hits);
    ca_tally_count(tally, alloc_calls);
    if (lane == CA_HITS_RUNTIME)
        ca_tally_count(tally, lane_r_allocs);
    return true;
}

/* These count the call. If ca_hits_allowed. */
CA_INLINE bool ca_hit_alloc(ca_hits_t lane, size_t bytes, uint64_t *address)
{
    ca_context_t *context = ca_context_again(ca_hit_context());
    return context && !context->shards &&
           ca_hit_take(lane, context, context->arena, CA_KIND_DEVICE, bytes, address);
}

CA_INLINE bool ca_hit_alloc_pinned(ca_hits_t lane, size_t bytes, unsigned flags, uint64_t *address)
{
    ca_context_t *context = ca_context_again(ca_hit_context());
    return context && flags < CA_PINNED_KINDS &&
           ca_hit_take(lane, context,
                       atomic_load_explicit(&context->pinned[flags], memory_order_acquire),
                       CA_KIND_PINNED, bytes, address);
}

/* Puts the block of a slot that is locked into the cache, or leaves all as it is. */
CA_INLINE bool ca_hit_put(ca_hits_t lane, ca_slot_t *slot, uint64_t word, bool pinned,
                          ca_cache_t **due)
{
    ca_block_t *block = (ca_block_t *)(void *)slot; /* it begins with it */
    ca_arena_t *arena = __atomic_load_n(&block->arena, __ATOMIC_RELAXED);
    ca_cache_t *cache = arena ? ca_cache_memo(arena) : NULL;
    ca_tally_t *tally = ca_tally_mine;
    size_t class_bytes, bytes = ca_block_size_unlocked(block);
    if (!tally || ca_slot_shared(slot) || (ca_slot_kind(slot) == CA_KIND_PINNED) != pinned ||
        !cache || bytes - 1 >= CA_CACHE_MOST || ca_hit_broken(cache->context))
        return false;
    unsigned index = ca_cache_class_of(bytes, &class_bytes);
    if (class_bytes != bytes || !ca_cache_enter(cache))
        return false;
    bool takes = ca_cache_takes(cache, index, block, bytes);
    if (takes) {
        /* In this order: who is given the memory next finds nothing known of it. */
        ca_registry_erase_held(slot, word, tally);
        ca_cache_put(cache, index, block);
        ca_tally_count(tally, free_calls);
        if (lane == CA_HITS_RUNTIME)
            ca_tally_count(tally, lane_r_frees);
        *due = ca_cache_due(cache) ? cache : NULL;
    }
    ca_cache_leave_hit(cache);
    return takes;
}

CA_INLINE bool ca_hit_take_back(ca_hits_t lane, uint64_t address, bool pinned)
{
    uint64_t word;
    ca_cache_t *due = NULL;
    if (!ca_hit_context())
        return false;
    ca_slot_t *slot = ca_registry_hold(address, &word);
    if (!slot)
        return false;
    if (__builtin_expect(!ca_hit_put(lane, slot, word, pinned, &due), 0)) {
        ca_registry_release_held(slot, word);
        return false;
    }
    if (__builtin_expect(due != NULL, 0))
        ca_cache_close_epoch(due);
    return true;
}

/* Of cuMemFree, and of the runtime's above it; then of pinned memory. */
CA_INLINE bool ca_hit_free(ca_hits_t lane, uint64_t address)
{
    return ca_hit_take_back(lane, address, false);
}

CA_INLINE bool ca_hit_free_pinned(ca_hits_t lane, uint64_t address)
{
    return ca_hit_take_back(lane, address, true);
}

#endif
