/* See stream.h. */
#include "pool/fence/stream.h"

#include <errno.h>
#include <pthread.h>
#include "base/inline.h"
#include "base/lock.h"
#include "base/mutation.h"
#include "pool/cache/cache.h"
#include "pool/blocks/mixed.h"
#include "pool/blocks/segment.h"
#include "pool/state.h"

#define SPARE_POLLS 2 /* destroyed streams that are polled before an object is made */

/* Bytes from one stream to the next. Their places in a thread's cache come of their addresses
 * (ca_cache_ordered_at): with 256 those of the first eight are different, with 192 they are not. */
#define APART ((size_t)256)
_Static_assert(sizeof(ca_stream_t) <= APART, "streams are apart");

/* Never destroyed, see ca_streams_drop. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static ca_slab_t slab = {.object_bytes = APART};

bool ca_stream_is_number(const ca_stream_t *stream, uint16_t number)
{
    return !stream->retired && stream->number == number;
}

bool ca_stream_is_legacy(const ca_stream_t *stream)
{
    return stream->kind == CA_STREAM_LEGACY;
}

bool ca_stream_unseen(const ca_stream_t *stream)
{
    return __atomic_load_n(&stream->unseen, __ATOMIC_RELAXED); /* without the lock */
}

uint16_t ca_stream_number(const ca_stream_t *stream)
{
    return __atomic_load_n(&stream->number, __ATOMIC_RELAXED); /* without the lock */
}

void ca_stream_handed(ca_stream_t *stream)
{
    ca_arena_t *arena = stream->arena;

    if (stream == atomic_load_explicit(&arena->by_default, memory_order_relaxed))
        stream = atomic_load_explicit(&arena->legacy, memory_order_acquire);
    if (!stream)
        return; /* its context was destroyed */
    ca_raise(&stream->handed, atomic_load(&stream->begun) + 1);
}

uint64_t ca_stream_begin_serial(ca_stream_t *stream)
{
    if (atomic_load(&stream->handed) <= atomic_load(&stream->made) || CA_MUTATED(overlap_kept))
        return 0;
    return atomic_fetch_add(&stream->begun, 1) + 1;
}

void ca_stream_made_serial(ca_stream_t *stream, uint64_t begun)
{
    ca_raise(&stream->made, begun);
}

bool ca_stream_precise(const ca_arena_t *arena)
{
    return arena->operations < arena->precise_until && arena->living_streams > 1;
}

ca_arena_t *ca_stream_arena(const ca_stream_t *stream)
{
    return stream->arena;
}

/* --- streams with something to poll or to wait for ---------------------------------------------
 *
 * A program may have thousands of streams, and an allocation that polls reads each of these. So
 * the list has only the streams that have pending blocks. A stream enters it with its first block.
 * It leaves only while no thread walks the list, because the lock is dropped on the way. */

static bool is_idle(const ca_stream_t *stream)
{
    const ca_fence_queue_t *fences = &stream->fences;

    return fences->open->count == 0 && !fences->closing.head && !fences->closed.head;
}

static void join_busy(ca_stream_t *stream)
{
    if (stream->busy)
        return;
    stream->busy = true;
    stream->next_busy = stream->arena->busy;
    stream->arena->busy = stream;
}

/* A walk along them, by `next_busy`: the first, or NULL. To be ended: arena->walks. */
static ca_stream_t *walk(ca_arena_t *arena)
{
    if (arena->walks++ == 0 && !arena->retired)
        for (ca_stream_t **at = &arena->busy, *stream; (stream = *at);) {
            if (is_idle(stream)) {
                *at = stream->next_busy;
                stream->busy = false;
            } else {
                at = &stream->next_busy;
            }
        }
    return arena->busy;
}

void ca_stream_list(ca_stream_t *stream, ca_block_t *block)
{
    join_busy(stream);
    ca_bins_insert(stream->bins, block);
}

static bool may_record(const ca_stream_t *stream)
{
    return !stream->unseen && (!stream->confined || pthread_equal(stream->owner, pthread_self()));
}

