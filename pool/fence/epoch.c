/* Epochs: open, closing, closed, passed; see epoch.h. */
#include "pool/fence/epoch.h"

#include <errno.h>
#include "base/counters.h"
#include "base/history.h"
#include "base/inline.h"
#include "base/thread_state.h"
#include "base/mutation.h"
#include "pool/cache/cache_hit.h"
#include "pool/cache/cache_mark.h"
#include "pool/fence/fence_order.h"
#include "pool/fence/order.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

_Atomic uint64_t ca_fence_last;
_Thread_local ca_fence_freed_t ca_fence_freed[CA_FENCE_CONTEXTS];

static void list_append(ca_epoch_list_t *list, ca_epoch_t *epoch)
{
    epoch->next = NULL;
    epoch->prev = list->tail;
    if (list->tail)
        list->tail->next = epoch;
    else
        list->head = epoch;
    list->tail = epoch;
    list->count++;
}

static void list_remove(ca_epoch_list_t *list, ca_epoch_t *epoch)
{
    if (epoch->prev)
        epoch->prev->next = epoch->next;
    else
        list->head = epoch->next;
    if (epoch->next)
        epoch->next->prev = epoch->prev;
    else
        list->tail = epoch->prev;
    list->count--;
}

static size_t scale(const ca_arena_t *arena)
{
    return arena->no_fences ? CA_SYNC_SCALE : 1;
}

/* See fence_order.h. The calling thread's cache may have served blocks since it last published. The
 * arena knows no more of those than the two numbers that are read here. */
static uint64_t freed_after(const ca_arena_t *arena)
{
    const ca_cache_t *cache = arena->caches ? ca_cache_own(arena) : NULL;

    if (cache)
        ca_fence_note_free(arena->context,
                           ca_cache_frees(cache) ? cache->published_after : cache->freed_after);
    return ca_fence_freed_after(arena->context);
}

void ca_epoch_freed_by(ca_epoch_t *epoch, unsigned thread)
{
    epoch->by = epoch->by == CA_BY_NO_THREAD || epoch->by == thread ? thread : CA_BY_SEVERAL;
}

/* No thread waits without bound for work of a single stream: no plain free would have. */
ca_epoch_t *ca_epoch_make(ca_arena_t *arena, ca_fence_queue_t *fences)
{
    ca_epoch_t *epoch = ca_slab_take(&arena->epochs);

    if (epoch) {
        epoch->fences = fences;
        epoch->number = CA_FENCE_NONE;
    }
    return epoch;
}

int ca_fence_queue_start(ca_arena_t *arena, ca_fence_queue_t *fences, ca_stream_t *stream)
{
    *fences = (ca_fence_queue_t){.stream = stream};
    fences->open = ca_epoch_make(arena, fences);
    return fences->open ? 0 : -ENOMEM;
}

void ca_epoch_push(ca_arena_t *arena, ca_fence_queue_t *fences, ca_block_t *block)
{
    ca_epoch_push_into(fences->open, block);
    if (fences->stream)
        ca_stream_list(fences->stream, block);
    else if (ca_block_size(block) >= CA_EPOCH_LARGE * scale(arena) ||
             (ca_block_size(block) > CA_WARMUP_CLOSES && ca_warmup_may_ask(arena)))
        fences->open->urgent = true;
}

void ca_epoch_pull(ca_block_t *block)
{
    ca_epoch_t *epoch = ca_block_epoch(block);

    if (epoch->fences->stream)
        ca_bins_remove(epoch->fences->stream->bins, block);
    ca_epoch_pull_from(epoch, block);
}

/* Bytes that the open epoch of plain frees may hold. No thread can wait for what is in it: so it is
 * small where memory is short. Without fences it cannot even be polled: a request for all the free
 * memory and up to this much more is refused where a plain free would have made it fit. So the
 * share shrinks by what the epoch may grow: a few MiB at most while less than 1 GiB is free, under
 * 1% of that always. From the first refusal on, where arena->free_bytes is 0, the epoch keeps
 * nothing. Nor may a refused close put the next one off there: no allocation makes up for it. */
static size_t holds(const ca_arena_t *arena)
{
    size_t most = arena->free_bytes / CA_EPOCH_FREE_SHARE / scale(arena);
    size_t own = ca_warmup_epoch_bytes(arena) * scale(arena);

    if (arena->cache_count) /* the other half is theirs */
        most /= 2;
    return most < own ? most : own;
}

