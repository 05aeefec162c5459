/* The fast path: allocations and frees that the calling thread's cache serves, without a lock or a
 * system call; of the driver it calls cuCtxGetCurrent alone. It does what the slow path does
 * (device_memory.c, pinned_memory.c, track.c), for what is plain: whatever is rare, and whatever an
 * option asks for, is not. False means that nothing has changed and that the slow path serves.
 *
 *   cudaMalloc                                cudaFree
 *     the thread's state holds                  the thread's state holds
 *     the driver's context is the same          an optimistic look-up finds the record
 *     the call stack is recognised              the record is locked by its state word
 *     the cache is entered                      the cache is entered
 *     a ready block is taken out                the block is put in
 *     its record becomes live                   its record stops being live
 *     the cache is left                         the cache is left
 *     the call is counted                       the call and its bytes are counted
 *
 * It stands on three contracts, each with its terms at the top of its file:
 *   - thread state (base/thread_state.h): what the thread remembers holds while its generation is
 *     the process's (shim/cuda/life_state.h), which is odd while the fast path is allowed;
 *   - record state (registry/table/fast_path.h): a record is the first member of its block;
 *   - thread cache (pool/cache/cache_hit.h): between enter and leave the cache is this thread's.
 *
 * Instructions are counted (tests/test_bench.py): one look-up of each thing, and nothing worked out
 * before the driver's call that would have to be saved over it. */
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

/* --- rare parts, out of line (fast_path.c) ------------------------------------------------------
 */

/* After a call of the slow path: the next one of this API, or below, may be fast. */
void ca_fast_remember(ca_api_t api);

/* The first record of a block: takes the index's lock. False where it cannot be had: then the call
 * is not served and not counted. */
bool ca_fast_note_first(ca_api_t api, ca_block_t *block, uint64_t bytes, ca_kind_t kind,
                        uint32_t stack);

/* The end of a free whose thread has more local credit than it may keep, or of which a cache's
 * epoch is due to close. It comes last: the rest then calls nothing and saves no register. */
void ca_fast_finish_free(ca_thread_counts_t *counts, uint64_t credit, ca_cache_t *due);

/* What no cache keeps, by one visit to the context's arena: a block that is ready, or whose
 * fence has passed. 0, or -EAGAIN where the arena has none, or -ENOENT where the call is not plain.
 */
int ca_fast_alloc_large(ca_api_t api, size_t bytes, uint64_t *address);

/* The same for a free, of a record that is locked by that state and is not any more afterwards.
 * False where nothing has changed. */
bool ca_fast_free_large(ca_api_t api, ca_record_t *record, uint64_t state, ca_kind_t kind);

/* Defined below, in the order of a reader. */
CA_INLINE bool ca_fast_ready(ca_api_t api);
CA_INLINE bool ca_fast_context(CUcontext *handle);
CA_INLINE bool ca_fast_begin(size_t bytes, size_t most, uint32_t *stack);
CA_INLINE bool ca_fast_take(ca_api_t api, ca_cache_t *cache, ca_kind_t kind, size_t bytes,
                            uint32_t stack, uint64_t *address);
CA_INLINE bool ca_fast_put(ca_record_t *record, uint64_t state, ca_kind_t kind, ca_cache_t **into,
                           bool *due);
CA_INLINE ca_cache_t *ca_fast_enter_other(const ca_block_t *block);

/* --- one cudaMalloc, from its top to its end ----------------------------------------------------
 */

/* Both count the call where they serve it. */
CA_INLINE bool ca_fast_alloc(ca_api_t api, size_t bytes, uint64_t *address)
{
    uint32_t stack;
    return ca_fast_ready(api) && ca_fast_begin(bytes, ca_thread.cache_most, &stack) &&
           ca_fast_take(api, ca_thread.cache, CA_KIND_DEVICE, bytes, stack, address);
}

/* Everything that calls out. Nothing may call out inside the cache, where other threads wait for
 * this one. The current context comes first: what is worked out after it need not be saved over
 * that call. */
CA_INLINE bool ca_fast_begin(size_t bytes, size_t most, uint32_t *stack)
{
    CUcontext handle;
    if (bytes - 1 >= most)
        return false;
    if (!ca_fast_context(&handle) || handle != ca_thread.handle)
        return false;
    ca_live_ready(ca_thread.counts, bytes);
    *stack = ca_track_stack_of(bytes);
    return true;
}

/* Everything inside the cache, and the count. */
CA_INLINE bool ca_fast_take(ca_api_t api, ca_cache_t *cache, ca_kind_t kind, size_t bytes,
                            uint32_t stack, uint64_t *address)
{
    ca_thread_counts_t *counts = ca_thread.counts;
    CA_KEEP_IN_REGISTER(bytes); /* nothing worked out of it is saved over the driver's call */
    size_t index = ca_cache_class_for(cache, bytes);
    if (!ca_cache_enter(cache))
        return false;
    ca_block_t *block = ca_cache_take(cache, index, NULL);
    if (!block) {
        ca_cache_exit(cache);
        return false;
    }
    bool noted = ca_registry_insert_again(&block->record, &ca_thread.origin, kind, bytes, block,
                                          stack, counts);
    *address = block->address;
    /* A context that is retired locks the caches out first and then drops its records. */
    ca_cache_exit(cache);
    ca_thread_counts_add(&counts->fast_allocs[api], 1);
    return __builtin_expect(noted, 1) || ca_fast_note_first(api, block, bytes, kind, stack);
}

