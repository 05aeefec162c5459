/* Hits: allocations and frees that the calling thread's stock serves (pool/cache/cache.h), in one
 * piece and in as few instructions as it takes. They do what the general way does (device_memory.c,
 * pinned_memory.c, track.c), for what is plain; false means that nothing has changed, and that the
 * general way is to be gone. Whatever is rare, and whatever an option asks for, is not plain.
 *
 * No lock, no system call, and of the driver only cuCtxGetCurrent. */
#ifndef CA_SHIM_ALLOC_FAST_PATH_H
#define CA_SHIM_ALLOC_FAST_PATH_H

#include "base/counters.h"
#include "base/inline.h"
#include "base/thread_state.h"
#include "config/options.h"
#include "pool/cache/cache_hit.h"
#include "registry/table/fast_path.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/track.h"

/* Something changed that decides whether there may be hits, or that threads rely on in theirs: what
 * they have at hand holds no more. */
void ca_fast_invalidate(void);

/* After a call that was no hit: the next one of this api, or below, may be. */
void ca_fast_remember(ca_api_t api);

/* The first record of a block. Takes the index's lock. Where it cannot be had the hit is none, and
 * not counted. */
bool ca_fast_note_first(ca_api_t api, ca_block_t *block, uint64_t bytes, ca_kind_t kind,
                        uint32_t stack);

/* What is rare at the end of a free: it has more to spare than it may keep, or a cache whose epoch
 * is to be closed. Last of all, so that the rest calls nothing and has no register to save. */
void ca_fast_finish_free(ca_thread_counts_t *tally, uint64_t spare, ca_cache_t *due);

/* What no cache keeps, by one visit to the thread's heap: as it is there, or its fence has passed.
 * 0, or -EAGAIN where that has none, or -ENOENT where this was not the way to ask. */
int ca_fast_alloc_large(ca_api_t api, size_t bytes, uint64_t *address);

/* The same for a free, of a slot that is locked by that word, and is not any more. False where
 * nothing has changed. */
bool ca_fast_free_large(ca_api_t api, ca_record_t *slot, uint64_t word, ca_kind_t kind);

/* Whether this thread has hits at hand. Never in the child of a fork. */
CA_INLINE bool ca_fast_ready(ca_api_t api)
{
    return ca_thread.generations[api] ==
           atomic_load_explicit(&ca_life_page.generation, memory_order_relaxed);
}

/* The current context's handle, which may be NULL. False where the driver cannot tell. */
CA_INLINE bool ca_fast_context(CUcontext *handle)
{
    ca_lock_assert_none("driver call");
    __typeof__(cuCtxGetCurrent) *get = (__typeof__(cuCtxGetCurrent) *)ca_thread.get_current;
    return get(handle) == CUDA_SUCCESS;
}

/* All of a hit of at most `most` bytes that calls out, where hits are ready; since nothing may
 * inside the cache: other threads may wait for whoever is there. The current context first: what is
 * worked out after it need not be saved over that call. */
CA_INLINE bool ca_fast_begin(size_t bytes, size_t most, uint32_t *stack)
{
    CUcontext handle;
    if (bytes - 1 >= most)
        return false;
    if (!ca_fast_context(&handle) || handle != ca_thread.handle)
        return false;
    ca_live_ready(ca_thread.tally, bytes);
    *stack = ca_track_stack_of(bytes);
    return true;
}

CA_INLINE bool ca_fast_take(ca_api_t api, ca_cache_t *cache, ca_kind_t kind, size_t bytes,
                            uint32_t stack, uint64_t *address)
{
    ca_thread_counts_t *tally = ca_thread.tally;
    CA_KEEP_IN_REGISTER(bytes); /* nothing worked out of it is saved over the driver's call */
    size_t index = ca_cache_class_for(cache, bytes);
    if (!ca_cache_enter(cache))
        return false;
    ca_block_t *block = ca_cache_take(cache, index, NULL);
    if (!block) {
        ca_cache_leave_hit(cache);
        return false;
    }
    bool noted =
        ca_registry_insert_again(&block->slot, &ca_thread.origin, kind, bytes, block, stack, tally);
    *address = block->address;
    /* A context that is retired drops its records after it has shut the caches. */
    ca_cache_leave_hit(cache);
    ca_thread_counts_add(&tally->hit_allocs[api], 1);
    return __builtin_expect(noted, 1) || ca_fast_note_first(api, block, bytes, kind, stack);
}

/* These count the call. False where nothing has changed. */
CA_INLINE bool ca_fast_alloc(ca_api_t api, size_t bytes, uint64_t *address)
{
    uint32_t stack;
    return ca_fast_ready(api) && ca_fast_begin(bytes, ca_thread.cache_most, &stack) &&
           ca_fast_take(api, ca_thread.cache, CA_KIND_DEVICE, bytes, stack, address);
}

