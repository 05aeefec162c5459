/* The public functions: rounding, allocation, free, trim, statistics. */
#include "pool/arena.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include "base/counters.h"
#include "base/inline.h"
#include "base/log.h"
#include "base/thread_state.h"
#include "base/mutation.h"
#include "base/lock.h"
#include "pool/cache/cache.h"
#include "pool/cache/cache_mark.h"
#include "pool/range/export.h"
#include "pool/fence/fence_order.h"
#include "pool/growth/giving.h"
#include "pool/growth/grow.h"
#include "pool/growth/ladder.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "pool/blocks/rounding.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/blocks/span.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

#define REAP_BY_ALLOC 16 /* epochs asked about before a block is cut */
#define BINS_BYTES (CA_POOLS * sizeof(ca_bins_t) + sizeof(ca_cache_t)) /* the depot behind them */
/* No cache line in common; an odd number of them, or the first arenas of a process would all have
 * the same place among a thread's caches (ca_cache_recent_at). */
#define ARENA_BYTES (((sizeof(ca_arena_t) + 64 + 63) / 64 | 1) * 64)

/* Arenas outlive their contexts: threads may come late with a pointer to one, or to a block. */
static ca_lock_t arenas_lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static ca_slab_t arenas = {.object_bytes = ARENA_BYTES};

#if CA_DEBUG
#define CHECK_EVERY 4096 /* operations */
static void check_now_and_then(ca_arena_t *arena)
{
    const char *broken = arena->operations % CHECK_EVERY ? NULL : ca_check_locked(arena);

    if (broken) {
        ca_lock_drop(&arena->lock); /* nothing is written under a lock */
        ca_error("arena %p: %s", (const void *)arena, broken);
        abort();
    }
}
#else
static inline void check_now_and_then(ca_arena_t *arena)
{
    (void)arena;
}
#endif

/* What an arena begins with, where all else is zero. False where there is no host memory. */
static bool begin(ca_arena_t *arena, ca_bins_t *bins)
{
    arena->bins = bins;
    ca_slab_init(&arena->segment_slab, sizeof(ca_segment_t));
    ca_slab_init(&arena->epochs, sizeof(ca_epoch_t));
    ca_slab_init(&arena->marks, sizeof(ca_cache_mark_t));
    ca_cache_make_depot(arena, (ca_cache_t *)(void *)(bins + CA_POOLS));
    arena->free_bytes = SIZE_MAX;
    arena->round = 1; /* no segment was refused in it */
    return ca_fence_queue_start(arena, &arena->plain_fences, NULL) == 0 &&
           (arena->passed = ca_epoch_make(arena, &arena->plain_fences));
}

ca_arena_t *ca_arena_create(const ca_upstream_t *upstream, void *context,
                            const ca_arena_params_t *params)
{
    ca_bins_t *bins = ca_mem_map(BINS_BYTES);

    ca_lock_take(&arenas_lock);
    ca_arena_t *arena = bins ? ca_slab_take(&arenas) : NULL;
    ca_lock_drop(&arenas_lock);
    if (!arena) {
        ca_mem_unmap(bins, BINS_BYTES);
        return NULL;
    }
    ca_lock_init(&arena->lock, CA_RANK_ARENA);
    arena->upstream = upstream;
    arena->context = context;
    arena->params = *params;
    if (!arena->params.granule)
        arena->params.granule = CA_GRANULE;
    if (!arena->params.segment_first)
        arena->params.segment_first = CA_SEGMENT_FIRST;
    if (params->reuse == CA_POOL_REUSE_ORDER && !params->host && !params->small)
        arena->params.small = CA_ORDER_SMALL;
    if (arena->params.small) /* compared with rounded requests */
        arena->params.small = ca_round_request(params, arena->params.small);
    if (!begin(arena, bins)) {
        ca_mem_unmap(bins, BINS_BYTES);
        ca_lock_take(&arenas_lock);
        ca_slab_give(&arenas, arena);
        ca_lock_drop(&arenas_lock);
        return NULL;
    }
    return arena;
}

/* No thread is inside a retired arena any more: one that takes its lock from now on finds it
 * retired and looks no further. */
static void drop_memory(ca_arena_t *arena)
{
    for (ca_segment_t *segment = arena->segments; segment; segment = segment->next)
        for (ca_block_t *block = segment->first; block; block = ca_block_upper(block))
            if (arena->upstream->end)
                arena->upstream->end(&block->record);
    ca_mem_unmap(arena->bins, BINS_BYTES);
    ca_streams_drop(arena);
    ca_slab_destroy(&arena->epochs);
    ca_slab_destroy(&arena->marks);
    ca_slab_destroy(&arena->segment_slab);
    arena->bins = NULL;
    arena->segments = NULL;
    arena->plain_fences = (ca_fence_queue_t){0};
    arena->passed = arena->owed = NULL;
    ca_block_discard(&arena->blocks);
}