/* Its blocks wait for all work instead of the stream's alone. */
static void evacuate(ca_stream_t *stream)
{
    ca_arena_t *arena = stream->arena;
    ca_block_t *block;

    if (stream->fences.open->blocks)
        ca_epoch_freed_by(arena->plain_fences.open, CA_BY_SEVERAL);
    arena->plain_fences.open->foreign |=
        stream->fences.open->blocks && stream->kind == CA_STREAM_ELSEWHERE;
    while ((block = stream->fences.open->blocks)) {
        ca_epoch_pull(block);
        ca_epoch_push(arena, &arena->plain_fences, block);
    }
}

void ca_stream_reopened(ca_stream_t *stream, int rc)
{
    if (stream->retired || (rc != -EAGAIN && rc != -EIO))
        evacuate(stream);
}

/* --- home ------------------------------------------------------------------------------------- */

/* Where it cannot have a fence of its own later, it gets one behind all work: if there are any. */
static bool comes_home(ca_stream_t *stream)
{
    ca_arena_t *arena = stream->arena;

    if ((stream != atomic_load_explicit(&arena->by_default, memory_order_relaxed) &&
         !arena->params.all_come_home && !CA_MUTATED(home_at_once)) ||
        arena->home || arena->asked != stream || arena->operations < arena->home_after ||
        arena->inside || stream->kind != CA_STREAM_COMMON || stream->retired ||
        ((stream->unseen || stream->confined) && !arena->fenced) || ca_stream_precise(arena) ||
        arena->params.reuse == CA_POOL_REUSE_ORDER)
        return false;
    arena->home = stream;
    ca_blocks_ready(arena, stream->fences.open);
    for (ca_epoch_t *epoch = stream->fences.closed.head; epoch; epoch = epoch->next)
        ca_blocks_ready(arena, epoch); /* it stays in the queue, empty */
    return true;
}

bool ca_stream_keeps(ca_stream_t *stream, ca_block_t *block)
{
    ca_arena_t *arena = stream->arena;

    /* In pin mode a view that is ready is in no list from where it could leave: see view.h. */
    if (arena->pins || (arena->home != stream && !comes_home(stream)))
        return false;
    arena->pending -= ca_block_size(block);
    ca_block_ready(arena, block);
    return true;
}

void ca_stream_leave(ca_arena_t *arena)
{
    ca_stream_t *stream = arena->home;

    if (!stream)
        return;
    arena->home = NULL;
    if (CA_MUTATED(home_unfenced))
        return;
    for (unsigned pool = 0; pool < CA_POOLS; pool++)
        for (const ca_bins_t *bins = &arena->bins[pool]; bins->rows;) {
            unsigned row = (unsigned)__builtin_ctzll(bins->rows);
            ca_block_t *block = bins->heads[row][__builtin_ctz(bins->subs[row])];
            ca_block_unready(arena, block);
            block->state = CA_BLOCK_PENDING;
            arena->pending += ca_block_size(block);
            ca_epoch_push(arena, &stream->fences, block);
        }
    int cancellation = ca_arena_enter(arena);
    if (!may_record(stream))
        evacuate(stream);
    ca_epoch_close(arena, may_record(stream) ? &stream->fences : &arena->plain_fences, CA_BY_ALLOC);
    ca_arena_leave(arena, cancellation);
}

bool ca_stream_leave_passed(ca_arena_t *arena)
{
    if (!arena->home || CA_MUTATED(home_released))
        return true;
    ca_stream_leave(arena);
    bool idle = ca_epoch_device_idle(arena, ca_epoch_long_wait(arena));
    ca_streams_reap(arena, SIZE_MAX, true);
    ca_epoch_reap(arena, &arena->plain_fences, SIZE_MAX, true);
    return idle && ca_arena_serving(arena);
}

/* It is about to ask, or to end. */
static void leave_for_others(ca_arena_t *arena)
{
    if (arena->home && arena->home_left < CA_HOME_DOUBLINGS)
        arena->home_left++;
    uint64_t after = (uint64_t)CA_HOME_AFTER << arena->home_left;
    if (!CA_MUTATED(home_at_once))
        arena->home_after = arena->operations + after * (arena->living_streams + 1);
    ca_stream_leave(arena);
}

