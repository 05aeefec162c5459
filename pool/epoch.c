/* Epochs: open, closing, closed, passed; see epoch.h. */
#include "pool/epoch.h"

#include <errno.h>
#include "pool/segment.h"
#include "pool/state.h"

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

static void push_into(ca_epoch_t *epoch, ca_block_t *block)
{
    block->epoch = epoch;
    block->prev = NULL;
    block->next = epoch->blocks;
    if (epoch->blocks)
        epoch->blocks->prev = block;
    epoch->blocks = block;
    epoch->count++;
    epoch->bytes += block->bytes;
}

static size_t scale(const ca_arena_t *arena)
{
    return arena->no_fences ? CA_SYNC_SCALE : 1;
}

void ca_epoch_push(ca_arena_t *arena, ca_block_t *block)
{
    push_into(arena->open, block);
    if (block->bytes >= CA_EPOCH_LARGE * scale(arena))
        arena->open->urgent = true;
}

void ca_epoch_pull(ca_block_t *block)
{
    ca_epoch_t *epoch = block->epoch;

    if (block->prev)
        block->prev->next = block->next;
    else
        epoch->blocks = block->next;
    if (block->next)
        block->next->prev = block->prev;
    block->epoch = NULL;
    epoch->count--;
    epoch->bytes -= block->bytes;
}

bool ca_epoch_due(const ca_arena_t *arena)
{
    const ca_epoch_t *open = arena->open;
    /* What is in the open epoch cannot be waited for: where memory is short, keep it small. Without
     * fences it cannot even be asked about: a request for all the room there is and up to this much
     * more is refused where a plain free would have made it fit. So the share shrinks by what the
     * epoch may grow: a few MiB at most while there is less than 1 GiB of room, under 1% of it
     * always; and nothing is kept from the first refusal on, where room is 0. Nor may a refused
     * close put the next one off there: no allocation makes up for it. */
    size_t most = arena->room / CA_EPOCH_ROOM_SHARE / scale(arena);

    if (most > CA_EPOCH_BYTES * scale(arena))
        most = CA_EPOCH_BYTES * scale(arena);
    return (open->urgent || open->count >= CA_EPOCH_BLOCKS * scale(arena) || open->bytes >= most) &&
           (arena->no_fences || arena->operations >= arena->close_after) && ca_arena_serving(arena);
}

bool ca_epoch_late(const ca_arena_t *arena, const ca_epoch_t *epoch)
{
    /* Without a fence only everything can be waited for, what was submitted since included. */
    return epoch->waitable_from > arena->frees || (arena->no_fences && !epoch->fence);
}

/* Makes all blocks of an epoch ready; the epoch is then in no list. */
static void release_blocks(ca_arena_t *arena, ca_epoch_t *epoch)
{
    for (ca_block_t *block = epoch->blocks, *next; block; block = next) {
        next = block->next;
        arena->pending -= block->bytes;
        ca_block_ready(arena, block);
    }
    epoch->blocks = NULL;
    epoch->count = 0;
    epoch->bytes = 0;
}

/* The open epoch, detached and replaced; NULL when it is empty or there is no host memory. */
static ca_epoch_t *detach_open(ca_arena_t *arena)
{
    ca_epoch_t *epoch = arena->open;

    if (!ca_arena_serving(arena) || epoch->count == 0)
        return NULL;
    ca_epoch_t *fresh = ca_slab_take(&arena->epochs);
    if (!fresh)
        return NULL;
    arena->open = fresh;
    list_append(&arena->closing, epoch);
    return epoch;
}

/* A closing epoch that got no fence is the open one again; what was freed meanwhile joins it. */
static void reopen(ca_arena_t *arena, ca_epoch_t *epoch)
{
    ca_epoch_t *newer = arena->open;

    for (ca_block_t *block = newer->blocks, *next; block; block = next) {
        next = block->next;
        push_into(epoch, block);
    }
    epoch->waitable_from = 0;
    epoch->urgent = (epoch->urgent || newer->urgent) && !arena->no_fences;
    arena->open = epoch;
    ca_slab_give(&arena->epochs, newer);
}

/* Ends a closing. `rc` is what recording the fence, or synchronising, answered. */
static void end_closing(ca_arena_t *arena, ca_epoch_t *epoch, int rc)
{
    list_remove(&arena->closing, epoch);
    if (rc == -EIO)
        arena->stopped = true;
    else if (rc == -ENOSYS)
        arena->no_fences = true;
    else if (rc < 0)
        arena->close_after = arena->operations + CA_CLOSE_BACKOFF;
    if (rc < 0)
        reopen(arena, epoch);
}