/* For the last thread inside a retired arena, which still counts as such: the arena's fences were
 * recorded in other contexts too, which live on. Drops the lock. */
static void end_epochs(ca_arena_t *arena)
{
    ca_epochs_end(arena, &arena->plain_fences);
    for (ca_stream_t *stream = arena->streams; stream; stream = stream->next)
        ca_epochs_end(arena, &stream->fences);
}

int ca_arena_enter(ca_arena_t *arena)
{
    arena->inside++;
    return ca_cancel_hold();
}

void ca_arena_left(ca_arena_t *arena)
{
    if (arena->inside == 1 && arena->retired && arena->bins) {
        end_epochs(arena);
        ca_range_end(arena);
    }
    if (--arena->inside == 0 && arena->retired && arena->bins)
        drop_memory(arena);
}

void ca_arena_leave(ca_arena_t *arena, int cancellation)
{
    ca_arena_left(arena);
    ca_cancel_resume(cancellation);
}

/* Under the lock: `block` becomes the caller's. */
static void hand_out(ca_block_t *found, ca_block_t **block, uint64_t *address, bool *reused)
{
    *block = found;
    *address = found->address;
    bool touched = ca_block_touch(found);
    if (reused)
        *reused = touched;
}

void ca_arena_check_order(ca_arena_t *arena)
{
    if (arena->params.reuse != CA_POOL_REUSE_ORDER || !ca_order_is_over() ||
        !ca_arena_serving(arena))
        return;
    arena->params.reuse = CA_POOL_REUSE_AUTO;
    arena->prefers_memory = arena->warming_up;
    ca_caches_lock_out(arena); /* their limits are set anew */
    ca_caches_open(arena);
}

/* Where it may be, what is in flight serves a plain request as well as what is ready does. It is
 * made ready before anything is taken, not only where nothing else fits: the request finds the
 * block that fits best, and neighbours merge early. */
static ca_block_t *take_in_order(ca_arena_t *arena, size_t bytes)
{
    ca_block_t *found = NULL;

    if (arena->params.reuse != CA_POOL_REUSE_ORDER ||
        (!arena->plain_fences.closed.head && !CA_MUTATED(order_open_epoch) &&
         !CA_MUTATED(order_lazily_recorded)))
        return NULL;
    if (ca_epoch_take_in_order(arena, bytes, &found) > 0 || !ca_order_is_over())
        return found;
    int cancellation = ca_arena_enter(arena);
    ca_arena_check_order(arena);
    ca_arena_leave(arena, cancellation);
    return NULL;
}

void ca_arena_serve_in_order(ca_arena_t *arena)
{
    (void)take_in_order(arena, 0);
}

/* What each allocation begins with. Takes the lock. */
static inline void begin_alloc(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    arena->operations++;
    check_now_and_then(arena);
    ca_warmup_step(arena);
}

/* A rounded request, or the pages that it fills: see range.h. Without the lock. */
static size_t in_pages(const ca_arena_t *arena, size_t size)
{
    return __atomic_load_n(&arena->params.whole_pages, __ATOMIC_RELAXED) ? ca_range_round(size)
                                                                         : size;
}

/* Without a call upstream. What is close to the size comes before what has to be cut. */
static ca_block_t *take(ca_arena_t *arena, ca_stream_t *stream, size_t size)
{
    if (!ca_arena_serving(arena))
        return NULL;
    ca_block_t *found = stream ? ca_stream_take(stream, size, CA_TAKE_CLOSE) : NULL;
    if (!found)
        found = ca_block_take(arena, size, CA_BIN_COMPARES);
    return found || !stream ? found : ca_stream_take(stream, size, CA_TAKE_CUT);
}

