/* The arena's side of the thread caches in front of it; see cache.h. The arena's lock is held in
 * every function here, but where only a number is read. */
#include "pool/cache/cache.h"

#include <limits.h>
#include "base/lock.h"
#include "base/thread_state.h"
#include "pool/cache/cache_hit.h"
#include "pool/cache/cache_mark.h"
#include "pool/fence/fence_order.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

/* --- what is in a cache ----------------------------------------------------------------------- */

void ca_cache_give_ready(ca_arena_t *arena, ca_block_t *block)
{
    ca_block_unlive(arena, block);
    arena->pending -= ca_block_size(block);
    ca_block_ready(arena, block);
}

static void give_pending(ca_arena_t *arena, ca_block_t *block, ca_epoch_t *epoch)
{
    ca_block_unlive(arena, block);
    ca_epoch_push_into(epoch, block);
}

void ca_cache_publish(ca_arena_t *arena, ca_cache_t *cache)
{
    size_t cached = ca_cache_get(&cache->cached_bytes);
    uint64_t frees = ca_cache_frees(cache);

    cache->used |= cache->allocs + frees > 0;
    arena->operations += cache->allocs + frees;
    if (frees) {
        cache->freed_after = cache->published_after;
        ca_arena_note_free(arena, cache->freed_after);
    }
    cache->published_after = ca_fence_newest();
    cache->allocs = 0;
    cache->frees -= frees;
    arena->cached_bytes += cached - cache->published; /* wraps around where there is less */
    cache->published = cached;
    ca_arena_note_peak(arena);
}

/* Of one that has no blocks, or none any more. */
static void start_classes(ca_cache_t *cache)
{
    for (unsigned i = 0; i < CA_CACHE_CLASSES; i++)
        cache->classes[i] = (ca_cache_class_t){.end = &cache->classes[i].first};
    for (unsigned i = 0; i < CA_CACHE_ORDERED; i++)
        cache->ordered[i].block = NULL;
}

/* The same, where all was published. */
static void start_counts(ca_cache_t *cache)
{
    cache->allocs = cache->frees = cache->freed_after = 0;
    cache->published_after = ca_fence_newest();
    cache->async_frees = false;
    cache->open_left = CA_CACHE_EPOCH_BLOCKS;
    cache->open_bytes = 0;
}

void ca_cache_give_one(ca_arena_t *arena, ca_cache_t *cache, ca_cache_ordered_t *ordered)
{
    ca_block_t *block = ordered->block;

    ordered->block = NULL;
    ca_cache_refill(arena, cache, 0, ca_block_size(block));
    ca_block_unlive(arena, block);
    if (!ca_stream_keeps(ordered->stream, block))
        ca_epoch_push(arena, &ordered->stream->fences, block);
}

/* Or only what was freed on that stream. */
static void give_ordered(ca_arena_t *arena, ca_cache_t *cache, const ca_stream_t *only)
{
    for (unsigned i = 0; i < CA_CACHE_ORDERED; i++) {
        ca_cache_ordered_t *ordered = &cache->ordered[i];
        if (ordered->block && (!only || ordered->stream == only))
            ca_cache_give_one(arena, cache, ordered);
    }
}

/* All blocks go to the arena, which has locked the cache out, or the cache's thread calls. */
static void empty(ca_arena_t *arena, ca_cache_t *cache)
{
    uint64_t tag = 0;
    ca_epoch_t *epoch = NULL;
    bool open = false;

    if (!ca_cache_get(&cache->cached_bytes) && !cache->allocs && !ca_cache_frees(cache))
        return;
    ca_cache_publish(arena, cache);
    give_ordered(arena, cache, NULL);
    for (unsigned i = 0; i < CA_CACHE_CLASSES; i++) {
        ca_cache_class_t *class = &cache->classes[i];
        while (class->first) {
            ca_block_t *block = ca_cache_shift(class, class->first);
            if (ca_cache_has_passed(cache, block)) {
                ca_cache_give_ready(arena, block);
                continue;
            }
            if (!epoch || block->tag != tag)
                epoch = ca_cache_epoch_of(arena, cache, block->tag);
            tag = block->tag;
            give_pending(arena, block, epoch);
            open |= epoch == arena->plain_fences.open;
        }
    }
    ca_cache_set(&cache->cached_bytes, 0);
    ca_cache_publish(arena, cache);
    ca_cache_open_anew(cache);
    ca_cache_forget_marks(arena, cache);
    if (open)
        ca_epoch_freed_by(arena->plain_fences.open,
                          cache == ca_cache_own(arena) && !cache->async_frees ? ca_thread_number()
                                                                              : CA_BY_SEVERAL);
    cache->async_frees = false;
}

