/* A thread's side of its caches; see cache.h. */
#include "pool/cache/cache.h"

#include <errno.h>
#include <pthread.h>
#include "base/counters.h"
#include "base/lock.h"
#include "base/mem.h"
#include "base/thread_state.h"
#include "base/mutation.h"
#include "pool/cache/cache_hit.h"
#include "pool/cache/cache_state.h"
#include "pool/growth/grow.h"
#include "pool/growth/ladder.h"
#include "pool/blocks/rounding.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

#define REAP_MOST 16u /* epochs asked about where a class waits */
#define CACHE_BYTES ((sizeof(ca_cache_t) + 64 + 15) / 16 * 16) /* no cache line in common */

/* Caches are never unmapped: the arena may hold one that its thread has left. */
_Thread_local ca_thread_caches_t ca_thread_caches;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static ca_slab_t slab = {.object_bytes = CACHE_BYTES};
static ca_cache_t *left; /* of threads that ended */
static pthread_key_t thread_end;
static enum { KEY_NONE, KEY_MADE, KEY_REFUSED } key;

/* --- a thread's caches ------------------------------------------------------------------------ */

static void forget_for_thread(const ca_cache_t *cache)
{
    for (unsigned i = 0; i < CA_CACHE_RECENT; i++)
        if (ca_thread_caches.recent[i].cache == cache)
            ca_thread_caches.recent[i].arena = NULL;
    ca_thread_forget();
}

/* The thread ends. Its other destructors may still free: a cache made for that is left in turn. */
static void leave_all(void *unused)
{
    (void)unused;
    while (ca_thread_caches.caches) {
        ca_cache_t *cache = ca_thread_caches.caches;
        ca_arena_t *arena = atomic_load(&cache->arena);
        ca_thread_caches.caches = cache->next_of_thread;
        forget_for_thread(cache);
        if (arena) {
            ca_lock_take(&arena->lock);
            if (atomic_load(&cache->arena) == arena)
                ca_cache_leave(arena, cache);
            ca_lock_drop(&arena->lock);
        }
        ca_lock_take(&lock);
        cache->next_of_thread = left;
        left = cache;
        ca_lock_drop(&lock);
    }
}

/* One that no thread uses, or NULL. */
static ca_cache_t *blank(void)
{
    ca_cache_t *cache = NULL;

    ca_lock_take(&lock);
    if (key == KEY_NONE)
        key = pthread_key_create(&thread_end, leave_all) == 0 ? KEY_MADE : KEY_REFUSED;
    bool made = key == KEY_MADE;
    ca_lock_drop(&lock);
    /* What a thread that ends leaves behind unseen would stay out of use for long. */
    if (!made || pthread_setspecific(thread_end, &ca_thread_caches) != 0)
        return NULL;
    ca_lock_take(&lock);
    cache = left;
    if (cache)
        left = cache->next_of_thread;
    else
        cache = ca_slab_take(&slab);
    ca_lock_drop(&lock);
    return cache;
}

/* One of the thread's whose arena was retired, or a new one. */
static ca_cache_t *make(ca_arena_t *arena)
{
    ca_cache_t *cache = ca_thread_caches.caches;

    while (cache && atomic_load(&cache->arena))
        cache = cache->next_of_thread;
    if (cache) {
        forget_for_thread(cache);
    } else {
        cache = blank();
        if (!cache)
            return NULL;
        cache->next_of_thread = ca_thread_caches.caches;
        ca_thread_caches.caches = cache;
    }
    ca_lock_take(&arena->lock);
    bool joins = ca_arena_serving(arena);
    if (joins)
        ca_cache_join(arena, cache);
    ca_lock_drop(&arena->lock);
    return joins ? cache : NULL;
}

static __attribute__((noinline)) ca_cache_t *find_or_make(ca_arena_t *arena, unsigned at)
{
    ca_thread_counts_join();
    if (!arena->params.thread_cache)
        return NULL;
    ca_cache_t *cache = ca_cache_own(arena);
    if (!cache)
        cache = make(arena);
    if (cache) {
        ca_thread_caches.recent[at].arena = arena;
        ca_thread_caches.recent[at].cache = cache;
    }
    return cache;
}

