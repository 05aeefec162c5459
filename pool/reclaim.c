/* Memory that goes back though no growth here needs it: because the program asks for it, because a
 * call found none left, or because it was idle for long. And pin mode, in which none goes back; see
 * arena.h. */
#include <limits.h>
#include "base/clock.h"
#include "pool/cache/cache.h"
#include "pool/growth/grow.h"
#include "pool/growth/ladder.h"
#include "pool/range/range.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"
#include "pool/fence/stream.h"
#include "pool/range/view.h"

/* --- trim ------------------------------------------------------------------------------------- */

/* The same waits as before an out-of-memory of the pool itself: see ladder.c. Where the
 * ladder has waited in vain just before, these waits are shorter (CA_STUCK_SHARE). */
static size_t give_after_waits(ca_arena_t *arena, size_t bytes)
{
    uint64_t end, now;
    size_t released = 0, waits = arena->plain_fences.closed.count;

    for (; waits > 0 && released < bytes && ca_epoch_wait(arena, CA_EPOCHS_OWED, CA_WAIT_OWN) >= 0;
         waits--)
        released += ca_give_back(arena, bytes - released, CA_GIVE_IDLE);
    size_t unsafe = waits + ca_streams_closed(arena);
    end = ca_clock_ns() + ca_unsafe_wait_ns(arena);
    for (; unsafe > 0 && released < bytes && (now = ca_clock_ns()) < end &&
           ca_epoch_wait(arena, CA_EPOCHS_ALL, end - now) == 1;
         unsafe--)
        released += ca_give_back(arena, bytes - released, CA_GIVE_IDLE);
    if (released < bytes && ca_streams_reap(arena, SIZE_MAX, true) > 0)
        released += ca_give_back(arena, bytes - released, CA_GIVE_IDLE);
    if (released < bytes && !arena->params.host)
        released += ca_give_back(arena, bytes - released, CA_GIVE_PASSED);
    return released;
}

size_t ca_arena_trim_as(ca_arena_t *arena, size_t bytes, ca_trim_t how)
{
    ca_lock_take(&arena->lock);
    int cancellation = ca_arena_enter(arena);
    arena->operations++;
    if (how == CA_TRIM_POLL)
        ca_caches_flush_idle(arena);
    else
        ca_caches_lock_out(arena);
    ca_stream_leave(arena);
    /* What has passed becomes ready, and every open epoch is closed that can get a fence. */
    ca_epoch_reap(arena, &arena->plain_fences, SIZE_MAX, true);
    ca_ladder_close(arena);
    ca_blocks_merge(arena);
    if (how == CA_TRIM_ASKED && arena->no_fences)
        ca_epoch_synchronize(arena);
    size_t released = how == CA_TRIM_POLL ? 0 : ca_give_back(arena, bytes, CA_GIVE_IDLE);
    if (how == CA_TRIM_SHORTAGE && released < bytes)
        released += give_after_waits(arena, bytes - released);
    if (released)
        ca_warmup_gave(arena);
    if (how != CA_TRIM_POLL)
        ca_caches_open(arena);
    ca_arena_leave(arena, cancellation);
    ca_lock_drop(&arena->lock);
    return released;
}

size_t ca_arena_trim(ca_arena_t *arena, size_t bytes)
{
    return ca_arena_trim_as(arena, bytes, CA_TRIM_IDLE);
}

/* --- decay ------------------------------------------------------------------------------------ */

void ca_arena_tick(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    arena->tick++;
    bool pending = !arena->retired && (arena->pending > 0 || ca_caches_bytes(arena) > 0);
    ca_lock_drop(&arena->lock);
    if (pending)
        ca_arena_trim_as(arena, 0, CA_TRIM_POLL);
    ca_lock_take(&arena->lock);
    if (!arena->retired)
        ca_range_tick(arena);
    ca_lock_drop(&arena->lock);
}

/* A segment remembers the tick at which its last live block was freed; one whose memory is all
 * ready and that has not been touched since is idle since then. Of a range as many pages are as
 * were wholly ready at each tick since. */
static ca_segment_t *idle_longer(const ca_arena_t *arena, uint32_t ticks)
{
    ca_segment_t *segment = ca_arena_serving(arena) && !arena->pins ? arena->segments : NULL;

    /* The count wraps around. */
    while (segment && (segment->live_blocks > 0 || segment->ranged ||
                       arena->tick - segment->idle_tick <= ticks || !ca_segment_idle(segment)))
        segment = segment->next;
    return segment;
}

size_t ca_arena_decay(ca_arena_t *arena, uint32_t ticks, bool waits)
{
    ca_lock_take(&arena->lock);
    int cancellation = ca_arena_enter(arena);
    if (!arena->pins)
        ca_pin_merge(arena, 0);
    ca_segment_t *segment = idle_longer(arena, ticks);
    /* What is ready in order may be in flight, and the real free need not wait. Looked for again
     * where the lock may have been dropped in between. */
    if (segment)
        segment = (waits ? ca_epoch_device_idle(arena, 0) : ca_nothing_in_flight(arena))
                      ? idle_longer(arena, ticks)
                      : NULL;
    size_t released = segment ? ca_give_segment(arena, segment, CA_FREE_IDLE) : 0;
    size_t pages = segment || !ca_arena_serving(arena) ? 0 : ca_range_idle_longer(arena, ticks);
    while (released < pages && ca_nothing_in_flight(arena)) {
        size_t more = ca_range_give(arena, pages - released);
        if (!more)
            break;
        released += more;
    }
    if (released)
        ca_warmup_gave(arena);
    ca_arena_leave(arena, cancellation);
    ca_lock_drop(&arena->lock);
    return released;
}

/* --- pin mode --------------------------------------------------------------------------------- */

void ca_arena_pin(ca_arena_t *arena, bool on)
{
    ca_lock_take(&arena->lock);
    ca_blocks_merge(arena);
    if (on)
        arena->pins++;
    else if (arena->pins)
        arena->pins--;
    ca_caches_review(arena);
    ca_lock_drop(&arena->lock);
}

ca_block_t *ca_pin_merge(ca_arena_t *arena, size_t bytes)
{
    ca_segment_t *segment = arena->segments;
    ca_block_t *block = NULL;

    ca_blocks_merge(arena);
    if (!arena->unmerged)
        return NULL;
    ca_view_merge(arena);
    for (; segment && !block; segment = segment->next)
        if (ca_segment_merge(arena, segment) && bytes)
            block = ca_block_take(arena, bytes, UINT_MAX);
    arena->unmerged = block;
    return block;
}