static bool stream_due(const ca_arena_t *arena, const ca_epoch_t *open)
{
    const ca_stream_t *stream = open->fences->stream;
    size_t most = arena->free_bytes / CA_EPOCH_FREE_SHARE;

    if (ca_stream_precise(arena) || stream->kind == CA_STREAM_ELSEWHERE || stream->unseen)
        return open->count > 0;
    if (stream->kind == CA_STREAM_LEGACY)
        most = CA_STREAM_LEGACY_BYTES;
    else if (most > CA_STREAM_EPOCH_BYTES)
        most = CA_STREAM_EPOCH_BYTES;
    /* An allocation and its free on one stream leave a single block here, which makes no call. But
     * on a thread's own stream no other thread can record a fence: one that is recorded later,
     * behind all work, might never pass. */
    bool lone = open->count == 1 && stream->kind == CA_STREAM_COMMON && !stream->confined;
    return open->count >= CA_STREAM_EPOCH_BLOCKS || (!lone && open->count && open->bytes >= most);
}

bool ca_epoch_due(const ca_arena_t *arena, const ca_fence_queue_t *fences)
{
    const ca_epoch_t *open = fences->open;
    if (fences->stream)
        return arena->operations >= fences->close_after && ca_arena_serving(arena) &&
               stream_due(arena, open);
    if (!ca_arena_serving(arena) || (!arena->no_fences && arena->operations < fences->close_after))
        return false;
    return open->urgent || open->count >= CA_EPOCH_BLOCKS * scale(arena) ||
           open->bytes >= holds(arena);
}

bool ca_epoch_overdue(const ca_arena_t *arena, const ca_epoch_t *epoch)
{
    /* Without a fence only everything can be waited for, what was submitted since included. */
    if (epoch->foreign || (arena->no_fences && !epoch->fence))
        return true;
    if (epoch == arena->plain_fences.open)
        return epoch->by != ca_thread_number();
    return epoch->number > freed_after(arena);
}

void ca_epoch_shrink(ca_block_t *block, size_t bytes)
{
    ca_stream_t *stream = ca_block_epoch(block)->fences->stream;
    size_t rest = ca_block_size(block) - bytes;

    ca_block_epoch(block)->bytes -= bytes;
    if (stream)
        ca_bins_resize(stream->bins, block, rest);
    else
        ca_block_set_size(block, rest);
}

static void empty(ca_epoch_t *epoch)
{
    epoch->blocks = epoch->last = NULL;
    epoch->count = epoch->bytes = 0;
}

/* Makes all blocks of an epoch ready; the epoch is then in no list. */
static void release_blocks(ca_arena_t *arena, ca_epoch_t *epoch)
{
    for (ca_block_t *block = epoch->blocks, *next; block; block = next) {
        next = ca_block_later(block);
        if (epoch->fences->stream)
            ca_bins_remove(epoch->fences->stream->bins, block);
        ca_history_note(.event = CA_EVENT_READY, .address = block->address,
                        .device = CA_EVENT_NO_DEVICE);
        if (ca_block_stays_whole(arena, block)) {
            ca_epoch_push_into(arena->passed, block);
        } else {
            arena->pending -= ca_block_size(block);
            ca_block_ready(arena, block);
        }
    }
    empty(epoch);
    ca_cache_pass(arena, epoch);
}

/* The open epoch, detached and replaced; NULL when it is empty or there is no host memory. */
static ca_epoch_t *detach_open(ca_arena_t *arena, ca_fence_queue_t *fences)
{
    ca_epoch_t *epoch = fences->open;

    if (!ca_arena_serving(arena) || (epoch->count == 0 && !epoch->marks))
        return NULL;
    ca_epoch_t *fresh = ca_epoch_make(arena, fences);
    if (!fresh)
        return NULL;
    fences->open = fresh;
    list_append(&fences->closing, epoch);
    return epoch;
}

/* A closing epoch that got no fence is the open one again; what was freed meanwhile joins it. */
static void reopen(ca_arena_t *arena, ca_epoch_t *epoch, int rc)
{
    ca_fence_queue_t *fences = epoch->fences;
    ca_epoch_t *newer = fences->open;

    for (ca_block_t *block = newer->blocks, *next; block; block = next) {
        next = ca_block_later(block);
        ca_epoch_push_into(epoch, block);
    }
    if (newer->by != CA_BY_NO_THREAD)
        ca_epoch_freed_by(epoch, newer->by);
    epoch->urgent = (epoch->urgent || newer->urgent) && !arena->no_fences;
    epoch->foreign |= newer->foreign;
    ca_cache_move_marks(arena, newer, epoch);
    fences->open = epoch;
    ca_slab_give(&arena->epochs, newer);
    if (fences->stream)
        ca_stream_reopened(fences->stream, rc);
}

