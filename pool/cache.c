/* A thread's side of its caches; see cache.h. */
#include "pool/cache.h"

#include <errno.h>
#include <pthread.h>
#include "config/counters.h"
#include "config/lock.h"
#include "config/mem.h"
#include "config/mutation.h"
#include "pool/cache_state.h"
#include "pool/rounding.h"
#include "pool/segment.h"
#include "pool/state.h"

#define FINE_CLASSES 16u /* multiples of CA_GRANULE; then as many to each power of two */
#define MEMOS 4u         /* a power of two */
#define HARVEST_MOST 16u /* epochs asked about where a class waits */
#define CACHE_BYTES ((sizeof(ca_cache_t) + 64 + 15) / 16 * 16) /* no cache line in common */

/* The calling thread's. Objects are never unmapped: the heap may hold one that its thread has left.
 */
static _Thread_local struct {
    struct {
        const ca_arena_t *arena;
        ca_cache_t *cache;
    } memo[MEMOS];
    ca_cache_t *caches;
} mine;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static ca_slab_t slab = {.object_bytes = CACHE_BYTES};
static ca_cache_t *left; /* of threads that ended */
static pthread_key_t thread_end;
static enum { KEY_NONE, KEY_MADE, KEY_REFUSED } key;

/* --- classes ---------------------------------------------------------------------------------- */

/* Of a rounded request that has one. */
static inline unsigned class_of(size_t bytes, size_t *class_bytes)
{
    size_t last = (bytes - 1) / CA_GRANULE;
    unsigned shift =
        last < 2 * FINE_CLASSES ? 0 : 63 - 4 - (unsigned)__builtin_clzll((unsigned long long)last);

    *class_bytes = ((last >> shift) + 1) << shift << 9;
    return shift * FINE_CLASSES + (unsigned)(last >> shift);
}

_Static_assert(CA_GRANULE == 512, "the shift by 9");

size_t ca_cache_class_bytes(size_t bytes)
{
    size_t class_bytes = 0;

    if (bytes && bytes <= CA_CACHE_MOST)
        class_of(bytes, &class_bytes);
    return class_bytes;
}

/* Whoever chose the sizes that requests are rounded to gets these and no others. */
static inline bool may_round(const ca_arena_params_t *params)
{
    return !params->size_class_count && !params->roundup;
}

/* --- a thread's caches ------------------------------------------------------------------------ */

static void forget_mine(const ca_cache_t *cache)
{
    for (unsigned i = 0; i < MEMOS; i++)
        if (mine.memo[i].cache == cache)
            mine.memo[i].arena = NULL;
}

/* The thread ends. Its other destructors may still free: a cache made for that is left in turn. */
static void leave_all(void *unused)
{
    (void)unused;
    while (mine.caches) {
        ca_cache_t *cache = mine.caches;
        ca_arena_t *arena = atomic_load(&cache->arena);
        mine.caches = cache->next_mine;
        forget_mine(cache);
        if (arena) {
            ca_lock_take(&arena->lock);
            if (atomic_load(&cache->arena) == arena)
                ca_cache_leave(arena, cache);
            ca_arena_drop(arena);
        }
        ca_lock_take(&lock);
        cache->next_mine = left;
        left = cache;
        ca_lock_drop(&lock);
    }
}

/* One that nobody uses, or NULL. */
static ca_cache_t *blank(void)
{
    ca_cache_t *cache = NULL;

    ca_lock_take(&lock);
    if (key == KEY_NONE)
        key = pthread_key_create(&thread_end, leave_all) == 0 ? KEY_MADE : KEY_REFUSED;
    bool made = key == KEY_MADE;
    ca_lock_drop(&lock);
    /* What a thread that ends leaves behind unseen would stay out of use for long. */
    if (!made || pthread_setspecific(thread_end, &mine) != 0)
        return NULL;
    ca_lock_take(&lock);
    cache = left;
    if (cache)
        left = cache->next_mine;
    else
        cache = ca_slab_take(&slab);
    ca_lock_drop(&lock);
    return cache;
}