/* What is ready, serves in order, or has passed. Drops the lock. */
static __attribute__((noinline)) ca_block_t *take_passed(ca_arena_t *arena, size_t size)
{
    ca_block_t *found = take_in_order(arena, size);
    bool asks = !found && ca_warmup_asks(arena, size);
    if (!found && !asks)
        found = take(arena, NULL, size);
    if (found || !arena->plain_fences.closed.head || !ca_arena_serving(arena))
        return found;
    int cancellation = ca_arena_enter(arena);
    /* Else one by one, as in ladder.c: the question after the one that helped is in vain. */
    size_t most = asks ? REAP_BY_ALLOC : 1;
    for (size_t left = REAP_BY_ALLOC; !found && left > 0; left -= most) {
        size_t passed = ca_epoch_reap(arena, &arena->plain_fences, most, false);
        if (passed || asks)
            found = take(arena, NULL, size);
        if (!passed)
            break;
    }
    ca_arena_leave(arena, cancellation);
    return found;
}

int ca_arena_alloc_passed(ca_arena_t *arena, size_t bytes, ca_block_t **block, uint64_t *address)
{
    if (bytes > CA_BYTES_MOST)
        return -EAGAIN;
    size_t size = in_pages(arena, ca_round_request(&arena->params, bytes));

    begin_alloc(arena);
    const ca_epoch_t *newest = arena->plain_fences.closed.tail;
    ca_block_t *found = newest && newest->lent ? ca_epoch_take_owed(arena, size) : NULL;
    if (!found && !arena->home)
        found = take_passed(arena, size);
    if (found)
        hand_out(found, block, address, NULL);
    else /* the same request comes again, and does not ask again: see ca_epoch_reap */
        arena->operations--;
    ca_lock_drop(&arena->lock);
    return found ? 0 : -EAGAIN;
}

static int serve(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, bool ready_only,
                 ca_block_t **block, uint64_t *address, bool *reused)
{
    if (bytes > CA_BYTES_MOST)
        return ready_only ? -EAGAIN : -ENOMEM;
    size_t asked = ca_round_request(&arena->params, bytes ? bytes : 1);
    size_t size = in_pages(arena, asked);
    bool grown = false;
    int rc = 0;

    begin_alloc(arena);
    if (stream != arena->asked) {
        if (ready_only && arena->home) {
            ca_lock_drop(&arena->lock);
            return -EAGAIN;
        }
        ca_stream_asks(arena, stream);
    }
    if (!stream)
        ca_arena_serve_in_order(arena);
    bool asks = !stream && ca_warmup_asks(arena, size);
    if (asks && !ready_only) {
        int cancellation = ca_arena_enter(arena);
        ca_epoch_reap(arena, &arena->plain_fences, REAP_BY_ALLOC, false);
        ca_arena_leave(arena, cancellation);
    }
    ca_block_t *found = asks && ready_only ? NULL : take(arena, stream, size);
    if (!found && ready_only) {
        rc = -EAGAIN;
    } else if (!found) {
        int cancellation = ca_arena_enter(arena);
        rc = ca_ladder_climb(arena, stream, size, asked, &found, &grown);
        ca_arena_leave(arena, cancellation);
    }
    if (rc == 0)
        hand_out(found, block, address, reused);
    ca_lock_drop(&arena->lock);

    if (grown)
        ca_count(pool_misses);
    else if (rc == 0)
        ca_count(pool_hits);
    return rc;
}

int ca_arena_alloc(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, ca_block_t **block,
                   uint64_t *address, bool *reused)
{
    return serve(arena, stream, bytes, false, block, address, reused);
}

int ca_arena_alloc_ready(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, ca_block_t **block,
                         uint64_t *address, bool *reused)
{
    return serve(arena, stream, bytes, true, block, address, reused);
}

ca_arena_t *ca_block_arena(const ca_block_t *block)
{
    /* Another thread may be retiring that arena: then this reads NULL from some moment on. */
    return __atomic_load_n(&block->arena, __ATOMIC_ACQUIRE);
}

/* Takes the lock of its arena. NULL, and no lock, where that was retired. */
static inline ca_arena_t *lock_arena(const ca_block_t *block)
{
    ca_arena_t *arena = ca_block_arena(block);

    if (!arena)
        return NULL;
    ca_lock_take(&arena->lock);
    if (__builtin_expect(ca_block_arena(block) == arena, 1))
        return arena;
    ca_lock_drop(&arena->lock);
    return NULL;
}

size_t ca_block_bytes(ca_block_t *block)
{
    ca_arena_t *arena = lock_arena(block);
    size_t bytes = 0;

    if (!arena)
        return 0; /* its context is destroyed */
    if (!arena->retired && ca_block_state(block) == CA_BLOCK_LIVE)
        bytes = ca_block_size(block);
    ca_lock_drop(&arena->lock);
    return bytes;
}

typedef enum {
    PLAIN,
    ON_STREAM, /* in its order */
    ASYNC,     /* behind all work, by a call that would not have waited for it */
    FOREIGN,   /* the same, behind work of another context's */
} freeing_t;

