/* See decay.h. A segment remembers the tick at which its last live block was freed; one whose
 * memory is all ready and that has not been touched since is idle since then. Of a range as many
 * pages are as were wholly ready at each tick since. */
#include "pool/growth/decay.h"

#include "pool/cache/cache.h"
#include "pool/fence/epoch.h"
#include "pool/growth/grow.h"
#include "pool/growth/pin.h"
#include "pool/range/range.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"

void ca_arena_tick(ca_arena_t *arena)
{
    ca_lock_take(&arena->lock);
    arena->tick++;
    bool pending = !arena->retired && (arena->pending > 0 || ca_caches_bytes(arena) > 0);
    ca_lock_drop(&arena->lock);
    if (pending)
        ca_arena_trim_as(arena, 0, CA_TRIM_LOOK);
    ca_lock_take(&arena->lock);
    if (!arena->retired)
        ca_range_tick(arena);
    ca_lock_drop(&arena->lock);
}

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
        ca_pin_merge(arena);
    ca_segment_t *segment = idle_longer(arena, ticks);
    /* Looked for again where the lock may have been dropped in between. */
    if (segment && waits)
        segment = ca_epoch_device_idle(arena) ? idle_longer(arena, ticks) : NULL;
    else if (segment) /* what is ready in order may be in flight, and the real free does not wait */
        segment = ca_nothing_in_flight(arena) ? idle_longer(arena, ticks) : NULL;
    size_t given = segment ? ca_give_segment(arena, segment, CA_FREE_IDLE) : 0;
    size_t pages = segment || !ca_arena_serving(arena) ? 0 : ca_range_idle_longer(arena, ticks);
    while (given < pages && ca_nothing_in_flight(arena)) {
        size_t more = ca_range_give(arena, pages - given);
        if (!more)
            break;
        given += more;
    }
    if (given)
        ca_warmup_gave(arena);
    ca_arena_leave(arena, cancellation);
    ca_arena_drop(arena);
    return given;
}