static inline ca_cache_t *cache_of(ca_arena_t *arena)
{
    unsigned at = ca_cache_recent_at(arena);

    ca_cache_t *cache = ca_cache_recent(arena);

    /* The arena may have been retired since, and revived. */
    return cache && atomic_load_explicit(&cache->arena, memory_order_relaxed) == arena
               ? cache
               : find_or_make(arena, at);
}

/* --- the fast path ---------------------------------------------------------------------------- */

/* What is known of a block while no thread can retire its arena. */
typedef struct served {
    ca_block_t *block;
    uint64_t address;
    bool reused;
    bool grown; /* out of a new segment */
} served_t;

static inline void serve(ca_block_t *block, served_t *served)
{
    *served = (served_t){block, block->address, ca_block_touch(block), false};
}

/* On a stream what was freed there. */
static inline void take(ca_cache_t *cache, const ca_stream_t *stream, unsigned index,
                        served_t *served)
{
    bool reused;
    ca_block_t *block = stream ? ca_cache_take_ordered(cache, stream, index, &reused)
                               : ca_cache_take(cache, index, &reused);

    if (block)
        *served = (served_t){block, block->address, reused, false};
}

/* --- beyond it: under the arena's lock -------------------------------------------------------- */

static bool is_locked_out(const ca_cache_t *cache)
{
    return atomic_load_explicit(&cache->entry, memory_order_relaxed) == CA_CACHE_LOCKED_OUT;
}

/* From the depot into the cache. */
static uint32_t fetch(ca_arena_t *arena, ca_cache_t *cache, unsigned index, uint32_t most)
{
    ca_cache_class_t *class = &cache->classes[index], *depot = &arena->depot->classes[index];
    uint32_t fetched = 0;

    for (; depot->first && fetched < most; fetched++) {
        ca_block_t *block = ca_cache_shift(depot, depot->first);
        ca_cache_refill(arena, arena->depot, 0, ca_block_size(block));
        ca_cache_refill(arena, cache, ca_block_size(block), 0);
        ca_cache_push_ready(class, block);
    }
    return fetched;
}

/* Cuts from what the arena has ready. */
static uint32_t cut(ca_arena_t *arena, ca_cache_t *cache, unsigned index, size_t bytes,
                    uint32_t most)
{
    uint32_t count = 0;

    for (; count < most; count++) {
        arena->cached_bytes += bytes; /* first, or it would count for the peak of live bytes */
        ca_block_t *block = ca_block_take(arena, bytes, CA_BIN_COMPARES);
        arena->cached_bytes -= bytes;
        if (!block)
            break;
        block->record.payload[3] = 0; /* of no allocation: see ca_pool_cached_at */
        /* Not ca_block_set_state: it was not handed out yet. */
        __atomic_store_n(&block->state, CA_BLOCK_CACHED, __ATOMIC_RELAXED);
        ca_cache_refill(arena, cache, ca_block_size(block), 0);
        ca_cache_push_ready(&cache->classes[index], block);
    }
    return count;
}

/* Takes a block for the caller, and some for the cache, if the arena has any ready. */
static void refill(ca_arena_t *arena, ca_cache_t *cache, unsigned index, size_t bytes,
                   served_t *served)
{
    ca_cache_class_t *class = &cache->classes[index];
    uint32_t most = (uint32_t)(CA_CACHE_REFILL_BYTES / bytes) + 1;

    ca_lock_take(&arena->lock);
    arena->operations++;
    if (ca_arena_serving(arena) && !is_locked_out(cache)) {
        ca_cache_publish(arena, cache);
        ca_arena_serve_in_order(arena); /* what this cache freed, too */
    }
    bool open = ca_arena_serving(arena) && !is_locked_out(cache);
    if (open)
        take(cache, NULL, index, served);
    if (open && !served->block && !arena->home) {
        if (!fetch(arena, cache, index, most < CA_CACHE_FLUSH ? most : CA_CACHE_FLUSH)) {
            ca_block_t *block = ca_block_take(arena, bytes, CA_BIN_COMPARES);
            if (block) {
                serve(block, served);
                cut(arena, cache, index, bytes, class->batch < most ? class->batch : most - 1);
            }
            class->batch = class->batch ? 2 * class->batch : 1;
            if (class->batch > CA_CACHE_REFILL)
                class->batch = CA_CACHE_REFILL;
        } else {
            take(cache, NULL, index, served);
        }
    }
    ca_lock_drop(&arena->lock);
}

