/* A thread cache's own fields: for its owner's side (cache.c) and the arena's
 * (cache_heap.c). */
#ifndef CA_POOL_CACHE_CACHE_STATE_H
#define CA_POOL_CACHE_CACHE_STATE_H

#include <stdatomic.h>
#include "base/inline.h"
#include "pool/blocks/block.h"
#include "pool/cache/cache.h"

typedef enum {
    CA_CACHE_FREE,       /* no thread is inside */
    CA_CACHE_IN,         /* its owner is, for a moment */
    CA_CACHE_LOCKED_OUT, /* it serves nothing: the arena has it, until it lets the owner in */
} ca_cache_entry_t;

typedef struct ca_cache_class {
    /* From the arena, ready, with the tag 0; then freed here, oldest first, with rising tags. */
    ca_block_t *first;
    ca_block_t **end; /* where the next one goes: there, or the last one's `next` */
    uint32_t count;
    uint32_t batch; /* blocks to ask the arena for next time */
} ca_cache_class_t;

/* What the thread freed last on a stream, of one class: only that stream waits for nothing there.
 * See ca_cached_free_on. */
typedef struct ca_cache_ordered {
    ca_stream_t *stream;
    ca_block_t *block; /* or NULL */
} ca_cache_ordered_t;

/* Changed by the owner inside, or under the arena's lock: by the owner outside, or by any thread
 * while the cache is locked out. */
struct ca_cache {
    _Atomic uint32_t entry;      /* ca_cache_entry_t */
    bool simple;                 /* a request's size alone tells its class; see granule_mask */
    ca_arena_t *_Atomic arena;   /* NULL: it has no arena any more */
    uint64_t open;               /* tag of what is freed now */
    _Atomic uint64_t passed;     /* up to this tag all is ready; under the arena's lock */
    _Atomic size_t cached_bytes; /* of all blocks in here */
    size_t cached_most;          /* bytes; the arena sets it, and the next one, while it has locked
                                  * the cache out */
    _Atomic size_t most;         /* bytes of the largest block that it keeps */
    int64_t open_left;         /* of CA_CACHE_EPOCH_BLOCKS, less blocks freed with the tag `open` */
    _Atomic size_t epoch_most; /* bytes that its open epoch may hold */
    size_t open_bytes;         /* of those blocks */
    size_t granule_mask;       /* where it is simple, requests are rounded to this and 1; set when
                                * it joins */
    uint64_t allocs;           /* not published yet: see ca_cache_publish */
    size_t published;          /* the part of cached_bytes that is in arena->cached_bytes */
    uint64_t frees;            /* as allocs, less those with the tag `open`: see ca_cache_frees */
    uint64_t published_after;  /* the newest fence when it published, and */
    uint64_t freed_after;      /* one that was there before the last plain free so published */
    bool used;                 /* it published some since ca_caches_flush_idle */
    bool async_frees;          /* see ca_cached_free_async */
    void *context;             /* the arena's */
    ca_cache_t *next;          /* of the same arena, under its lock */
    ca_cache_t *next_of_thread; /* of the same thread */
    ca_cache_class_t classes[CA_CACHE_CLASSES];
    ca_cache_ordered_t ordered[CA_CACHE_ORDERED];
    bool precise;        /* it keeps nothing in `ordered`: see ca_stream_take_joined */
    uint8_t passed_over; /* frees on streams since, as far as this goes */
    bool lags;           /* the fences of its epochs do not pass: see ca_cached_free_async */
    uint8_t lagged;      /* such frees since it was looked at, as far as this goes */
};

/* The owner's fields that decide nothing for others but are read by them. */
CA_INLINE void ca_cache_set(_Atomic size_t *field, size_t value)
{
    atomic_store_explicit(field, value, memory_order_relaxed);
}

CA_INLINE size_t ca_cache_get(const _Atomic size_t *field)
{
    return atomic_load_explicit(field, memory_order_relaxed);
}

/* Blocks freed with the tag that is open. */
CA_INLINE uint64_t ca_cache_open_count(const ca_cache_t *cache)
{
    return (uint64_t)(CA_CACHE_EPOCH_BLOCKS - cache->open_left);
}

/* Not published yet. */
CA_INLINE uint64_t ca_cache_frees(const ca_cache_t *cache)
{
    return cache->frees + ca_cache_open_count(cache);
}

/* None was freed with the tag that is open now. */
CA_INLINE void ca_cache_open_anew(ca_cache_t *cache)
{
    cache->frees += ca_cache_open_count(cache);
    cache->open_left = CA_CACHE_EPOCH_BLOCKS;
    cache->open_bytes = 0;
}

CA_INLINE bool ca_cache_has_passed(const ca_cache_t *cache, const ca_block_t *block)
{
    return block->tag <= atomic_load_explicit(&cache->passed, memory_order_acquire);
}

/* The first block of a class, class->first, leaves its queue. The next one is the next to go, and
 * by then long out of the processor's caches. */
CA_INLINE ca_block_t *ca_cache_shift(ca_cache_class_t *class, ca_block_t *first)
{
    ca_block_t *next = first->next;

    class->first = next;
    class->count--;
    if (next)
        __builtin_prefetch(next);
    else
        class->end = &class->first;
    return first;
}

/* From the arena: it goes before all others. */
CA_INLINE void ca_cache_push_ready(ca_cache_class_t *class, ca_block_t *block)
{
    block->tag = 0;
    block->next = class->first;
    class->first = block;
    if (!block->next)
        class->end = &block->next;
    class->count++;
}

/* --- between the two sides; under the arena's lock -------------------------------------------- */

/* Bytes came to a cache, which is not open to other threads, or left it. */
void ca_cache_refill(ca_arena_t *arena, ca_cache_t *cache, size_t came, size_t left);

/* The oldest of a class, or NULL where it has not passed. */
ca_block_t *ca_cache_take_passed(ca_cache_t *cache, ca_cache_class_t *class);

/* What has passed goes back to the arena, what will be missed least first, until the cache has no
 * more than `most` bytes. It has published them. */
void ca_cache_trim(ca_arena_t *arena, ca_cache_t *cache, size_t most);

/* Gives a block that was freed on a stream back to it. The cache is closed, and has published. */
void ca_cache_give_one(ca_arena_t *arena, ca_cache_t *cache, ca_cache_ordered_t *ordered);

/* A new cache for the calling thread, locked out until ca_caches_review. */
void ca_cache_join(ca_arena_t *arena, ca_cache_t *cache);

/* The arena's own, which no thread enters: its blocks are ready, and move under the lock. */
void ca_cache_make_depot(ca_arena_t *arena, ca_cache_t *depot); /* zeroed */

/* The thread ends: its cache's blocks become the arena's. */
void ca_cache_leave(ca_arena_t *arena, ca_cache_t *cache);

/* Adds what happened in the cache to the arena's counts. */
void ca_cache_publish(ca_arena_t *arena, ca_cache_t *cache);

/* Makes a block that is in no list of the cache any more ready in the arena. */
void ca_cache_give_ready(ca_arena_t *arena, ca_block_t *block);

/* The owner's epoch is due (ca_cache_put), by what it did last. Takes the arena's lock. */
void ca_cache_close_epoch(ca_cache_t *cache, ca_closer_t by);

#endif