/* In front of the current context's heap of such memory, or NULL. */
CA_INLINE ca_cache_t *ca_fast_pinned_cache(unsigned flags)
{
    if (__builtin_expect(ca_thread.pinned_arena && ca_thread.pinned_flags == flags, 1))
        return ca_thread.pinned_cache;
    const ca_arena_t *arena =
        atomic_load_explicit(&ca_thread.context->pinned[flags], memory_order_acquire);
    ca_cache_t *cache = arena ? ca_cache_memo(arena) : NULL;
    if (!cache || !cache->simple)
        return NULL;
    ca_thread.pinned_arena = arena;
    ca_thread.pinned_cache = cache;
    ca_thread.pinned_flags = flags;
    return cache;
}

CA_INLINE bool ca_fast_alloc_pinned(ca_api_t api, size_t bytes, unsigned flags, uint64_t *address)
{
    uint32_t stack;
    if (flags >= CA_PINNED_KINDS || !ca_fast_ready(api) ||
        !ca_fast_begin(bytes, CA_CACHE_MOST, &stack))
        return false;
    ca_cache_t *cache = ca_fast_pinned_cache(flags);
    return cache && ca_fast_take(api, cache, CA_KIND_PINNED, bytes, stack, address);
}

/* The thread's cache for a block of another heap than the current context's, or NULL. */
CA_INLINE ca_cache_t *ca_fast_other_cache(const ca_arena_t *arena)
{
    if (__builtin_expect(arena && arena == ca_thread.pinned_arena, 1))
        return ca_thread.pinned_cache;
    ca_cache_t *cache = arena ? ca_cache_memo(arena) : NULL;
    const ca_context_t *context = cache ? cache->context : NULL;
    return context && !atomic_load_explicit(&context->broken, memory_order_relaxed) &&
                   atomic_load_explicit(&context->state, memory_order_relaxed) == CA_CONTEXT_SERVING
               ? cache
               : NULL;
}

/* The cache in front of the block's heap, entered, where that is none that is at hand. */
CA_INLINE ca_cache_t *ca_fast_enter_other(const ca_block_t *block)
{
    const ca_arena_t *arena = __atomic_load_n(&block->arena, __ATOMIC_RELAXED);
    ca_cache_t *cache = ca_fast_other_cache(arena);
    return cache && ca_cache_enter_with(cache, block) ? cache : NULL;
}

/* Puts the block of a slot that is locked into a cache, or leaves all as it is. */
CA_INLINE bool ca_fast_put(ca_record_t *slot, uint64_t word, ca_kind_t kind, ca_cache_t **into,
                           bool *due)
{
    ca_block_t *block = (ca_block_t *)(void *)slot; /* it begins with it */
    ca_cache_t *cache = ca_thread.cache;
    size_t mark = ca_cache_mark_of(block);
    if (!ca_record_plain(slot, kind) || !ca_cache_has_class(mark))
        return false;
    if ((kind == CA_KIND_PINNED || !ca_cache_enter_with(cache, block)) &&
        !(cache = ca_fast_enter_other(block)))
        return false;
    bool taken = ca_cache_put(cache, mark - 1, block, due);
    if (__builtin_expect(taken, 1)) /* first: who is given the memory next finds nothing known */
        ca_registry_erase_held(slot, word);
    ca_cache_leave_hit(cache);
    *into = cache;
    return taken;
}

/* Where it is no hit, `*address` is what it was: but read from the slot, so that no register has to
 * hold it until then. */
CA_INLINE bool ca_fast_take_back(ca_api_t api, uint64_t *address, ca_kind_t kind)
{
    uint64_t word;
    CUcontext handle;
    ca_cache_t *cache;
    bool due;
    if (!ca_fast_ready(api))
        return false;
    ca_record_t *slot = ca_registry_find_unlocked(*address, &word);
    if (!slot)
        return false;
    /* The driver's function may be called by a thread without a context, which takes the other way.
     * The runtime's has one: what is at hand was filled in with one, and forgotten with the last
     * (driver/contexts.c). */
    if (api == CA_API_DRIVER && (!ca_fast_context(&handle) || !handle))
        return false;
    if (!ca_record_lock(slot, word))
        return false;
    uint32_t bytes = (uint32_t)ca_record_bytes(slot); /* no class has larger ones */
    if (__builtin_expect(!ca_fast_put(slot, word, kind, &cache, &due), 0)) {
        *address = ca_record_address(slot);
        return ca_fast_free_large(api, slot, word, kind);
    }
    ca_thread_counts_t *tally = ca_thread.tally;
    ca_thread_counts_add(&tally->hit_frees[api], 1);
    uint64_t spare = ca_live_credit_with(tally, bytes);
    if (__builtin_expect(due || spare > tally->spare_most, 0))
        ca_fast_finish_free(tally, spare, due ? cache : NULL);
    else
        ca_live_set_credit(tally, spare);
    return true;
}

/* Of cuMemFree, and of the runtime's above it; then of pinned memory. */
CA_INLINE bool ca_fast_free(ca_api_t api, uint64_t *address)
{
    return ca_fast_take_back(api, address, CA_KIND_DEVICE);
}

CA_INLINE bool ca_fast_free_pinned(ca_api_t api, uint64_t *address)
{
    return ca_fast_take_back(api, address, CA_KIND_PINNED);
}

#endif