/* What has passed of a class that has too many goes to the depot, where the thread that runs out of
 * them finds it whole; as far as the depot takes it. */
static void hand_over(ca_arena_t *arena, ca_cache_t *cache, unsigned index)
{
    ca_cache_class_t *class = &cache->classes[index], *depot = &arena->depot->classes[index];
    ca_block_t *block = NULL;

    while (class->count > CA_CACHE_CLASS_BLOCKS - CA_CACHE_FLUSH &&
           (block = ca_cache_take_passed(cache, class))) {
        ca_cache_refill(arena, cache, 0, ca_block_size(block));
        if (depot->count < CA_CACHE_CLASS_BLOCKS &&
            ca_cache_get(&arena->depot->cached_bytes) + ca_block_size(block) <=
                arena->depot->cached_most) {
            ca_cache_refill(arena, arena->depot, ca_block_size(block), 0);
            ca_cache_push_ready(depot, block);
        } else {
            ca_cache_give_ready(arena, block);
        }
    }
}

static void flush(ca_arena_t *arena, ca_cache_t *cache, unsigned index)
{
    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_locked_out(cache)) {
        ca_cache_publish(arena, cache);
        if (cache->classes[index].count >= CA_CACHE_CLASS_BLOCKS)
            hand_over(arena, cache, index);
        ca_cache_trim(arena, cache, cache->cached_most - cache->cached_most / CA_CACHE_FLUSH_SHARE);
        ca_arena_note_peak(arena);
    }
    ca_lock_drop(&arena->lock);
}

void ca_cache_close_epoch(ca_cache_t *cache, ca_closer_t by)
{
    ca_arena_t *arena = atomic_load_explicit(&cache->arena, memory_order_relaxed);

    if (!arena)
        return; /* retired meanwhile */
    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_locked_out(cache)) {
        ca_cache_publish(arena, cache);
        if (arena->operations >= arena->plain_fences.close_after) {
            int cancellation = ca_arena_enter(arena);
            ca_epoch_close_due(arena, &arena->plain_fences, by);
            ca_arena_leave(arena, cancellation);
        }
        cache->lags = arena->plain_fences.closed.count > 1;
    }
    ca_lock_drop(&arena->lock);
}

/* Whether work that a free in no stream's order is fenced behind takes long: no call that frees
 * stream-ordered memory would have waited for it, and the memory is to come back all the same. */
static bool lags(ca_arena_t *arena, ca_cache_t *cache)
{
    if (!cache->lags || ++cache->lagged)
        return cache->lags;
    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena)) {
        int cancellation = ca_arena_enter(arena);
        ca_epoch_reap(arena, &arena->plain_fences, REAP_MOST, false);
        cache->lags = arena->plain_fences.closed.count > 1;
        ca_arena_leave(arena, cancellation);
    }
    ca_lock_drop(&arena->lock);
    return cache->lags;
}

/* The threads that came first took what was ready, and keep it: see ca_grow_for_starved. */
static void grow(ca_arena_t *arena, const ca_cache_class_t *class, size_t bytes, served_t *served)
{
    ca_block_t *block;
    bool grown;

    if (class->count < CA_CACHE_STARVED && ca_grow_for_starved(arena, bytes) &&
        ca_ladder_grow(arena, bytes, &block, &grown) == 0) {
        serve(block, served);
        served->grown = grown;
    }
}

/* Looks whether what the class waits for has passed by now: dearer than the fast path, and much
 * cheaper than to empty all caches for it. */