/* Bytes: a block that shares a fence where nothing else waits for one. */
#define SHARES_ALONE ((size_t)1 << 20)

/* A plain free looks for a fence that is there already: see ca_epoch_cover. */
static inline bool share(ca_arena_t *arena, ca_block_t *block)
{
    size_t bytes = ca_block_size(block);
    uint64_t began = ca_order_quiet_since();

    return began &&
           (bytes >= CA_EPOCH_LARGE ||
            (bytes >= SHARES_ALONE && !arena->plain_fences.closed.head)) &&
           ca_epoch_cover(arena, block, began);
}

CA_INLINE void take_back(ca_block_t *block, ca_stream_t *stream, uint16_t number, freeing_t how)
{
    ca_arena_t *arena = lock_arena(block);

    if (!arena)
        return; /* its context is destroyed */
    if (how == ASYNC && stream) {
        if (ca_stream_arena(stream) == arena && ca_stream_is_number(stream, number))
            how = ON_STREAM;
        else
            stream = NULL;
    }
    /* Without fences nothing but such waits makes anything ready. */
    bool plain = how == PLAIN || (how == ASYNC && arena->no_fences);
    bool foreign = how == FOREIGN;
    /* What another process may see serves no request next, on the same stream neither. */
    bool elsewhere = foreign || (how == ASYNC && !plain) ||
                     (stream && (ca_stream_arena(stream) != arena || block->exported));
    if (stream && elsewhere) { /* of another arena, if not of another context */
        foreign = ca_stream_arena(stream)->context != arena->context;
        stream = NULL;
    }
    if (foreign && !arena->retired)
        stream = ca_stream_elsewhere(arena);
    if (!arena->retired && ca_block_state(block) == CA_BLOCK_LIVE) {
        arena->operations++;
        if (how == PLAIN || (how == ASYNC && CA_MUTATED(order_by_free_async))) {
            uint64_t newest = ca_fence_newest();
            ca_fence_note_free(arena->context, newest);
            ca_arena_note_free(arena, newest);
        }
        ca_warmup_step(arena);
        ca_fence_queue_t *fences = stream ? &stream->fences : &arena->plain_fences;
        ca_block_unlive(arena, block);
        bool covered = false;
        if (CA_MUTATED(reuse_pending) || (CA_MUTATED(pinned_reuse) && arena->params.host)) {
            arena->pending -= ca_block_size(block);
            ca_block_ready(arena, block);
        } else if (!(covered = (stream && ca_stream_keeps(stream, block)) ||
                               (how == PLAIN && share(arena, block)))) {
            ca_epoch_push(arena, fences, block);
            fences->open->foreign |= foreign && !stream;
            ca_epoch_freed_by(fences->open, elsewhere ? CA_BY_SEVERAL : ca_thread_number());
        }
        check_now_and_then(arena);
        if (!covered && ca_epoch_due(arena, fences)) {
            int cancellation = ca_arena_enter(arena);
            ca_epoch_close_due(arena, fences, elsewhere ? CA_BY_ALLOC : CA_BY_FREE);
            ca_grow_estimate_again(arena);
            if (plain && !foreign)
                ca_give_exported(arena);
            ca_arena_leave(arena, cancellation);
        }
    }
    ca_lock_drop(&arena->lock);
}

void ca_arena_free(ca_block_t *block)
{
    take_back(block, NULL, 0, PLAIN);
}

void ca_arena_free_on(ca_block_t *block, ca_stream_t *stream)
{
    take_back(block, stream, 0, stream ? ON_STREAM : PLAIN);
}

void ca_arena_free_elsewhere(ca_block_t *block)
{
    take_back(block, NULL, 0, FOREIGN);
}

void ca_arena_free_async(ca_block_t *block, ca_stream_t *stream, uint16_t number)
{
    take_back(block, stream, number, ASYNC);
}

void ca_arena_retire(ca_arena_t *arena)
{
    ca_arena_retire_begin(arena);
    ca_arena_retire_end(arena);
}

void ca_arena_retire_begin(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    arena->inside++;
    if (!arena->retired) {
        arena->retired = true;
        arena->home = NULL; /* nothing here is anyone's any more */
        ca_caches_drop(arena);
        for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
            ca_span_remove(segment->base, segment->bytes, arena);
        ca_reserved_forget(arena);
        ca_signal_all(&arena->grown);
    }
    ca_lock_drop(&arena->lock);
}