void ca_stream_asks(ca_arena_t *arena, ca_stream_t *stream)
{
    arena->asked = stream;
    if (!CA_MUTATED(home_shared))
        leave_for_others(arena);
}

void ca_streams_close(ca_arena_t *arena)
{
    if (!arena->busy)
        return;
    for (ca_stream_t *stream = walk(arena); stream && ca_arena_serving(arena);
         stream = stream->next_busy) {
        if (stream->retired || stream->fences.open->count == 0)
            continue;
        if (may_record(stream))
            ca_epoch_close(arena, &stream->fences, CA_BY_ALLOC);
        else
            evacuate(stream);
    }
    arena->walks--;
}

size_t ca_streams_closed(const ca_arena_t *arena)
{
    size_t count = 0;

    for (const ca_stream_t *stream = arena->busy; stream; stream = stream->next_busy)
        count += stream->fences.closed.count;
    return count;
}

size_t ca_streams_reap(ca_arena_t *arena, size_t most, bool forced)
{
    size_t passed = 0;

    if (!arena->busy)
        return 0;
    for (ca_stream_t *stream = walk(arena); stream && ca_arena_serving(arena);
         stream = stream->next_busy)
        passed += ca_epoch_reap(arena, &stream->fences, most, forced);
    arena->walks--;
    return passed;
}

/* Whether work that is submitted from now on, where the program knows of an allocation on the
 * stream, runs behind all that was at the block. */
static bool in_order(const ca_stream_t *stream, const ca_block_t *block)
{
    return stream->kind == CA_STREAM_COMMON ||
           (stream->kind == CA_STREAM_LEGACY && ca_block_epoch(block)->fence != NULL) ||
           CA_MUTATED(legacy_unfenced);
}

/* The best of the stream's pending blocks for a request, or NULL. */
static ca_block_t *find(const ca_stream_t *stream, size_t bytes, ca_take_t how)
{
    ca_block_t *block =
        ca_bins_find(stream->bins, bytes, ca_block_alignment(bytes), CA_BIN_COMPARES);

    if (!block || ca_block_padding(block, ca_block_alignment(bytes)))
        return NULL;
    if (ca_segment_whole(ca_block_segment(block)))
        return ca_block_close_enough(block, bytes) ? block : NULL;
    size_t rest = ca_block_size(block) - bytes;
    if (rest <= bytes / 8 && rest < CA_SEGMENT_UNIT) /* more is of use to others: see mixed.h */
        return block;
    if (how == CA_TAKE_CLOSE || ca_block_segment(block)->pool != ca_pool_of(stream->arena, bytes))
        return NULL;
    return how == CA_TAKE_ANY || ca_mixed_allows(stream->arena, ca_block_segment(block), bytes)
               ? block
               : NULL;
}

ca_block_t *ca_stream_take(ca_stream_t *stream, size_t bytes, ca_take_t how)
{
    ca_arena_t *arena = stream->arena;
    ca_block_t *block = find(stream, bytes, how);

    if (block && !in_order(stream, block))
        block = NULL;
    if (CA_MUTATED(reuse_across_streams))
        for (ca_stream_t *other = arena->streams; !block && other; other = other->next)
            block = find(other, bytes, how);
    return block ? ca_block_take_pending(arena, block,
                                         how == CA_TAKE_CLOSE ? ca_block_size(block) : bytes)
                 : NULL;
}