/* --- one cudaFree, from its top to its end ------------------------------------------------------
 */

/* Where it does not serve, `*address` is what it was, but read from the record, so that no register
 * has to hold it until then. */
CA_INLINE bool ca_fast_take_back(ca_api_t api, uint64_t *address, ca_kind_t kind)
{
    uint64_t state;
    CUcontext handle;
    ca_cache_t *cache;
    bool due;
    if (!ca_fast_ready(api))
        return false;
    ca_record_t *record = ca_registry_find_unlocked(*address, &state);
    if (!record)
        return false;
    /* A thread without a context may call the driver's function, and takes the slow path. One that
     * calls the runtime's has a context: its state was filled in with one, and is forgotten with
     * the last (driver_contexts.c). */
    if (api == CA_API_DRIVER && (!ca_fast_context(&handle) || !handle))
        return false;
    if (!ca_record_lock(record, state))
        return false;
    uint32_t bytes = (uint32_t)ca_record_bytes(record); /* a size class has no larger ones */
    if (__builtin_expect(!ca_fast_put(record, state, kind, &cache, &due), 0)) {
        *address = ca_record_address(record);
        return ca_fast_free_large(api, record, state, kind);
    }
    ca_thread_counts_t *counts = ca_thread.counts;
    ca_thread_counts_add(&counts->fast_frees[api], 1);
    uint64_t credit = ca_live_credit_with(counts, bytes);
    if (__builtin_expect(due || credit > counts->credit_most, 0))
        ca_fast_finish_free(counts, credit, due ? cache : NULL);
    else
        ca_live_set_credit(counts, credit);
    return true;
}

/* Puts the block of a locked record into a cache, or leaves everything as it is. */
CA_INLINE bool ca_fast_put(ca_record_t *record, uint64_t state, ca_kind_t kind, ca_cache_t **into,
                           bool *due)
{
    ca_block_t *block = (ca_block_t *)(void *)record; /* it begins with it */
    ca_cache_t *cache = ca_thread.cache;
    size_t mark = ca_cache_mark_of(block);
    if (!ca_record_plain(record, kind) || !ca_cache_has_class(mark))
        return false;
    if ((kind == CA_KIND_PINNED || !ca_cache_enter_with(cache, block)) &&
        !(cache = ca_fast_enter_other(block)))
        return false;
    bool cached = ca_cache_put(cache, mark - 1, block, due);
    /* Before the cache is left: the next owner of the memory must find no record of it. */
    if (__builtin_expect(cached, 1))
        ca_registry_erase_held(record, state);
    ca_cache_exit(cache);
    *into = cache;
    return cached;
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

/* --- what both ask the thread's state -----------------------------------------------------------
 */

/* Whether the thread's state holds. Never in the child of a fork. */
CA_INLINE bool ca_fast_ready(ca_api_t api)
{
    return ca_thread.generations[api] ==
           atomic_load_explicit(&ca_life_page.generation, memory_order_relaxed);
}

/* The current context's handle, which may be NULL. False where the driver does not say. */
CA_INLINE bool ca_fast_context(CUcontext *handle)
{
    ca_lock_assert_none("driver call");
    __typeof__(cuCtxGetCurrent) *get = (__typeof__(cuCtxGetCurrent) *)ca_thread.get_current;
    return get(handle) == CUDA_SUCCESS;
}

/* --- caches of other arenas than the current context's: pinned memory, other contexts ------------
 */

/* In front of the current context's arena of pinned memory with these flags, or NULL. */
CA_INLINE ca_cache_t *ca_fast_pinned_cache(unsigned flags)
{
    if (__builtin_expect(ca_thread.pinned_arena && ca_thread.pinned_flags == flags, 1))
        return ca_thread.pinned_cache;
    const ca_arena_t *arena =
        atomic_load_explicit(&ca_thread.context->pinned[flags], memory_order_acquire);
    ca_cache_t *cache = arena ? ca_cache_recent(arena) : NULL;
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

/* The thread's cache in front of another arena than the current context's, or NULL. */
CA_INLINE ca_cache_t *ca_fast_other_cache(const ca_arena_t *arena)
{
    if (__builtin_expect(arena && arena == ca_thread.pinned_arena, 1))
        return ca_thread.pinned_cache;
    ca_cache_t *cache = arena ? ca_cache_recent(arena) : NULL;
    const ca_context_t *context = cache ? cache->context : NULL;
    return context && !atomic_load_explicit(&context->broken, memory_order_relaxed) &&
                   atomic_load_explicit(&context->state, memory_order_relaxed) == CA_CONTEXT_SERVING
               ? cache
               : NULL;
}

/* The same for a block's arena, entered. */
CA_INLINE ca_cache_t *ca_fast_enter_other(const ca_block_t *block)
{
    const ca_arena_t *arena = __atomic_load_n(&block->arena, __ATOMIC_RELAXED);
    ca_cache_t *cache = ca_fast_other_cache(arena);
    return cache && ca_cache_enter_with(cache, block) ? cache : NULL;
}

#endif
