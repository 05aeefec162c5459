/* Giving memory back because somebody asked for it: the program, or a call that found none left. */
#include "pool/arena.h"

#include "base/clock.h"
#include "pool/cache/cache.h"
#include "pool/growth/grow.h"
#include "pool/growth/ladder.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"
#include "pool/fence/stream.h"

/* What has passed is ready, and nothing stays in an open epoch that a fence can be had for. */
static void settle(ca_arena_t *arena)
{
    ca_epoch_reap(arena, &arena->whole, SIZE_MAX, true);
    bool none_before = !arena->whole.closed.head;
    ca_streams_close(arena);
    ca_epoch_close(arena, &arena->whole, CA_BY_ALLOC);
    if (none_before)
        ca_epoch_reap(arena, &arena->whole, SIZE_MAX, true);
    ca_streams_reap(arena, SIZE_MAX, true);
    ca_blocks_merge(arena);
}

/* The same waits as before an out-of-memory of the pool itself: see ladder.c. Where that comes
 * first they are not made as long again in vain. */
static size_t give_after_waits(ca_arena_t *arena, size_t bytes)
{
    uint64_t end, now;
    size_t given = 0, waits = arena->whole.closed.count;

    for (; waits > 0 && given < bytes && ca_epoch_wait(arena, CA_EPOCHS_OWED, CA_WAIT_OWN) >= 0;
         waits--)
        given += ca_give_back(arena, bytes - given, CA_GIVE_IDLE);
    size_t late = waits + ca_streams_closed(arena);
    end = ca_clock_ns() + ca_unsafe_wait_ns(arena);
    for (; late > 0 && given < bytes && (now = ca_clock_ns()) < end &&
           ca_epoch_wait(arena, CA_EPOCHS_ALL, end - now) == 1;
         late--)
        given += ca_give_back(arena, bytes - given, CA_GIVE_IDLE);
    if (given < bytes && ca_streams_reap(arena, SIZE_MAX, true) > 0)
        given += ca_give_back(arena, bytes - given, CA_GIVE_IDLE);
    if (given < bytes && !arena->params.host)
        given += ca_give_back(arena, bytes - given, CA_GIVE_PASSED);
    return given;
}

size_t ca_arena_trim_as(ca_arena_t *arena, size_t bytes, ca_trim_t how)
{
    ca_lock_take(&arena->lock);
    int cancellation = ca_arena_enter(arena);
    arena->operations++;
    if (how == CA_TRIM_LOOK)
        ca_caches_flush_idle(arena);
    else
        ca_caches_lock_out(arena);
    settle(arena);
    if (how == CA_TRIM_ASKED && arena->no_fences)
        ca_epoch_synchronize(arena);
    size_t given = how == CA_TRIM_LOOK ? 0 : ca_give_back(arena, bytes, CA_GIVE_IDLE);
    if (how == CA_TRIM_SHORTAGE && given < bytes)
        given += give_after_waits(arena, bytes - given);
    if (given)
        ca_warmup_gave(arena);
    if (how != CA_TRIM_LOOK)
        ca_caches_open(arena);
    ca_arena_leave(arena, cancellation);
    ca_arena_drop(arena);
    return given;
}

size_t ca_arena_trim(ca_arena_t *arena, size_t bytes)
{
    return ca_arena_trim_as(arena, bytes, CA_TRIM_IDLE);
}