ca_block_t *ca_stream_take_joined(ca_stream_t *stream, size_t bytes)
{
    ca_arena_t *arena = stream->arena;
    ca_block_t *block = NULL;

    if (arena->precise_until < arena->operations + CA_STREAM_PRECISE)
        arena->precise_until = arena->operations + CA_STREAM_PRECISE;
    if (ca_stream_precise(arena))
        ca_caches_give_streams(arena, NULL, true);
    for (const ca_stream_t *other = arena->busy; !block && other; other = other->next_busy) {
        block = other == stream || other->kind == CA_STREAM_ELSEWHERE
                    ? NULL
                    : find(other, bytes, CA_TAKE_CUT);
        if (block && !(ca_block_epoch(block)->fence && ca_block_epoch(block)->precise))
            block = NULL;
    }
    if (!block)
        return NULL;
    ca_epoch_t *epoch = ca_block_epoch(block);
    block = ca_block_take_pending(arena, block, bytes);
    if (!block)
        return NULL;
    int rc = ca_epoch_join(arena, epoch, stream->queue);
    if (!ca_arena_serving(arena))
        return NULL; /* its memory was unmapped, or nothing more can be said of it */
    if (rc == 0)
        return block;
    /* The stream does not wait: then the block does. */
    ca_block_unlive(arena, block);
    ca_epoch_freed_by(arena->plain_fences.open, CA_BY_SEVERAL);
    ca_epoch_push(arena, &arena->plain_fences, block);
    return NULL;
}

static void add_destroyed(ca_arena_t *arena, ca_stream_t *stream)
{
    stream->next_retired = NULL;
    *(arena->retired_streams ? &arena->last_retired_stream->next_retired
                             : &arena->retired_streams) = stream;
    arena->last_retired_stream = stream;
}

/* The object of a stream that was destroyed and whose work is done. The ones that were destroyed
 * first are polled first, and move behind the others where they still work: so a stream that works
 * for ever holds no other one up. Drops the lock. */
static ca_stream_t *spare(ca_arena_t *arena)
{
    for (unsigned i = 0; i < SPARE_POLLS && arena->retired_streams; i++) {
        ca_stream_t *stream = arena->retired_streams;
        arena->retired_streams = stream->next_retired;
        ca_epoch_reap(arena, &stream->fences, SIZE_MAX, true);
        if (!ca_arena_serving(arena))
            return NULL;
        if (is_idle(stream))
            return stream;
        add_destroyed(arena, stream);
    }
    return NULL;
}

/* For a later life of the arena. */
static void end(ca_stream_t *stream)
{
    ca_mem_unmap(stream->bins, sizeof(ca_bins_t));
    stream->bins = NULL;
    stream->fences = (ca_fence_queue_t){0};
    stream->retired = true;
    stream->busy = false;
    stream->next = stream->arena->ended;
    stream->arena->ended = stream;
}

static ca_stream_t *make(ca_arena_t *arena)
{
    ca_stream_t *stream = arena->ended;
    if (stream) {
        arena->ended = stream->next;
    } else {
        ca_lock_take(&lock);
        stream = ca_slab_take(&slab);
        ca_lock_drop(&lock);
    }
    if (!stream)
        return NULL;
    stream->arena = arena;
    stream->kind = CA_STREAM_COMMON;
    stream->bins = ca_mem_map(sizeof(ca_bins_t));
    if (!stream->bins || ca_fence_queue_start(arena, &stream->fences, stream) < 0) {
        end(stream);
        return NULL;
    }
    stream->next = arena->streams;
    arena->streams = stream;
    return stream;
}

static void start(ca_arena_t *arena, ca_stream_t *stream, void *queue)
{
    stream->queue = queue;
    stream->retired = false;
    uint16_t next = arena->stream_numbers < UINT16_MAX ? ++arena->stream_numbers : 0;

    __atomic_store_n(&stream->number, next, __ATOMIC_RELAXED);
}

/* One that is there as long as the arena: no thread's, and never destroyed. */
static ca_stream_t *make_lasting(ca_arena_t *arena, ca_stream_kind_t kind, void *queue)
{
    ca_stream_t *stream =
        arena->upstream->fence_record_on && ca_arena_serving(arena) ? make(arena) : NULL;

    if (!stream)
        return NULL;
    stream->kind = kind;
    stream->confined = stream->unseen = false;
    start(arena, stream, queue);
    return stream;
}

ca_stream_t *ca_stream_elsewhere(ca_arena_t *arena)
{
    if (!arena->elsewhere)
        arena->elsewhere = make_lasting(arena, CA_STREAM_ELSEWHERE, NULL);
    return arena->elsewhere;
}