/* Its owner is inside for some instructions only, unless it was made to wait there. */
static void lock_out(ca_cache_t *cache)
{
    for (unsigned tries = 0;; tries++) {
        uint32_t entry = CA_CACHE_FREE;
        if (atomic_compare_exchange_strong(&cache->entry, &entry, CA_CACHE_LOCKED_OUT) ||
            entry == CA_CACHE_LOCKED_OUT)
            return;
        ca_backoff(tries);
    }
}

/* --- giving some back ------------------------------------------------------------------------- */

void ca_cache_refill(ca_arena_t *arena, ca_cache_t *cache, size_t came, size_t left)
{
    ca_cache_set(&cache->cached_bytes, ca_cache_get(&cache->cached_bytes) + came - left);
    cache->published += came - left;
    arena->cached_bytes += came - left;
}

ca_block_t *ca_cache_take_passed(ca_cache_t *cache, ca_cache_class_t *class)
{
    return class->first && ca_cache_has_passed(cache, class->first)
               ? ca_cache_shift(class, class->first)
               : NULL;
}

/* How little the next block of a class will be missed. Sizes that come and go at random find a
 * class of n blocks empty about once in n times, so one block less costs 1/n^2 of a miss, and saves
 * its bytes. */
static size_t weight_of(const ca_cache_class_t *class)
{
    const ca_block_t *block = class->first;
    size_t count = class->count;

    return block ? count * count * ca_block_size(block) : 0;
}

/* Of those that can give any: 0 where nothing has passed. */
static size_t heaviest(const ca_cache_t *cache)
{
    unsigned classes = ca_cache_get(&cache->cached_bytes) ? CA_CACHE_CLASSES : 0;
    size_t weight = 0;

    for (unsigned i = 0; i < classes; i++) {
        const ca_cache_class_t *class = &cache->classes[i];
        if (class->first && ca_cache_has_passed(cache, class->first) && weight_of(class) > weight)
            weight = weight_of(class);
    }
    return weight;
}

/* What has passed goes back to the arena from classes above that weight, while the cache has more
 * than `most` bytes. */
static void give_above(ca_arena_t *arena, ca_cache_t *cache, size_t weight, size_t most)
{
    for (unsigned i = CA_CACHE_CLASSES; i-- > 0;) {
        ca_cache_class_t *class = &cache->classes[i];
        ca_block_t *block = NULL;
        while (ca_cache_get(&cache->cached_bytes) > most && weight_of(class) > weight &&
               (block = ca_cache_take_passed(cache, class))) {
            ca_cache_refill(arena, cache, 0, ca_block_size(block));
            ca_cache_give_ready(arena, block);
        }
    }
}

void ca_cache_trim(ca_arena_t *arena, ca_cache_t *cache, size_t most)
{
    size_t weight;

    while (ca_cache_get(&cache->cached_bytes) > most && (weight = heaviest(cache)) > 0)
        give_above(arena, cache, weight / 2, most);
}

/* --- all of an arena's ------------------------------------------------------------------------ */

static size_t at_least(size_t least, size_t bytes)
{
    return bytes > least ? bytes : least;
}

static size_t at_most(size_t most, size_t bytes)
{
    return bytes < most ? bytes : most;
}

/* All together have half of what the arena's own open epoch would have alone: see ca_epoch_due. */
static size_t share_of_free(const ca_arena_t *arena)
{
    size_t most = arena->free_bytes / CA_EPOCH_FREE_SHARE / 2;

    return arena->cache_count ? most / arena->cache_count : most;
}

bool ca_caches_lack_memory(const ca_arena_t *arena)
{
    return share_of_free(arena) < CA_CACHE_EPOCH_LEAST;
}

/* Bytes that each may leave in its open epoch, or 0: where memory is short none is worth having. */
static size_t epoch_most(const ca_arena_t *arena)
{
    if (!ca_arena_serving(arena) || arena->lock_outs || arena->pins || arena->no_fences ||
        !(arena->fenced || arena->living_streams) || !arena->cache_count)
        return 0;
    size_t most = share_of_free(arena);
    size_t share = ca_epoch_bytes(arena->live_peak / arena->cache_count);
    most = at_most(most, at_least(CA_CACHE_EPOCH_LEAST, share));
    return most < CA_CACHE_EPOCH_LEAST ? 0 : most;
}

/* How much it may keep. It is locked out. */
static void set_limits(ca_arena_t *arena, ca_cache_t *cache, size_t epoch)
{
    size_t live = arena->live_peak / at_least(1, arena->cache_count);

    arena->cache_most = at_most(at_most(CA_CACHE_MOST, epoch / CA_CACHE_EPOCH_FITS),
                                at_least(CA_CACHE_ALWAYS, live / CA_CACHE_SHARE));
    if (ca_warmup_never(arena))
        arena->cache_most = at_most(arena->cache_most, arena->params.small);
    ca_cache_set(&cache->most, arena->cache_most);
    cache->cached_most =
        at_most(arena->params.thread_cache, at_least(CA_CACHE_BYTES, live / CA_CACHE_BYTES_SHARE));
}