/* One of the thread's whose heap was retired, or a new one. */
static ca_cache_t *make(ca_arena_t *arena)
{
    ca_cache_t *cache = mine.caches;

    while (cache && atomic_load(&cache->arena))
        cache = cache->next_mine;
    if (cache) {
        forget_mine(cache);
    } else {
        cache = blank();
        if (!cache)
            return NULL;
        cache->next_mine = mine.caches;
        mine.caches = cache;
    }
    ca_lock_take(&arena->lock);
    bool joins = ca_arena_serving(arena);
    if (joins)
        ca_cache_join(arena, cache);
    ca_lock_drop(&arena->lock);
    return joins ? cache : NULL;
}

ca_cache_t *ca_cache_own(const ca_arena_t *arena)
{
    ca_cache_t *cache = mine.caches;

    while (cache && atomic_load_explicit(&cache->arena, memory_order_relaxed) != arena)
        cache = cache->next_mine;
    return cache;
}

static __attribute__((noinline)) ca_cache_t *find_or_make(ca_arena_t *arena, unsigned at)
{
    /* Only of its own heap of a set: what it frees to others nobody would take from here. */
    if (!arena->params.thread_cache || (arena->shards && !ca_shards_is_home(arena)))
        return NULL;
    ca_cache_t *cache = ca_cache_own(arena);
    if (!cache)
        cache = make(arena);
    if (cache) {
        mine.memo[at].arena = arena;
        mine.memo[at].cache = cache;
    }
    return cache;
}

static inline ca_cache_t *cache_of(ca_arena_t *arena)
{
    unsigned at = (unsigned)((uintptr_t)arena >> 6) % MEMOS;

    return mine.memo[at].arena == arena ? mine.memo[at].cache : find_or_make(arena, at);
}

/* --- the hit path ----------------------------------------------------------------------------- */

static inline bool enter(ca_cache_t *cache)
{
    uint32_t expected = CA_CACHE_FREE;

    return atomic_compare_exchange_strong_explicit(&cache->entry, &expected, CA_CACHE_IN,
                                                   memory_order_acquire, memory_order_relaxed);
}

static inline void leave(ca_cache_t *cache)
{
    atomic_store_explicit(&cache->entry, CA_CACHE_FREE, memory_order_release);
}

static inline void set_state(ca_block_t *block, ca_block_state_t state)
{
    /* The heap looks at the states of neighbours. */
    __atomic_store_n(&block->state, (uint8_t)state, __ATOMIC_RELAXED);
}

/* What is known of a block while nobody can retire its heap. */
typedef struct served {
    ca_block_t *block;
    uint64_t address;
    bool reused;
} served_t;

static inline void serve(ca_block_t *block, served_t *served)
{
    *served = (served_t){block, block->address, ca_block_touch(block)};
}

static inline void take(ca_cache_t *cache, unsigned index, served_t *served)
{
    ca_cache_class_t *class = &cache->classes[index];
    ca_block_t *block = NULL;

    if (class->ready)
        block = ca_cache_pop_ready(class);
    else if (class->first && (ca_cache_has_passed(cache, class->first) || CA_MUTATED(reuse_cached)))
        block = ca_cache_shift(class);
    if (block) {
        set_state(block, CA_BLOCK_LIVE);
        serve(block, served);
        ca_cache_set(&cache->stock, ca_cache_get(&cache->stock) - block->bytes);
        cache->allocs++;
    }
}

/* Queues a live block. */
static inline void put(ca_cache_t *cache, unsigned index, ca_block_t *block)
{
    ca_cache_class_t *class = &cache->classes[index];

    set_state(block, CA_BLOCK_CACHED);
    block->tag = cache->open;
    block->next = NULL;
    if (class->last)
        class->last->next = block;
    else
        class->first = block;
    class->last = block;
    class->count++;
    ca_cache_set(&cache->stock, ca_cache_get(&cache->stock) + block->bytes);
    cache->open_count++;
    cache->open_bytes += block->bytes;
    cache->frees++;
}

static inline bool due(const ca_cache_t *cache)
{
    return cache->open_count >= CA_EPOCH_BLOCKS ||
           cache->open_bytes >= ca_cache_get(&cache->epoch_most);
}

/* --- beyond it: under the heap's lock --------------------------------------------------------- */

static bool is_shut(const ca_cache_t *cache)
{
    return atomic_load_explicit(&cache->entry, memory_order_relaxed) == CA_CACHE_SHUT;
}