/* `at`: where the arena has it. */
static ca_stream_t *find_lasting(ca_arena_t *arena, ca_stream_t *_Atomic *at, ca_stream_kind_t kind,
                                 void *queue)
{
    ca_stream_t *stream = atomic_load_explicit(at, memory_order_acquire);

    if (stream)
        return stream;
    ca_lock_take(&arena->lock);
    stream = atomic_load(at);
    if (!stream) {
        stream = make_lasting(arena, kind, queue);
        atomic_store_explicit(at, stream, memory_order_release);
        arena->living_streams += stream && kind == CA_STREAM_COMMON;
        if (stream && !arena->fenced)
            ca_caches_review(arena);
    }
    ca_lock_drop(&arena->lock);
    return stream;
}

ca_stream_t *ca_arena_legacy_stream(ca_arena_t *arena, void *queue)
{
    return find_lasting(arena, &arena->legacy, CA_STREAM_LEGACY, queue);
}

/* Launches know the other one: see ca_stream_handed. */
ca_stream_t *ca_arena_default_stream(ca_arena_t *arena, void *queue)
{
    return ca_arena_legacy_stream(arena, queue)
               ? find_lasting(arena, &arena->by_default, CA_STREAM_COMMON, queue)
               : NULL;
}

ca_stream_t *ca_arena_stream(ca_arena_t *arena, void *queue, bool confined)
{
    ca_stream_t *stream = NULL;

    if (!arena->upstream->fence_record_on)
        return NULL;
    ca_lock_take(&arena->lock);
    if (arena->params.reuse == CA_POOL_REUSE_WAIT)
        arena->precise_until = UINT64_MAX;
    int cancellation = ca_arena_enter(arena);
    stream = spare(arena);
    if (!stream && ca_arena_serving(arena))
        stream = make(arena);
    if (stream) {
        start(arena, stream, queue);
        arena->living_streams++;
        stream->confined = confined;
        stream->unseen = arena->params.unseen_ends && !confined;
        stream->owner = pthread_self();
        stream->fences.close_after = stream->fences.query_after = 0;
        if (ca_stream_precise(arena)) /* what others keep, this one could not join */
            ca_caches_give_streams(arena, NULL, true);
        if (!arena->fenced)
            ca_caches_review(arena);
    }
    ca_arena_leave(arena, cancellation);
    ca_lock_drop(&arena->lock);
    return stream;
}

void ca_stream_retire(ca_stream_t *stream)
{
    ca_arena_t *arena = stream->arena;

    ca_lock_take(&arena->lock);
    if (!arena->retired && !stream->retired) {
        int cancellation = ca_arena_enter(arena);
        if (arena->home == stream)
            leave_for_others(arena);
        stream->retired = true; /* no thread begins to record on it from here on */
        arena->living_streams--;
        ca_caches_give_streams(arena, stream, false);
        if (!stream->confined && !stream->unseen) {
            ca_epoch_close(arena, &stream->fences, CA_BY_ALLOC);
            ca_epoch_reap(arena, &stream->fences, SIZE_MAX, true);
        }
        /* Others may be inside the driver, recording on it: a short call, a second at most. */
        for (int tries = 0; stream->fences.closing.head && tries < 20000; tries++) {
            ca_lock_drop(&arena->lock);
            ca_sleep(50000);
            ca_lock_take(&arena->lock);
        }
        if (!arena->retired) {
            evacuate(stream);
            add_destroyed(arena, stream);
        }
        ca_arena_leave(arena, cancellation);
    }
    ca_lock_drop(&arena->lock);
}

void ca_streams_drop(ca_arena_t *arena)
{
    for (ca_stream_t *stream = arena->streams, *next; stream; stream = next) {
        next = stream->next;
        end(stream);
    }
    arena->streams = arena->busy = NULL;
    arena->retired_streams = arena->last_retired_stream = arena->elsewhere = NULL;
    atomic_store(&arena->legacy, NULL);
    atomic_store(&arena->by_default, NULL);
}

void ca_streams_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_MEMORY);
    slab = (ca_slab_t){.object_bytes = APART};
}