void ca_caches_review(ca_arena_t *arena)
{
    size_t most = epoch_most(arena);

    if (!most)
        for (ca_cache_t *cache = arena->caches; cache; cache = cache->next)
            lock_out(cache);
    for (ca_cache_t *cache = arena->caches; cache; cache = cache->next) {
        if (!most) {
            empty(arena, cache);
            continue;
        }
        bool is_locked_out = atomic_load(&cache->entry) == CA_CACHE_LOCKED_OUT;
        if (is_locked_out)
            set_limits(arena, cache, most);
        /* Or it would be full of what no fence is recorded for. Until a fence could be had,
         * where there are streams, each plain free asks for one. */
        ca_cache_set(&cache->epoch_most, arena->fenced ? most : 1);
        if (is_locked_out)
            atomic_store(&cache->entry, CA_CACHE_FREE);
    }
}

void ca_caches_lock_out(ca_arena_t *arena)
{
    arena->lock_outs++;
    ca_caches_review(arena);
}

ca_block_t *ca_caches_yield(ca_arena_t *arena, size_t bytes)
{
    ca_block_t *block = NULL;
    size_t weight;

    arena->lock_outs++;
    for (ca_cache_t *cache = arena->caches; cache; cache = cache->next) {
        lock_out(cache);
        ca_cache_publish(arena, cache);
    }
    do {
        weight = 0;
        for (ca_cache_t *cache = arena->caches; cache; cache = cache->next)
            weight = at_least(weight, heaviest(cache));
        for (ca_cache_t *cache = arena->caches; cache && weight; cache = cache->next)
            give_above(arena, cache, weight / 2, 0);
        if (weight)
            block = ca_block_take(arena, bytes, UINT_MAX);
    } while (weight && !block);
    if (!block)
        ca_caches_review(arena);
    return block;
}

void ca_caches_open(ca_arena_t *arena)
{
    arena->lock_outs--;
    if (!arena->lock_outs)
        ca_caches_review(arena);
}

/* Where the program chose the sizes that requests are rounded to it gets these and no others; what
 * is oversize is none of the caches' business. */
static void copy_params(const ca_arena_t *arena, ca_cache_t *cache)
{
    const ca_arena_params_t *params = &arena->params;
    cache->simple = !params->size_class_count && !params->roundup &&
                    ca_pool_of(arena, CA_CACHE_MOST) != CA_POOL_OVERSIZE;
    cache->granule_mask = params->granule - 1;
    cache->context = arena->context;
}

void ca_cache_join(ca_arena_t *arena, ca_cache_t *cache)
{
    copy_params(arena, cache);
    cache->precise = ca_stream_precise(arena);
    atomic_store(&cache->entry, CA_CACHE_LOCKED_OUT);
    cache->next = arena->caches;
    arena->caches = cache;
    arena->cache_count++;
    /* Tags go on where they were: no block of an earlier arena is left that has one. */
    cache->open++;
    start_classes(cache);
    start_counts(cache);
    atomic_store(&cache->arena, arena);
    ca_caches_review(arena);
}

void ca_cache_leave(ca_arena_t *arena, ca_cache_t *cache)
{
    lock_out(cache);
    empty(arena, cache);
    ca_cache_forget_marks(arena, cache); /* it may serve another arena next */
    ca_cache_t **link = &arena->caches;
    while (*link != cache)
        link = &(*link)->next;
    *link = cache->next;
    arena->cache_count--;
    atomic_store(&cache->arena, NULL);
}

void ca_cache_make_depot(ca_arena_t *arena, ca_cache_t *depot)
{
    start_classes(depot);
    start_counts(depot);
    atomic_store(&depot->entry, CA_CACHE_LOCKED_OUT);
    atomic_store(&depot->arena, arena);
    arena->depot = arena->caches = depot;
}

/* The blocks and the epochs go with the arena; what the caches held of it stays forgotten. */
void ca_caches_drop(ca_arena_t *arena)
{
    for (ca_cache_t *cache = arena->caches, *next; cache; cache = next) {
        next = cache->next;
        lock_out(cache);
        start_classes(cache);
        ca_cache_set(&cache->cached_bytes, 0);
        cache->published = 0;
        start_counts(cache);
        atomic_store(&cache->arena, NULL);
    }
    arena->depot = arena->caches = NULL;
    arena->cache_count = 0;
    arena->cached_bytes = 0;
    /* A cache that serves another arena by then must not hear of these. */
    ca_cache_forget_marks(arena, NULL);
}