/* Ends a closing. `rc` is what recording the fence, or synchronising, answered. */
static void end_closing(ca_arena_t *arena, ca_epoch_t *epoch, int rc)
{
    list_remove(&epoch->fences->closing, epoch);
    if (rc == -EIO)
        arena->stopped = true;
    else if (rc == -ENOSYS && !epoch->fences->stream)
        arena->no_fences = true;
    else if (rc < 0)
        epoch->fences->close_after = arena->operations + CA_CLOSE_BACKOFF;
    if (rc < 0)
        reopen(arena, epoch, rc);
    bool first = rc == 0 && !epoch->fences->stream && !arena->fenced && !arena->no_fences;
    arena->fenced |= first;
    if (first || rc == -EIO || rc == -ENOSYS)
        ca_caches_review(arena);
}

void ca_epoch_synchronize(ca_arena_t *arena)
{
    ca_epoch_t *epoch = detach_open(arena, &arena->plain_fences);

    if (!epoch)
        return;
    ca_lock_drop(&arena->lock);
    int rc = ca_upstream_synchronize(arena->upstream, arena->context, epoch->foreign);
    ca_lock_take(&arena->lock);
    if (rc == -ENOSYS)
        rc = -EAGAIN; /* neither: keep it for later, as during a capture */
    end_closing(arena, epoch, rc);
    if (rc == 0) {
        release_blocks(arena, epoch);
        ca_slab_give(&arena->epochs, epoch);
    }
}

bool ca_epoch_in_order(const ca_arena_t *arena)
{
    return arena->params.reuse == CA_POOL_REUSE_ORDER &&
           (!arena->params.host || CA_MUTATED(order_pinned)) && !arena->no_fences &&
           ca_order_may(arena->context);
}

/* Behind what is in there: it serves in the order of the frees. */
static void append(ca_epoch_t *epoch, ca_block_t *block)
{
    ca_block_set_epoch(block, epoch);
    ca_block_set_later(block, NULL);
    ca_block_set_earlier(block, epoch->last);
    if (epoch->last)
        ca_block_set_later(epoch->last, block);
    else
        epoch->blocks = block;
    epoch->last = block;
    epoch->count++;
    epoch->bytes += ca_block_size(block);
}

bool ca_epoch_cover(ca_arena_t *arena, ca_block_t *block, uint64_t began)
{
    const ca_epoch_t *open = arena->plain_fences.open;
    const ca_cache_t *cache;

    if (open->count || open->marks ||
        ((cache = arena->caches ? ca_cache_own(arena) : NULL) && ca_cache_open_count(cache)))
        return false;
    ca_epoch_t *newest = arena->plain_fences.closed.tail;
    if (!newest || newest->began != began)
        newest = arena->owed;
    if (!newest || newest->began != began || newest->foreign || !ca_epoch_in_order(arena))
        return false;
    if (newest == arena->owed) {
        arena->owed = NULL;
        newest->by = ca_thread_number();
        list_append(&arena->plain_fences.closed, newest);
    }
    append(newest, block);
    return true;
}

/* Of an epoch that was released. The caller has dropped the lock. */
static void release_fence(const ca_arena_t *arena, void *fence, bool lent)
{
    if (!lent || ca_order_give_up(fence))
        ca_upstream_fence_release(arena->upstream, arena->context, fence);
}

/* An epoch in no list ends, and its fence with it. Drops the lock. */
static void release(ca_arena_t *arena, ca_epoch_t *epoch)
{
    void *fence = epoch->fence;
    bool lent = epoch->lent;

    ca_slab_give(&arena->epochs, epoch);
    ca_lock_drop(&arena->lock);
    release_fence(arena, fence, lent);
    ca_lock_take(&arena->lock);
}

