/* Waits for closed epochs, by a thread that needs their memory or by a stream; see epoch.h. The
 * lock is dropped around each call of upstream's, so an epoch has users meanwhile. */
#include "pool/fence/epoch.h"

#include <errno.h>
#include "base/clock.h"
#include "base/thread_state.h"
#include "pool/fence/stream.h"
#include "pool/state.h"

#define LONG_WAITS 100 /* times reuse_wait, but at most */
#define LONG_WAIT_MOST_NS ((uint64_t)1000 * 1000 * 1000)

/* The queue whose longest wait has no known bound: the first with anything closed. */
static ca_fence_queue_t *queue_to_wait_for(ca_arena_t *arena, ca_which_t which)
{
    if (arena->plain_fences.closed.head || which != CA_EPOCHS_ALL)
        return &arena->plain_fences;
    for (ca_stream_t *stream = arena->busy; stream; stream = stream->next_busy)
        if (stream->fences.closed.head)
            return &stream->fences;
    return &arena->plain_fences;
}

/* The first of those that are asked for. With `several` the last such of the older half, or of as
 * few as hold enough to be worth a wait. Sets `place`, from 1. */
static ca_epoch_t *epoch_to_wait_for(const ca_arena_t *arena, const ca_fence_queue_t *fences,
                                     ca_which_t which, bool several, size_t *place)
{
    size_t bytes = 0, most = several ? (fences->closed.count + 1) / 2 : 0, seen = 0;
    ca_epoch_t *found = NULL;

    for (ca_epoch_t *epoch = fences->closed.head; epoch; epoch = epoch->next) {
        if (found && (seen >= most || bytes >= CA_WAIT_BYTES))
            break;
        seen++;
        if (which == CA_EPOCHS_FREED
                ? !epoch->foreign && epoch->number <= arena->freed_after
                : !ca_epoch_overdue(arena, epoch) && (several || !epoch->own_passed)) {
            found = epoch;
            *place = seen;
        }
        bytes += epoch->bytes;
    }
    return found;
}

int ca_epoch_wait(ca_arena_t *arena, ca_which_t which, uint64_t nanoseconds)
{
    ca_fence_queue_t *fences = queue_to_wait_for(arena, which);
    bool several = which != CA_EPOCHS_ALL && nanoseconds != CA_WAIT_OWN;
    size_t place = 1;
    ca_epoch_t *epoch = which == CA_EPOCHS_ALL
                            ? fences->closed.head
                            : epoch_to_wait_for(arena, fences, which, several, &place);

    if (several && epoch && epoch != fences->closed.head) {
        /* A later one may have to wait for long where the first has passed already. */
        if (ca_epoch_reap(arena, fences, 1, true) > 0)
            return 1;
        epoch = epoch_to_wait_for(arena, fences, which, several, &place);
    }
    if (!epoch || !ca_arena_serving(arena))
        return -ENOENT;
    several &= epoch != fences->closed.head;
    epoch->users++;
    ca_lock_drop(&arena->lock);
    int answer = ca_upstream_fence_wait(arena->upstream, arena->context, epoch->fence, nanoseconds);
    ca_lock_take(&arena->lock);
    arena->operations++; /* time has passed, and more may be ready by now */
    epoch->own_passed |= nanoseconds == CA_WAIT_OWN && answer == 0;
    if (!several || answer < 0)
        return ca_epoch_answer(arena, epoch, answer);
    /* Those before it first, each by its own fence. */
    bool passed = epoch->passed;
    if (ca_epoch_answer(arena, epoch, 0) < 0)
        return -EIO;
    return ca_epoch_reap(arena, fences, place, true) > 0 || passed;
}

bool ca_epoch_slept_for(const ca_arena_t *arena)
{
    unsigned thread = ca_thread_number();

    for (const ca_epoch_t *epoch = arena->plain_fences.closed.tail; epoch; epoch = epoch->prev)
        if (epoch->by == thread)
            return true;
    return false;
}

uint64_t ca_epoch_long_wait(const ca_arena_t *arena)
{
    uint64_t ns = arena->params.reuse_wait_ns, most = ca_bound(LONG_WAIT_MOST_NS);

    if (arena->operations < arena->long_wait_after || ns >= most)
        return ns;
    return LONG_WAITS * ns < most ? LONG_WAITS * ns : most;
}

int ca_epoch_join(ca_arena_t *arena, ca_epoch_t *epoch, void *queue)
{
    epoch->users++;
    ca_lock_drop(&arena->lock);
    int rc = ca_upstream_fence_join(arena->upstream, arena->context, queue, epoch->fence);
    ca_lock_take(&arena->lock);
    ca_epoch_answer(arena, epoch, rc == -EIO ? -EIO : 0);
    return rc;
}

bool ca_epoch_device_idle(ca_arena_t *arena, uint64_t nanoseconds)
{
    void *fence = NULL;
    int answer = -EAGAIN;

    if (arena->no_fences)
        return false;
    ca_lock_drop(&arena->lock);
    if (ca_upstream_fence_record(arena->upstream, arena->context, false, &fence) == 0) {
        answer = nanoseconds
                     ? ca_upstream_fence_wait(arena->upstream, arena->context, fence, nanoseconds)
                     : ca_upstream_fence_query(arena->upstream, arena->context, fence);
        ca_upstream_fence_release(arena->upstream, arena->context, fence);
    }
    ca_lock_take(&arena->lock);
    if (answer == 0 && nanoseconds > arena->params.reuse_wait_ns)
        arena->long_wait_after = arena->operations + CA_LONG_RETRY;
    return answer == 1;
}