void ca_arena_retire_end(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    ca_arena_left(arena);
    ca_lock_drop(&arena->lock);
}

bool ca_arena_revive(ca_arena_t *arena)
{
    const size_t kept = offsetof(ca_arena_t, stopped);
    ca_bins_t *bins = ca_mem_map(BINS_BYTES);

    if (!bins)
        return false;
    ca_lock_take(&arena->lock);
    bool revived = arena->retired && arena->inside == 0 && !arena->bins;
    if (revived) {
        memset((char *)arena + kept, 0, sizeof *arena - kept);
        revived = begin(arena, bins);
        if (!revived) {
            ca_slab_destroy(&arena->epochs);
            arena->bins = NULL;
            arena->depot = arena->caches = NULL; /* it lay behind the bins */
            arena->retired = true;
        }
    }
    ca_lock_drop(&arena->lock);
    if (!revived)
        ca_mem_unmap(bins, BINS_BYTES);
    return revived;
}

void ca_arena_note_free_bytes(ca_arena_t *arena, size_t bytes)
{
    ca_lock_take(&arena->lock);
    if (bytes < arena->free_bytes)
        ca_grow_set_found(arena, bytes);
    ca_lock_drop(&arena->lock);
}

ca_record_t *ca_block_record(ca_block_t *block)
{
    return &block->record;
}

bool ca_block_is_at(ca_block_t *block, uint64_t address)
{
    return ca_record_address(&block->record) == address;
}

void *ca_arena_context(const ca_arena_t *arena)
{
    return arena ? arena->context : NULL;
}

void ca_arena_stop(ca_arena_t *arena)
{
    arena->stopped = true;
    ca_caches_review(arena);
}

/* What lies in caches counts as live to the arena, and would go back with the rest. */
static bool has_live(const ca_segment_t *segment, size_t cached)
{
    if (!segment->live_blocks || !cached)
        return segment->live_blocks;
    for (const ca_block_t *block = segment->first; block; block = ca_block_upper(block))
        if (ca_block_state(block) == CA_BLOCK_LIVE)
            return true;
    return false;
}

/* Caches stay as they are: this may run where a signal interrupted one of them, or the registry. */
static void fill_stats(const ca_arena_t *arena, ca_arena_stats_t *stats)
{
    *stats = (ca_arena_stats_t){0};
    if (arena->retired)
        return;
    stats->reserved_bytes = arena->reserved;
    stats->reserved_peak = arena->reserved_peak;
    size_t cached = ca_caches_bytes(arena);
    stats->live_bytes = arena->live > cached ? arena->live - cached : 0;
    stats->live_peak = arena->live_peak;
    stats->pending_bytes = arena->pending - arena->passed->bytes + arena->live - stats->live_bytes;
    stats->ready_bytes = arena->ready + arena->passed->bytes;
    stats->exported_bytes = arena->exported;
    for (unsigned pool = 0; pool < CA_POOLS; pool++) {
        size_t largest = ca_bins_largest(&arena->bins[pool]);
        stats->largest_ready = largest > stats->largest_ready ? largest : stats->largest_ready;
    }
    stats->segments = arena->segment_count - (arena->range ? arena->range->view_count : 0);
    stats->blocks = arena->blocks.live;
    stats->epochs = arena->plain_fences.closed.count;
    for (const ca_segment_t *segment = arena->segments; segment; segment = segment->next)
        if (!segment->ranged && !has_live(segment, cached))
            stats->idle_bytes += segment->bytes;
    stats->idle_bytes += ca_range_vacant(arena);
}

void ca_arena_stats(ca_arena_t *arena, ca_arena_stats_t *stats)
{
    ca_lock_take(&arena->lock);
    ca_blocks_merge(arena);
    fill_stats(arena, stats);
    ca_lock_drop(&arena->lock);
}

bool ca_arena_stats_try(ca_arena_t *arena, ca_arena_stats_t *stats)
{
    if (!ca_lock_take_timed(&arena->lock))
        return false;
    fill_stats(arena, stats);
    ca_lock_drop(&arena->lock);
    return true;
}

void ca_pool_reset_after_fork(void)
{
    ca_lock_init(&arenas_lock, CA_RANK_MEMORY);
    arenas = (ca_slab_t){.object_bytes = ARENA_BYTES};
    ca_streams_reset_after_fork();
    ca_caches_reset_after_fork();
    ca_span_reset_after_fork();
    ca_pool_reset_requests();
    ca_giving_reset_after_fork();
    ca_order_reset_after_fork();
    ca_ranges_reset_after_fork();
}