static void ask(ca_arena_t *arena, ca_cache_t *cache, unsigned index, size_t bytes,
                served_t *served)
{
    const ca_cache_class_t *class = &cache->classes[index];

    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_locked_out(cache) && class->first) {
        int cancellation = ca_arena_enter(arena);
        ca_epoch_reap(arena, &arena->plain_fences, REAP_MOST, false);
        if (!is_locked_out(cache))
            take(cache, NULL, index, served);
        if (!served->block && !is_locked_out(cache))
            grow(arena, class, bytes, served);
        if (!served->block && !is_locked_out(cache) && class->first &&
            class->first->tag == cache->open) {
            bool none_before = !arena->plain_fences.closed.head;
            ca_epoch_close(arena, &arena->plain_fences, CA_BY_ALLOC);
            if (none_before)
                ca_epoch_reap(arena, &arena->plain_fences, SIZE_MAX, true);
        }
        if (!served->block && !is_locked_out(cache))
            take(cache, NULL, index, served);
        ca_arena_leave(arena, cancellation);
    }
    ca_lock_drop(&arena->lock);
}

/* Where another block has the place it goes to the arena, and this one stays. False: it is not
 * kept. */
static bool keep_in_its_place(ca_arena_t *arena, ca_cache_t *cache, unsigned index,
                              ca_block_t *block, ca_stream_t *stream)
{
    bool kept = false;

    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_locked_out(cache) && ca_block_arena(block) == arena &&
        ca_block_state(block) == CA_BLOCK_LIVE) {
        ca_cache_ordered_t *ordered = ca_cache_ordered_at(cache, stream, index);
        ca_fence_queue_t *fences = ordered->block ? &ordered->stream->fences : NULL;
        ca_cache_publish(arena, cache);
        cache->precise = ca_stream_precise(arena);
        if (!cache->precise && fences)
            ca_cache_give_one(arena, cache, ordered);
        kept = ca_cache_put_ordered(cache, stream, index, block);
        /* No fence right behind a free: see ca_stream_take_joined. */
        if (kept && fences && ca_epoch_due(arena, fences)) {
            int cancellation = ca_arena_enter(arena);
            ca_epoch_close_due(arena, fences, CA_BY_ALLOC);
            ca_arena_leave(arena, cancellation);
        }
    }
    ca_lock_drop(&arena->lock);
    return kept;
}

/* --- for the shim ----------------------------------------------------------------------------- */

/* The calling thread's cache, entered, where it serves requests of this size; and their class. */
static inline ca_cache_t *enter_for(ca_arena_t *arena, size_t bytes, unsigned *index,
                                    size_t *class_bytes)
{
    size_t size;

    if (bytes > CA_CACHE_MOST)
        return NULL;
    size = ca_round_request(&arena->params, bytes ? bytes : 1);
    if (size > CA_CACHE_MOST || ca_pool_of(arena, size) == CA_POOL_OVERSIZE)
        return NULL;
    *index = ca_cache_class_of(size, class_bytes);
    if (*class_bytes != size && (arena->params.size_class_count || arena->params.roundup))
        return NULL; /* the program chose the sizes that requests are rounded to */
    ca_cache_t *cache = cache_of(arena);
    return cache && size <= ca_cache_get(&cache->most) && ca_cache_enter(cache) ? cache : NULL;
}

int ca_cached_alloc(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, bool ready_only,
                    ca_block_t **block, uint64_t *address, bool *reused)
{
    const ca_stream_t *ordered = stream && !ca_stream_is_legacy(stream) ? stream : NULL;
    served_t served = {0};
    size_t class_bytes;
    unsigned index;
    ca_cache_t *cache = enter_for(arena, bytes, &index, &class_bytes);

    if (cache) {
        take(cache, ordered, index, &served);
        ca_cache_exit(cache);
        if (!served.block && !ordered)
            refill(arena, cache, index, class_bytes, &served);
        if (!served.block && !ordered && !ready_only)
            ask(arena, cache, index, class_bytes, &served);
    }
    if (served.block) {
        *block = served.block;
        *address = served.address;
        if (reused)
            *reused = served.reused;
        if (served.grown)
            ca_count(pool_misses);
        else
            ca_count(pool_hits);
        return 0;
    }
    size_t fits = cache ? class_bytes : bytes; /* a class */
    if (ready_only)
        return ca_arena_alloc_ready(arena, stream, fits, block, address, reused);
    int rc = ca_arena_alloc(arena, stream, fits, block, address, reused);
    /* The climb has left nothing untried, but a block of just what was asked. */
    if (rc == -ENOMEM && fits != bytes &&
        ca_arena_alloc_ready(arena, stream, bytes, block, address, reused) == 0)
        return 0;
    return rc;
}