static void synchronize(ca_arena_t *arena)
{
    ca_epoch_t *epoch = detach_open(arena);

    if (!epoch)
        return;
    ca_lock_drop(&arena->lock);
    int rc = ca_upstream_synchronize(arena->upstream, arena->context);
    ca_lock_take(&arena->lock);
    if (rc == -ENOSYS)
        rc = -EAGAIN; /* neither: keep it for later, as during a capture */
    end_closing(arena, epoch, rc);
    if (rc == 0) {
        release_blocks(arena, epoch);
        ca_slab_give(&arena->epochs, epoch);
    }
}

void ca_epoch_close(ca_arena_t *arena, ca_closer_t by)
{
    if (arena->no_fences) {
        if (by == CA_BY_FREE)
            synchronize(arena);
        return;
    }
    ca_epoch_t *epoch = detach_open(arena);
    if (!epoch)
        return;
    void *fence = NULL;
    epoch->waitable_from = by == CA_BY_FREE ? 0 : UINT64_MAX;
    ca_lock_drop(&arena->lock);
    int rc = ca_upstream_fence_record(arena->upstream, arena->context, &fence);
    ca_lock_take(&arena->lock);
    end_closing(arena, epoch, rc);
    if (rc == -ENOSYS && by == CA_BY_FREE && ca_epoch_due(arena))
        synchronize(arena);
    if (rc < 0)
        return;
    epoch->fence = fence;
    if (by == CA_BY_ALLOC)
        epoch->waitable_from = arena->frees + 1;
    list_append(&arena->closed, epoch);
}

/* Takes note of a query's or wait's answer about a closed epoch, and returns it. Drops the lock. */
static int settle(ca_arena_t *arena, ca_epoch_t *epoch, int answer)
{
    epoch->users--;
    if (arena->retired)
        return -EIO; /* the fence died with its context */
    if (answer == -EIO)
        arena->stopped = true;
    if (answer == 1 && !epoch->passed) {
        epoch->passed = true;
        list_remove(&arena->closed, epoch);
        release_blocks(arena, epoch);
    }
    if (epoch->passed && epoch->users == 0) {
        void *fence = epoch->fence;
        ca_slab_give(&arena->epochs, epoch);
        ca_lock_drop(&arena->lock);
        ca_upstream_fence_release(arena->upstream, arena->context, fence);
        ca_lock_take(&arena->lock);
    }
    return answer;
}

size_t ca_epoch_harvest(ca_arena_t *arena, size_t most, bool forced)
{
    size_t passed = 0;

    /* Forced or not: what had not passed a moment ago, within the same call, is not asked again. */
    if (forced ? arena->operations == arena->failed_at : arena->operations < arena->query_after)
        return 0;
    while (passed < most && arena->closed.head && ca_arena_serving(arena)) {
        ca_epoch_t *epoch = arena->closed.head;
        epoch->users++;
        ca_lock_drop(&arena->lock);
        int answer = ca_upstream_fence_query(arena->upstream, arena->context, epoch->fence);
        ca_lock_take(&arena->lock);
        if (settle(arena, epoch, answer) != 1) {
            arena->failed_at = arena->operations;
            arena->query_after = arena->operations + (CA_QUERY_BACKOFF << arena->failures);
            arena->failures += arena->failures < CA_QUERY_DOUBLINGS;
            break;
        }
        arena->failures = 0;
        passed++;
    }
    return passed;
}

int ca_epoch_wait(ca_arena_t *arena, uint64_t nanoseconds, bool late)
{
    ca_epoch_t *epoch = arena->closed.head;

    while (epoch && !late && ca_epoch_late(arena, epoch))
        epoch = epoch->next;
    if (!epoch || !ca_arena_serving(arena))
        return -ENOENT;
    epoch->users++;
    ca_lock_drop(&arena->lock);
    int answer = ca_upstream_fence_wait(arena->upstream, arena->context, epoch->fence, nanoseconds);
    ca_lock_take(&arena->lock);
    arena->failed_at = 0; /* time has passed */
    return settle(arena, epoch, answer);
}

bool ca_epoch_device_idle(ca_arena_t *arena)
{
    void *fence = NULL;
    bool idle = false;

    if (arena->no_fences)
        return false;
    ca_lock_drop(&arena->lock);
    if (ca_upstream_fence_record(arena->upstream, arena->context, &fence) == 0) {
        idle = ca_upstream_fence_query(arena->upstream, arena->context, fence) == 1;
        ca_upstream_fence_release(arena->upstream, arena->context, fence);
    }
    ca_lock_take(&arena->lock);
    return idle;
}