void ca_epoch_close(ca_arena_t *arena, ca_fence_queue_t *fences, ca_closer_t by)
{
    ca_stream_t *stream = fences->stream;

    if (!stream && arena->no_fences) {
        if (by == CA_BY_FREE)
            ca_epoch_synchronize(arena);
        return;
    }
    if (!stream)
        ca_cache_close_own(arena);
    ca_epoch_t *epoch = detach_open(arena, fences);
    if (!epoch)
        return;
    void *fence = NULL;
    bool ordered = !stream && arena->params.reuse == CA_POOL_REUSE_ORDER;
    epoch->began = ordered ? ca_order_record_begins() : 0;
    ca_lock_drop(&arena->lock);
    bool all = stream ? stream->kind == CA_STREAM_ELSEWHERE : epoch->foreign;
    int rc =
        stream && !all
            ? ca_upstream_fence_record_on(arena->upstream, arena->context, stream->queue, &fence)
            : ca_upstream_fence_record(arena->upstream, arena->context, all, &fence);
    ca_lock_take(&arena->lock);
    end_closing(arena, epoch, rc);
    if (!stream && rc == -ENOSYS && by == CA_BY_FREE && ca_epoch_due(arena, fences))
        ca_epoch_synchronize(arena);
    if (rc < 0)
        return;
    epoch->fence = fence;
    epoch->by = by == CA_BY_FREE && !stream ? ca_thread_number() : CA_BY_SEVERAL;
    epoch->precise = stream && by == CA_BY_FREE && epoch->count == 1;
    if (!stream) {
        epoch->number = ca_fence_number();
        if (by == CA_BY_FREE) {
            ca_fence_note_free(arena->context, epoch->number);
            ca_arena_note_free(arena, epoch->number);
        }
        /* What the caches publish later came after this fence. A free need not ask them all: a
         * thread waits only where memory is short, and there the caches keep nothing. */
        if (by == CA_BY_ALLOC)
            ca_caches_publish(arena);
    }
    list_append(&fences->closed, epoch);
}

int ca_epoch_answer(ca_arena_t *arena, ca_epoch_t *epoch, int answer)
{
    epoch->users--;
    if (arena->retired)
        answer = -EIO; /* the fence died with its context */
    else if (answer == -EIO)
        ca_arena_stop(arena);
    if (answer == 1 && !epoch->passed) {
        if (epoch->began && epoch->fence)
            ca_order_passed(arena->context, epoch->began);
        epoch->passed = true;
        list_remove(&epoch->fences->closed, epoch);
        release_blocks(arena, epoch);
    }
    if (epoch->passed && epoch->users == 0)
        release(arena, epoch);
    return answer;
}

void ca_epochs_end(ca_arena_t *arena, ca_fence_queue_t *fences)
{
    ca_epoch_t *epoch;

    if (fences == &arena->plain_fences && arena->owed) {
        list_append(&fences->closed, arena->owed);
        arena->owed = NULL;
    }
    while ((epoch = fences->closed.head)) {
        list_remove(&fences->closed, epoch);
        release(arena, epoch);
    }
}

size_t ca_epoch_reap(ca_arena_t *arena, ca_fence_queue_t *fences, size_t most, bool forced)
{
    size_t passed = 0;

    /* Forced or not: what had not passed a moment ago, within the same call, is not asked again. */
    if (forced ? arena->operations == fences->failed_at : arena->operations < fences->query_after)
        return 0;
    while (passed < most && fences->closed.head && ca_arena_serving(arena)) {
        ca_epoch_t *epoch = fences->closed.head;
        int answer = 1; /* of one that its stream, or a give-back, has emptied */
        bool asks = epoch->count > 0 || epoch->marks;
        epoch->users++;
        if (!asks)
            epoch->began = 0; /* it proves nothing */
        if (asks && !(epoch->began && ca_order_has_passed(arena->context, epoch->number))) {
            ca_lock_drop(&arena->lock);
            answer = ca_upstream_fence_query(arena->upstream, arena->context, epoch->fence);
            ca_lock_take(&arena->lock);
        }
        if (ca_epoch_answer(arena, epoch, answer) != 1) {
            fences->failed_at = arena->operations;
            fences->query_after = arena->operations + (CA_QUERY_BACKOFF << fences->failures);
            fences->failures += fences->failures < CA_QUERY_DOUBLINGS;
            break;
        }
        fences->failures = 0;
        arena->others_stuck &= !asks;
        arena->overdue_stuck &= !asks;
        passed++;
    }
    return passed;
}

/* With reuse in order a free need not poll: what has not passed serves as well. It polls from this
 * many closed epochs on, or the list would grow without end. */
#define IN_ORDER_BEHIND 64u