/* The thread's cache, if it may take the block. */
static inline ca_cache_t *kept_by(ca_arena_t *arena, const ca_block_t *block)
{
    return arena && ca_cache_has_class(ca_cache_mark_of(block)) &&
                   ca_block_state(block) == CA_BLOCK_LIVE && !CA_MUTATED(reuse_pending) &&
                   !CA_MUTATED(pinned_reuse)
               ? cache_of(arena)
               : NULL;
}

/* False: the arena is to have it. */
static bool keep(ca_arena_t *arena, ca_block_t *block, ca_closer_t by)
{
    size_t mark = ca_cache_mark_of(block);
    ca_cache_t *cache = kept_by(arena, block);

    if (!cache || !ca_cache_enter_with(cache, block))
        return false;
    bool closes;
    bool kept = ca_cache_put(cache, mark - 1, block, &closes);
    if (kept && by == CA_BY_ALLOC) {
        cache->frees--; /* an operation, and no free that would have waited */
        cache->allocs++;
        cache->async_frees = true;
    }
    ca_cache_exit(cache);
    if (!kept)
        flush(arena, cache, (unsigned)mark - 1);
    else if (closes)
        ca_cache_close_epoch(cache, by);
    return kept;
}

void ca_cached_free(ca_block_t *block)
{
    if (!keep(ca_block_arena(block), block, CA_BY_FREE))
        ca_arena_free(block);
}

/* Not behind all work for long, where a better order is known. */
static bool keep_for_now(ca_block_t *block, const ca_stream_t *stream)
{
    ca_arena_t *arena = ca_block_arena(block);
    ca_cache_t *cache = kept_by(arena, block);

    return cache && !(stream && lags(arena, cache)) && keep(arena, block, CA_BY_ALLOC);
}

void ca_cached_free_async(ca_block_t *block, ca_stream_t *stream, uint16_t number)
{
    if (!keep_for_now(block, stream))
        ca_arena_free_async(block, stream, number);
}

void ca_cached_free_on(ca_block_t *block, ca_stream_t *stream)
{
    ca_arena_t *arena = ca_stream_arena(stream);
    bool legacy = ca_stream_is_legacy(stream);

    /* Of another context: that is no order of the block's own. */
    if (legacy && ca_arena_context(ca_block_arena(block)) == arena->context &&
        keep_for_now(block, stream))
        return;
    ca_cache_t *cache = legacy || ca_stream_unseen(stream) ? NULL : kept_by(arena, block);
    if (cache && ca_cache_enter_with(cache, block)) {
        unsigned index = (unsigned)ca_cache_mark_of(block) - 1;
        bool kept = ca_cache_put_ordered(cache, stream, index, block);
        bool places = ca_cache_ordered_at(cache, stream, index)->block ||
                      (cache->precise && ++cache->passed_over == 0); /* whether it still is */
        ca_cache_exit(cache);
        if (kept || (places && keep_in_its_place(arena, cache, index, block, stream)))
            return;
    }
    ca_arena_free_on(block, stream);
}

void ca_caches_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_MEMORY);
    slab = (ca_slab_t){.object_bytes = CACHE_BYTES};
    left = NULL;
    for (unsigned i = 0; i < CA_CACHE_RECENT; i++)
        ca_thread_caches.recent[i].arena = NULL;
    ca_thread_caches.caches = NULL;
    ca_thread_forget();
}