/* Takes a block for the caller, and some for the stock, if the heap has any ready. */
static void refill(ca_arena_t *arena, ca_cache_t *cache, unsigned index, size_t bytes,
                   served_t *served)
{
    ca_cache_class_t *class = &cache->classes[index];
    ca_block_t *block = NULL;

    ca_lock_take(&arena->lock);
    arena->operations++;
    if (ca_arena_serving(arena) && !is_shut(cache)) {
        ca_cache_tell(arena, cache);
        block = ca_block_take(arena, bytes, CA_BIN_LOOK);
        if (block)
            serve(block, served);
        for (uint32_t i = 0; block && i < class->batch && (i + 1) * bytes <= CA_CACHE_REFILL_BYTES;
             i++) {
            arena->stock += bytes; /* first, or it would count for the peak of live bytes */
            ca_block_t *extra = ca_block_take(arena, bytes, CA_BIN_LOOK);
            arena->stock -= bytes;
            if (!extra)
                break;
            arena->stock += extra->bytes;
            cache->told += extra->bytes;
            set_state(extra, CA_BLOCK_CACHED);
            extra->next = class->ready;
            class->ready = extra;
            class->count++;
            ca_cache_set(&cache->stock, ca_cache_get(&cache->stock) + extra->bytes);
        }
        class->batch = class->batch ? 2 * class->batch : 1;
        if (class->batch > CA_CACHE_REFILL)
            class->batch = CA_CACHE_REFILL;
    }
    ca_arena_drop(arena);
}

/* What has passed of one class, oldest first, goes back until it has no more than `keep` blocks, or
 * the stock no more than `stock` bytes. */
static void give(ca_arena_t *arena, ca_cache_t *cache, ca_cache_class_t *class, uint32_t keep,
                 size_t stock)
{
    while (class->count > keep || ca_cache_get(&cache->stock) > stock) {
        ca_block_t *block = NULL;
        if (class->ready)
            block = ca_cache_pop_ready(class);
        else if (class->first && ca_cache_has_passed(cache, class->first))
            block = ca_cache_shift(class);
        if (!block)
            return;
        ca_cache_set(&cache->stock, ca_cache_get(&cache->stock) - block->bytes);
        ca_cache_give_ready(arena, block);
    }
}

static void spill(ca_arena_t *arena, ca_cache_t *cache, unsigned index)
{
    size_t half = arena->params.thread_cache / 2;

    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_shut(cache)) {
        ca_cache_class_t *class = &cache->classes[index];
        if (class->count >= CA_CACHE_CLASS_BLOCKS)
            give(arena, cache, class, CA_CACHE_CLASS_BLOCKS - CA_CACHE_SPILL, SIZE_MAX);
        if (ca_cache_get(&cache->stock) > half)
            for (unsigned i = 0; i < CA_CACHE_CLASSES; i++)
                give(arena, cache, &cache->classes[i], UINT32_MAX, half);
        ca_cache_tell(arena, cache);
    }
    ca_arena_drop(arena);
}

static void close_epoch(ca_arena_t *arena, ca_cache_t *cache)
{
    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_shut(cache)) {
        ca_cache_tell(arena, cache);
        if (arena->operations >= arena->whole.close_after) {
            int cancellation = ca_arena_enter(arena);
            ca_epoch_close(arena, &arena->whole, CA_BY_FREE);
            /* The newest fence was recorded this instant: not worth a query. */
            if (arena->whole.closed.count > 1)
                ca_epoch_harvest(arena, &arena->whole, 1, false);
            ca_arena_leave(arena, cancellation);
        }
    }
    ca_arena_drop(arena);
}

/* Looks whether what the class waits for has passed by now: dearer than a hit, and much cheaper
 * than to empty all caches for it. */