CA_INLINE bool may_not_serve(const ca_arena_t *arena, const ca_epoch_t *epoch)
{
    if (CA_MUTATED(order_counted_by_arena))
        return epoch->foreign || epoch->number > arena->freed_after;
    /* The usual case first. */
    if (epoch->number <= ca_fence_freed_after(arena->context) && !epoch->foreign)
        return false;
    return ca_epoch_overdue(arena, epoch) && !CA_MUTATED(order_overdue);
}

/* An epoch that has just been served stays, for what ca_epoch_cover puts there; the one before it
 * goes. `released`: what ca_order_take gave, and a fence that is not given up yet. Returns whether
 * it dropped the lock, to release any. */
static bool owe(ca_arena_t *arena, ca_epoch_t *epoch, void *released[3])
{
    ca_epoch_t *former = arena->owed;

    arena->owed = epoch;
    if (former)
        ca_slab_give(&arena->epochs, former);
    if (!released[0] && !released[1] && !released[2])
        return false;
    arena->inside++;
    ca_lock_drop(&arena->lock);
    for (unsigned i = 0; i < 3; i++)
        if (released[i])
            release_fence(arena, released[i], i == 2);
    ca_lock_take(&arena->lock);
    ca_arena_left(arena);
    return true;
}

ca_block_t *ca_epoch_take_owed(ca_arena_t *arena, size_t bytes)
{
    ca_epoch_t *epoch = arena->plain_fences.closed.tail;

    if (epoch->count != 1 || epoch->marks || epoch->prev || epoch->users || arena->owed ||
        !ca_arena_serving(arena) || !ca_epoch_in_order(arena) || may_not_serve(arena, epoch))
        return NULL;
    ca_block_t *block = epoch->blocks;
    if (!ca_block_take_whole(arena, block, bytes))
        return NULL;
    empty(epoch);
    ca_count(order_served);
    arena->plain_fences.closed = (ca_epoch_list_t){0}; /* it was the only one */
    arena->owed = epoch;
    return block;
}

/* The newest of all, whose only block is just what is wanted: it need not be made ready first, as
 * it would be taken then. */
static bool take_last(ca_arena_t *arena, ca_epoch_t *epoch, size_t bytes)
{
    if (!bytes || arena->plain_fences.closed.head || epoch->count != 1 || epoch->marks ||
        !ca_block_take_whole(arena, epoch->blocks, bytes))
        return false;
    empty(epoch);
    return true;
}

size_t ca_epoch_take_in_order(ca_arena_t *arena, size_t bytes, ca_block_t **found)
{
    ca_epoch_t *epoch = arena->plain_fences.closed.head, *next;
    size_t served = 0;

    if (CA_MUTATED(order_lazily_recorded)) {
        ca_epoch_close(arena, &arena->plain_fences, CA_BY_FREE);
        epoch = arena->plain_fences.closed.head;
    }
    if (CA_MUTATED(order_open_epoch) && ca_epoch_in_order(arena))
        release_blocks(arena, arena->plain_fences.open);
    for (; epoch && ca_epoch_in_order(arena); epoch = next) {
        next = epoch->next;
        void *former = arena->owed ? arena->owed->fence : NULL;
        void *released[3] = {NULL, NULL, epoch->lent ? former : NULL};
        if (epoch->users || may_not_serve(arena, epoch) || !ca_arena_serving(arena))
            break;
        if (!epoch->lent && !ca_order_take(arena->context, epoch->fence, epoch->began,
                                           epoch->number, former, released))
            break;
        epoch->lent = true;
        ca_count(order_served);
        arena->plain_fences.failures = 0;
        list_remove(&arena->plain_fences.closed, epoch);
        ca_block_t *block = epoch->blocks;
        bool took = take_last(arena, epoch, bytes);
        if (!took)
            release_blocks(arena, epoch);
        served++;
        if (owe(arena, epoch, released))
            next = arena->plain_fences.closed.head;
        if (took) {
            *found = arena->retired ? NULL : block;
            break;
        }
    }
    return served;
}

void ca_epoch_close_due(ca_arena_t *arena, ca_fence_queue_t *fences, ca_closer_t by)
{
    ca_epoch_close(arena, fences, by);
    size_t count = fences->closed.count;
    /* The newest fence was recorded this instant: not worth a query. */
    if (count > 1 && (fences->stream || count >= IN_ORDER_BEHIND || !ca_epoch_in_order(arena)))
        ca_epoch_reap(arena, fences, count > CA_EPOCHS_BEHIND ? 2 : 1, false);
}
