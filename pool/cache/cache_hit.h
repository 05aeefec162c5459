/* The thread cache, the contract of the fast path (shim/alloc/fast_path.h) with the pool; cache.c
 * uses it too. A cache stands in front of one arena and has a queue of blocks for each size class:
 *
 *   enter, enter_with  the cache is this thread's alone until it leaves; with a block: if the cache
 *                      stands in front of the block's arena. False while it is locked out
 *   take               the oldest block of a class, live now, if its epoch has passed; or NULL
 *   put                queues a live block, pending in the open epoch; says whether that is due
 *   exit               the arena may lock the cache out again
 *
 * Inside, the arena is not retired, and nothing may wait, lock or call out. */
#ifndef CA_POOL_CACHE_CACHE_HIT_H
#define CA_POOL_CACHE_CACHE_HIT_H

#include "base/counters.h"
#include "base/inline.h"
#include "base/mutation.h"
#include "pool/cache/cache_state.h"

#define CA_CACHE_FINE 16u  /* multiples of CA_GRANULE; then as many to each power of two */
#define CA_CACHE_RECENT 4u /* a power of two */

/* The calling thread's; those looked up last, by their arenas' addresses, and all. */
typedef struct ca_thread_caches {
    struct {
        const ca_arena_t *arena;
        ca_cache_t *cache;
    } recent[CA_CACHE_RECENT];
    ca_cache_t *caches;
} ca_thread_caches_t;

extern _Thread_local ca_thread_caches_t ca_thread_caches;

CA_INLINE unsigned ca_cache_recent_at(const ca_arena_t *arena)
{
    return (unsigned)((uintptr_t)arena >> 6) % CA_CACHE_RECENT;
}

/* In front of `arena`, if it was looked up not long ago, or NULL. */
CA_INLINE ca_cache_t *ca_cache_recent(const ca_arena_t *arena)
{
    unsigned at = ca_cache_recent_at(arena);

    return ca_thread_caches.recent[at].arena == arena ? ca_thread_caches.recent[at].cache : NULL;
}

/* The same, looked for. */
CA_INLINE ca_cache_t *ca_cache_own(const ca_arena_t *arena)
{
    ca_cache_t *cache = ca_thread_caches.caches;

    while (cache && atomic_load_explicit(&cache->arena, memory_order_relaxed) != arena)
        cache = cache->next_of_thread;
    return cache;
}

/* By how many bits the classes about a size of `last` + 1 granules are apart. No branch: sizes come
 * as they like. */
CA_INLINE unsigned ca_cache_class_shift(size_t last)
{
    return 63 - 4 - (unsigned)__builtin_clzll(last | CA_CACHE_FINE);
}

_Static_assert(CA_CACHE_FINE == 1 << 4 && CA_GRANULE == 512, "the shifts by 4 and by 9");

/* Of a rounded request that has a class. */
CA_INLINE unsigned ca_cache_class_of(size_t bytes, size_t *class_bytes)
{
    size_t last = (bytes - 1) / CA_GRANULE;
    unsigned shift = ca_cache_class_shift(last);

    last >>= shift;
    *class_bytes = (last + 1) << shift << 9;
    return shift * CA_CACHE_FINE + (unsigned)last;
}

#define CA_CACHE_NO_CLASS 255u

/* What a live block of this size keeps, so that its free need not work it out: 1 and its class, or
 * CA_CACHE_NO_CLASS, as has what is larger than `most`. 0 where its free takes the slow path,
 * whatever its size (ca_block_bar_fast_path). */
CA_INLINE uint8_t ca_cache_class_mark(size_t bytes, size_t most)
{
    size_t class_bytes;
    if (bytes - 1 >= most)
        return CA_CACHE_NO_CLASS;
    unsigned index = ca_cache_class_of(bytes, &class_bytes);
    return class_bytes == bytes ? (uint8_t)(index + 1) : CA_CACHE_NO_CLASS;
}

_Static_assert(CA_CACHE_CLASSES + 1 < CA_CACHE_NO_CLASS, "a mark is a byte");

CA_INLINE bool ca_cache_has_class(size_t mark)
{
    return mark - 1 < CA_CACHE_CLASSES;
}

/* The arena may be retired meanwhile: then this is 0 from some moment on. */
CA_INLINE size_t ca_cache_mark_of(const ca_block_t *block)
{
    return __atomic_load_n(&block->class_mark, __ATOMIC_RELAXED);
}

/* The same of a request of at most CA_CACHE_MOST in a cache that is simple, rounded to the cache's
 * granule. */
CA_INLINE size_t ca_cache_class_for(const ca_cache_t *cache, size_t bytes)
{
    size_t last = ((bytes - 1) | cache->granule_mask) / CA_GRANULE;
    unsigned shift = ca_cache_class_shift(last);

    return shift * CA_CACHE_FINE + (last >> shift);
}