static void ask(ca_arena_t *arena, ca_cache_t *cache, unsigned index, served_t *served)
{
    const ca_cache_class_t *class = &cache->classes[index];

    ca_lock_take(&arena->lock);
    if (ca_arena_serving(arena) && !is_shut(cache) && class->first) {
        int cancellation = ca_arena_enter(arena);
        ca_epoch_harvest(arena, &arena->whole, HARVEST_MOST, false);
        if (!is_shut(cache) && class->first && class->first->tag == cache->open) {
            bool none_before = !arena->whole.closed.head;
            ca_epoch_close(arena, &arena->whole, CA_BY_ALLOC);
            if (none_before)
                ca_epoch_harvest(arena, &arena->whole, SIZE_MAX, true);
        }
        if (!is_shut(cache))
            take(cache, index, served);
        ca_arena_leave(arena, cancellation);
    }
    ca_arena_drop(arena);
}

/* --- for the shim ----------------------------------------------------------------------------- */

int ca_cache_alloc(ca_arena_t *arena, size_t *bytes, bool ready_only, ca_block_t **block,
                   uint64_t *address, bool *reused)
{
    size_t size, class_bytes;
    served_t served = {0};

    if (*bytes > CA_CACHE_MOST)
        return -EAGAIN;
    size = ca_round_request(&arena->params, *bytes ? *bytes : 1);
    if (size > CA_CACHE_MOST || ca_pool_of(&arena->params, size) == CA_POOL_OVERSIZE)
        return -EAGAIN;
    unsigned index = class_of(size, &class_bytes);
    if (class_bytes != size && !may_round(&arena->params))
        return -EAGAIN;
    ca_cache_t *cache = cache_of(arena);
    if (!cache || !enter(cache))
        return -EAGAIN;
    take(cache, index, &served);
    leave(cache);
    if (!served.block)
        refill(arena, cache, index, class_bytes, &served);
    if (!served.block && !ready_only)
        ask(arena, cache, index, &served);
    if (!served.block) {
        *bytes = class_bytes;
        return -EAGAIN;
    }
    *block = served.block;
    *address = served.address;
    if (reused)
        *reused = served.reused;
    ca_count(pool_hits);
    return 0;
}

int ca_cached_alloc(ca_arena_t *arena, size_t bytes, bool ready_only, ca_block_t **block,
                    uint64_t *address, bool *reused)
{
    size_t asked = bytes;

    if (ca_cache_alloc(arena, &bytes, ready_only, block, address, reused) == 0)
        return 0;
    if (ready_only)
        return ca_arena_alloc_ready(arena, bytes, block, address, reused);
    int rc = ca_arena_alloc(arena, bytes, block, address, reused);
    return rc == -ENOMEM && bytes != asked ? ca_arena_alloc(arena, asked, block, address, reused)
                                           : rc;
}

/* Whether the cache takes a block of its size. One that was exported is the heap's to keep. */
static inline bool takes(const ca_cache_t *cache, const ca_arena_t *arena, unsigned index,
                         const ca_block_t *block, size_t bytes)
{
    return cache->classes[index].count < CA_CACHE_CLASS_BLOCKS &&
           ca_cache_get(&cache->stock) + bytes <= arena->params.thread_cache &&
           ca_block_state(block) == CA_BLOCK_LIVE &&
           !__atomic_load_n(&block->exported, __ATOMIC_RELAXED);
}

void ca_cached_free(ca_block_t *block)
{
    ca_arena_t *arena = ca_block_arena(block);
    size_t bytes = __atomic_load_n(&block->bytes, __ATOMIC_RELAXED), class_bytes = 0;
    unsigned index = 0;
    ca_cache_t *cache = NULL;

    if (bytes && bytes <= CA_CACHE_MOST)
        index = class_of(bytes, &class_bytes);
    if (arena && class_bytes && class_bytes == bytes && !CA_MUTATED(reuse_pending) &&
        !CA_MUTATED(pinned_reuse))
        cache = cache_of(arena);
    if (!cache || !enter(cache)) {
        ca_arena_free(block);
        return;
    }
    bool taken = takes(cache, arena, index, block, bytes);
    if (taken)
        put(cache, index, block);
    bool closes = due(cache);
    leave(cache);
    if (!taken) {
        spill(arena, cache, index);
        ca_arena_free(block);
    } else if (closes) {
        close_epoch(arena, cache);
    }
}

void ca_caches_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_MEMORY);
    slab = (ca_slab_t){.object_bytes = CACHE_BYTES};
    left = NULL;
    for (unsigned i = 0; i < MEMOS; i++)
        mine.memo[i].arena = NULL;
    mine.caches = NULL;
}