/* Locks a cache out for a moment, and has it publish. Returns whether it was locked out. */
static bool visit(ca_arena_t *arena, ca_cache_t *cache)
{
    bool was_locked_out = atomic_load(&cache->entry) == CA_CACHE_LOCKED_OUT;

    lock_out(cache);
    ca_cache_publish(arena, cache);
    return was_locked_out;
}

static void leave(ca_cache_t *cache, bool was_locked_out)
{
    if (!was_locked_out)
        atomic_store(&cache->entry, CA_CACHE_FREE);
}

void ca_caches_give_streams(ca_arena_t *arena, const ca_stream_t *only, bool precise)
{
    for (ca_cache_t *cache = arena->caches; cache; cache = cache->next) {
        if (precise && cache->precise)
            continue;
        bool was_locked_out = visit(arena, cache);
        give_ordered(arena, cache, only);
        cache->precise |= precise;
        leave(cache, was_locked_out);
    }
}

void ca_caches_publish(ca_arena_t *arena)
{
    for (ca_cache_t *cache = arena->caches; cache; cache = cache->next)
        leave(cache, visit(arena, cache));
}

void ca_caches_flush_idle(ca_arena_t *arena)
{
    for (ca_cache_t *cache = arena->caches; cache; cache = cache->next) {
        bool was_locked_out = visit(arena, cache);
        if (!cache->used)
            empty(arena, cache);
        cache->used = false;
        leave(cache, was_locked_out);
    }
}

size_t ca_caches_bytes(const ca_arena_t *arena)
{
    size_t cached = 0;

    for (const ca_cache_t *cache = arena->caches; cache; cache = cache->next)
        cached += ca_cache_get(&cache->cached_bytes);
    return cached;
}

/* --- invariants ------------------------------------------------------------------------------- */

static const char *check_class(const ca_arena_t *arena, const ca_cache_t *cache, unsigned index,
                               size_t *cached, size_t *blocks)
{
    const ca_cache_class_t *class = &cache->classes[index];
    const ca_block_t *last = NULL;
    uint32_t count = 0;

    for (const ca_block_t *block = class->first; block; last = block, block = block->next) {
        if (block->state != CA_BLOCK_CACHED || block->arena != arena ||
            (block->class_mark != index + 1 && !block->exported))
            return "a block in a cache is not cached";
        if (block->tag > cache->open || (last && block->tag < last->tag))
            return "a cache's tags are out of order";
        *cached += ca_block_size(block);
        count++;
    }
    *blocks += count;
    const void *end = last ? &last->next : &class->first;
    return class->end == end && class->count == count ? NULL : "a class of a cache is wrong";
}

static const char *check_ordered(const ca_arena_t *arena, const ca_cache_t *cache, size_t *cached,
                                 size_t *blocks)
{
    for (unsigned i = 0; i < CA_CACHE_ORDERED; i++) {
        const ca_cache_ordered_t *ordered = &cache->ordered[i];
        const ca_block_t *block = ordered->block;
        if (!block)
            continue;
        if (block->state != CA_BLOCK_CACHED || block->arena != arena)
            return "a block that was freed on a stream is not cached";
        if (ordered->stream->arena != arena)
            return "a cached block was freed on a stream of another arena";
        *cached += ca_block_size(block);
        (*blocks)++;
    }
    return NULL;
}

static size_t cached_blocks(const ca_arena_t *arena)
{
    size_t count = 0;

    for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
        for (const ca_block_t *block = segment->first; block; block = ca_block_upper(block))
            count += ca_block_state(block) == CA_BLOCK_CACHED;
    return count;
}

static const char *check_locked_out(const ca_arena_t *arena)
{
    size_t blocks = 0;

    for (const ca_cache_t *cache = arena->caches; cache; cache = cache->next) {
        size_t cached = 0;
        if (atomic_load(&cache->arena) != arena)
            return "a cache is of another arena";
        for (unsigned i = 0; i < CA_CACHE_CLASSES; i++) {
            const char *broken = check_class(arena, cache, i, &cached, &blocks);
            if (broken)
                return broken;
        }
        const char *broken = check_ordered(arena, cache, &cached, &blocks);
        if (broken)
            return broken;
        if (cached != ca_cache_get(&cache->cached_bytes))
            return "a cache's bytes are wrong";
    }
    return blocks == cached_blocks(arena) ? NULL : "a cached block is in no cache";
}

const char *ca_caches_check(ca_arena_t *arena)
{
    if (arena->retired)
        return NULL;
    for (ca_cache_t *cache = arena->caches; cache; cache = cache->next)
        lock_out(cache);
    const char *broken = check_locked_out(arena);
    ca_caches_review(arena);
    return broken;
}