CA_INLINE bool ca_cache_enter(ca_cache_t *cache)
{
    uint32_t expected = CA_CACHE_FREE;

    return atomic_compare_exchange_strong_explicit(&cache->entry, &expected, CA_CACHE_IN,
                                                   memory_order_acquire, memory_order_relaxed);
}

CA_INLINE void ca_cache_exit(ca_cache_t *cache)
{
    atomic_store_explicit(&cache->entry, CA_CACHE_FREE, memory_order_release);
}

/* To put a block there that may be of the arena that the cache is in front of. That is known inside
 * alone: before, the cache may get another arena. */
CA_INLINE bool ca_cache_enter_with(ca_cache_t *cache, const ca_block_t *block)
{
    if (!ca_cache_enter(cache))
        return false;
    const ca_arena_t *arena = atomic_load_explicit(&cache->arena, memory_order_relaxed);
    if (__builtin_expect(__atomic_load_n(&block->arena, __ATOMIC_RELAXED) == arena, 1))
        return true;
    ca_cache_exit(cache);
    return false;
}

/* The block has left its place: it is live from now on. Sets whether some part of it was handed out
 * before, where the caller wants to know. */
CA_INLINE ca_block_t *ca_cache_serve(ca_cache_t *cache, ca_block_t *block, bool *reused)
{
    if (reused)
        *reused = __atomic_load_n(&block->touched, __ATOMIC_RELAXED);
    ca_block_set_state(block, CA_BLOCK_LIVE);
    ca_thread_counts_take(&cache->cached_bytes, ca_block_size(block));
    cache->allocs++;
    return block;
}

/* A block of the class that is ready, or NULL. */
CA_INLINE ca_block_t *ca_cache_take(ca_cache_t *cache, size_t index, bool *reused)
{
    ca_cache_class_t *class = &cache->classes[index];
    ca_block_t *block = class->first;

    if (!block || !(ca_cache_has_passed(cache, block) || CA_MUTATED(reuse_cached)))
        return NULL;
    return ca_cache_serve(cache, ca_cache_shift(class, block), reused);
}

/* Where a block of a class that was freed on a stream lies. */
CA_INLINE ca_cache_ordered_t *ca_cache_ordered_at(ca_cache_t *cache, const ca_stream_t *stream,
                                                  size_t index)
{
    uint64_t hash = (uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15u;

    return &cache->ordered[((hash >> 59) + index) % CA_CACHE_ORDERED];
}

/* As ca_cache_take, of what was freed on this stream. */
CA_INLINE ca_block_t *ca_cache_take_ordered(ca_cache_t *cache, const ca_stream_t *stream,
                                            size_t index, bool *reused)
{
    ca_cache_ordered_t *ordered = ca_cache_ordered_at(cache, stream, index);
    ca_block_t *block = ordered->block;

    if (!block || ca_cache_mark_of(block) != index + 1 ||
        (ordered->stream != stream && !CA_MUTATED(reuse_across_streams)))
        return NULL;
    ordered->block = NULL;
    return ca_cache_serve(cache, block, reused);
}

/* Keeps a live block of this class that is freed on the stream, where its place is free. */
CA_INLINE bool ca_cache_put_ordered(ca_cache_t *cache, ca_stream_t *stream, size_t index,
                                    ca_block_t *block)
{
    ca_cache_ordered_t *ordered = ca_cache_ordered_at(cache, stream, index);
    size_t bytes = ca_block_size(block);

    if (ordered->block || cache->precise ||
        ca_cache_get(&cache->cached_bytes) + bytes > cache->cached_most)
        return false;
    ca_thread_counts_add(&cache->cached_bytes, bytes);
    ca_block_set_state(block, CA_BLOCK_CACHED);
    ordered->stream = stream;
    ordered->block = block;
    cache->allocs++; /* an operation, and no free that would have waited */
    return true;
}

/* Queues a live block of this class, or leaves it as it is, where the cache is full. `due`: whether
 * the cache's epoch is to be closed now: ca_cache_close_epoch, outside. */
CA_INLINE bool ca_cache_put(ca_cache_t *cache, size_t index, ca_block_t *block, bool *due)
{
    ca_cache_class_t *class = &cache->classes[index];
    CA_KEEP_IN_REGISTER(class);
    size_t bytes = ca_block_size(block);
    ptrdiff_t most = (ptrdiff_t)(cache->cached_most - bytes);

    if (__builtin_expect(class->count >= CA_CACHE_CLASS_BLOCKS ||
                             (ptrdiff_t)ca_cache_get(&cache->cached_bytes) > most,
                         0))
        return false;
    ca_thread_counts_add(&cache->cached_bytes, bytes);
    ca_block_set_state(block, CA_BLOCK_CACHED);
    block->tag = cache->open;
    block->next = NULL;
    *class->end = block;
    class->end = &block->next;
    class->count++;
    cache->open_bytes += bytes;
    *due = --cache->open_left <= 0 || cache->open_bytes >= ca_cache_get(&cache->epoch_most);
    return true;
}

#endif
