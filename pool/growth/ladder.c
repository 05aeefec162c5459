/* The retry ladder. A request that no ready block serves climbs it, searching again after every
 * rung, and leaves it at the first rung that helps:
 *
 *   passed      epochs whose fence has passed
 *   open        the open epochs: closed and queried, never waited for
 *   spared      as policy, so that threads keep their cached blocks: see ca_grow_spares_caches
 *   caches      the cached blocks of threads, as many as it takes; until the climb is over frees go
 *               to the arena. This comes first now and then: see ca_ladder_climb
 *   policy      a new segment, while the reserve is in proportion to what was ever live, and
 *               closed epochs, asked once more, did not help
 *   joined      in the order of a stream: what was freed on others, with this one made to wait
 *   pause       a bounded wait for pending memory, unless in the order of a stream; a longer one
 *               for what this thread would have slept for in a plain free of its own
 *   grow        a new segment all the same
 *   spare       if nothing runs: idle and reclaim, so that the headroom is kept
 *   headroom    a new segment from what growth has left to the driver until here
 *   idle        idle segments of this arena go back upstream, then growth
 *   reclaim     others that cache memory on this device give back, or are about to, then growth
 *   wait        every epoch closed by then that is safe to block on, oldest first, without bound
 *               for the work of its own context
 *   others      a bounded wait for the work of other contexts too, which no plain free is known to
 *               wait for and which may be waiting for this very thread
 *   pending     segments whose blocks are all pending or ready go to the real free, then growth;
 *               first those that only other contexts' work may still be at
 *   exported    what other processes may still see, though the program freed it (export.h)
 *   overdue     a bounded wait (oom_wait) for all other epochs, those of streams too
 *
 * The unbounded waits come when the driver has nothing left, and only for what a plain free of this
 * very thread would have waited for: see epoch.h. In plain CUDA this thread would have had what
 * another thread freed without a wait, once that free had returned: hence the bound is a long one.
 * Without fences there is nothing to wait for but all work, so that the ladder does not wait for
 * the open epoch: see ca_epoch_due.
 *
 * A thread that is obtaining a segment holds the arena's turn; others wait for it and search again.
 * No turn is held during a wait for the context, whose work may be waiting for one of them, but for
 * that of growth by a stream that is at home (ca_epoch_long_wait, once: give_down_to, view.c). */
#include "pool/growth/ladder.h"

#include <errno.h>
#include <limits.h>
#include "base/clock.h"
#include "base/thread_state.h"
#include "pool/blocks/mixed.h"
#include "pool/cache/cache.h"
#include "pool/range/export.h"
#include "pool/growth/giving.h"
#include "pool/growth/grow.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/state.h"
#include "pool/fence/stream.h"
#include "pool/range/view.h"

#define REAP_MOST 16     /* epochs asked about before growing */
#define OVERDUE_STEPS 16 /* of the last wait */

typedef struct climb {
    ca_arena_t *arena;
    ca_stream_t *stream; /* the allocation is in its order; or NULL */
    size_t bytes;
    size_t asked; /* that is enough where memory is short */
    ca_block_t *block;
    int rc;
    bool grown;
    bool refused;    /* upstream, or the limit, gave no memory */
    bool any;        /* cuts what it finds, see mixed.h: there is no other memory */
    bool locked_out; /* the caches are, until it is over */
    bool spares;     /* what grows is for their sake */
    size_t headroom;
    size_t waits;      /* that are left */
    unsigned released; /* see giving.h */
} climb_t;

/* Each of these returns true when the climb is over: c->rc says how. */

static bool over(climb_t *c, int rc)
{
    c->rc = rc;
    return true;
}

static bool search(climb_t *c)
{
    if (!ca_arena_serving(c->arena))
        return over(c, -EIO);
    ca_arena_serve_in_order(c->arena);
    c->block = c->any ? ca_block_take_any(c->arena, c->bytes)
                      : ca_block_take(c->arena, c->bytes, UINT_MAX);
    if (!c->block && c->any) /* where it was before its kind was kept apart, see mixed.h */
        c->block = ca_block_take_elsewhere(c->arena, c->bytes);
    if (!c->block && c->stream)
        c->block = ca_stream_take(c->stream, c->bytes, c->any ? CA_TAKE_ANY : CA_TAKE_CUT);
    return c->block && over(c, 0);
}

static bool grow(climb_t *c)
{
    ca_arena_t *arena = c->arena;

    while (arena->growing) {
        if (arena->grower == ca_thread_number())
            return over(c, -EIO); /* a tool's callback, inside the driver's call */
        ca_signal_wait(&arena->grown, &arena->lock, UINT64_MAX);
        if (search(c))
            return true;
    }
    if (c->spares && !ca_grow_spares_caches(arena))
        return false; /* not any more */
    arena->growing = true;
    arena->grower = ca_thread_number();
    arena->growing_for_caches = c->spares;
    int rc = ca_grow(arena, c->bytes, c->headroom, &c->block);
    arena->growing = false;
    ca_signal_all(&arena->grown);

    c->grown = rc == 0;
    c->refused = rc == -ENOMEM;
    if (rc == 0 || rc == -EIO)
        return over(c, rc);
    if (c->refused && !c->headroom && !c->spares && c->asked < c->bytes) {
        c->bytes = c->asked;
        return search(c) || grow(c);
    }
    if (c->refused && !c->spares)
        ca_apart_refused(arena, c->bytes);
    c->any |= c->refused && !c->headroom && !c->spares;
    if (c->any && ((c->block = ca_grow_without(arena, c->bytes)) || search(c)))
        return over(c, c->block ? 0 : c->rc);
    /* Anything else is no shortage: the caller asks the driver, the cache stays as it is. */
    return rc != -ENOMEM && over(c, -ENOMEM);
}

static bool rung_passed(climb_t *c)
{
    if (!c->arena->plain_fences.closed.head && !c->arena->busy)
        return false; /* as before the climb */
    ca_epoch_reap(c->arena, &c->arena->plain_fences, REAP_MOST, false);
    ca_streams_reap(c->arena, REAP_MOST, false);
    return search(c);
}

static bool rung_joined(climb_t *c)
{
    /* Not on the legacy stream: all blocking streams would wait too. */
    if (!c->stream || c->stream->kind != CA_STREAM_COMMON ||
        c->arena->params.reuse == CA_POOL_REUSE_GROW)
        return false;
    c->block = ca_stream_take_joined(c->stream, c->bytes);
    return c->block ? over(c, 0) : !ca_arena_serving(c->arena) && over(c, -EIO);
}

void ca_ladder_close(ca_arena_t *arena)
{
    bool none_before = !arena->plain_fences.closed.head;

    ca_streams_close(arena);
    ca_epoch_close(arena, &arena->plain_fences, CA_BY_ALLOC);
    /* Fences pass in order: behind an older one this one has not passed either. */
    if (none_before)
        ca_epoch_reap(arena, &arena->plain_fences, SIZE_MAX, true);
    ca_streams_reap(arena, SIZE_MAX, true);
}

static bool rung_open(climb_t *c)
{
    ca_ladder_close(c->arena);
    return search(c);
}

static bool rung_caches(climb_t *c)
{
    if (c->locked_out)
        return false;
    c->locked_out = true;
    c->arena->locked_out_after = c->arena->operations + CA_LOCKOUT_BACKOFF;
    /* Where each block is a large part of all there is, all merge. */
    if (ca_warmup_small(c->arena))
        ca_caches_lock_out(c->arena);
    else if ((c->block = ca_caches_yield(c->arena, c->bytes)))
        return over(c, 0);
    return search(c) || rung_open(c);
}

/* Polls however lately the last query failed, because a segment costs more than a query. It polls
 * one epoch at a time: the query after the one that helped would fail, and put off others. */
static bool rung_asked(climb_t *c)
{
    for (unsigned asked = 0; asked < REAP_MOST; asked++)
        if (!ca_epoch_reap(c->arena, &c->arena->plain_fences, 1, true))
            return false;
        else if (search(c))
            return true;
    return false;
}

static bool rung_policy(climb_t *c)
{
    if (c->arena->params.reuse == CA_POOL_REUSE_WAIT && rung_joined(c))
        return true;
    if (!ca_grow_allowed(c->arena) && !ca_view_needs_none(c->arena, c->bytes))
        return false;
    return rung_asked(c) || grow(c);
}

/* Where that comes to nothing, for whatever reason, the climb goes on as if it had not tried. */
static bool rung_spared(climb_t *c)
{
    if (!ca_grow_spares_caches(c->arena))
        return false;
    c->spares = true;
    bool found = rung_policy(c) && c->rc == 0;
    c->spares = c->refused = false;
    if (!found)
        c->rc = -ENOMEM;
    return found;
}

static size_t reap_all(ca_arena_t *arena)
{
    return ca_epoch_reap(arena, &arena->plain_fences, SIZE_MAX, true) +
           ca_streams_reap(arena, SIZE_MAX, true);
}

/* Waits for epochs, oldest first, for `ns` in all, and for at most c->waits of them. Before an
 * out-of-memory the caller sets that to the epochs that there are: other threads may go on freeing
 * for ever, and the climb does not wait for what they free meanwhile. Where it waits for the epochs
 * of all queues it does so in steps, because what streams freed may pass while the oldest epoch
 * waits for this very thread. */
static bool wait_bounded(climb_t *c, ca_which_t which, uint64_t ns)
{
    bool all = which == CA_EPOCHS_ALL;
    uint64_t begin = ca_clock_ns(), spent = 0, step = all ? ns / OVERDUE_STEPS : ns;
    unsigned in_vain = 0;

    while (c->waits > 0 && spent < ns && in_vain < (all ? OVERDUE_STEPS : 1)) {
        int answer = ca_epoch_wait(c->arena, which, step < ns - spent ? step : ns - spent);
        if (answer < 0)
            break;
        if (search(c) || (reap_all(c->arena) > 0 && search(c)))
            return true;
        in_vain += answer == 0;
        c->waits -= answer == 1;
        spent = ca_clock_ns() - begin;
    }
    return !ca_arena_serving(c->arena) && over(c, -EIO);
}

/* With kernels that are longer than the wait, a loop of an allocation, a kernel and a free would
 * take new memory each time, where the plain program sleeps in its free. So what is behind such a
 * free is waited for much longer. */
static bool rung_pause(climb_t *c)
{
    ca_arena_t *arena = c->arena;
    uint64_t usual = arena->params.reuse_wait_ns;
    uint64_t ns = ca_epoch_slept_for(arena) ? ca_epoch_long_wait(arena) : usual;

    if (c->refused || c->stream)
        return false;
    c->waits = SIZE_MAX;
    if (wait_bounded(c, CA_EPOCHS_FREED, ns))
        return true;
    if (ns > usual && ca_epoch_slept_for(arena))
        arena->long_wait_after = arena->operations + CA_LONG_RETRY;
    return false;
}

/* Gives back about as much as is needed, tries to grow, and repeats that while neither helps. It
 * stops once it has given back as much as there was at its start, because other threads may go on
 * growing and freeing for ever. A real free waits for the context: so while the driver still has
 * memory they go one at a time, and none goes while anything runs. */
static bool give_and_grow(climb_t *c, ca_give_t which)
{
    size_t left = c->arena->reserved, released;

    for (; left > 0; left -= released < left ? released : left) {
        size_t most = c->headroom ? 1 : c->bytes;
        if (c->headroom && !ca_epoch_device_idle(c->arena, 0))
            break;
        released = ca_give_back(c->arena, most, which);
        if (released == 0)
            break;
        if (search(c) || grow(c))
            return true;
    }
    return !ca_arena_serving(c->arena) && over(c, -EIO);
}

static bool rung_idle(climb_t *c)
{
    return give_and_grow(c, CA_GIVE_IDLE);
}

/* Another thread may have taken what there was to give, and be giving it. */
static bool rung_reclaim(climb_t *c)
{
    ca_arena_t *arena = c->arena;
    bool over_limit = ca_grow_over_limit(arena, c->bytes); /* that others give changes nothing */

    ca_lock_drop(&arena->lock);
    size_t released =
        over_limit ? 0 : ca_upstream_reclaim(arena->upstream, arena->context, c->bytes);
    bool gave = ca_giving_wait(&c->released);
    ca_lock_take(&arena->lock);
    return search(c) || ((released > 0 || gave) && grow(c));
}

/* Others' frees wait likewise. */
static bool rung_spare(climb_t *c)
{
    return c->headroom && c->refused &&
           (rung_idle(c) || (ca_epoch_device_idle(c->arena, 0) && rung_reclaim(c)));
}

static bool rung_headroom(climb_t *c)
{
    bool held_back = c->headroom && c->refused;

    c->headroom = 0;
    return held_back && grow(c);
}

static bool rung_wait(climb_t *c)
{
    int answer;

    for (c->waits = c->arena->plain_fences.closed.count; c->waits > 0; c->waits--) {
        if ((answer = ca_epoch_wait(c->arena, CA_EPOCHS_OWED, CA_WAIT_OWN)) < 0)
            break;
        if (answer == 1 && (search(c) || (reap_all(c->arena) > 0 && search(c)) || rung_idle(c)))
            return true;
    }
    return search(c);
}

static bool rung_others(climb_t *c)
{
    ca_arena_t *arena = c->arena;

    c->waits = arena->plain_fences.closed.count;
    bool served =
        !arena->others_stuck && wait_bounded(c, CA_EPOCHS_OWED, ca_bound(CA_OTHERS_WAIT_NS));
    arena->others_stuck |= arena->plain_fences.closed.head != NULL;
    return served;
}

/* No plain free ever waits for other contexts' work, so that no program counts on what it holds. */
static bool only_others(const ca_arena_t *arena)
{
    for (const ca_epoch_t *epoch = arena->plain_fences.closed.head; epoch; epoch = epoch->next)
        if (ca_epoch_overdue(arena, epoch))
            return false;
    return ca_streams_closed(arena) == 0;
}

uint64_t ca_unsafe_wait_ns(const ca_arena_t *arena)
{
    uint64_t most = arena->params.oom_wait_ns, others = ca_bound(CA_OTHERS_WAIT_NS);

    if (arena->overdue_stuck)
        most /= CA_STUCK_SHARE;
    if (most > others && only_others(arena))
        most = others;
    return most;
}

static bool rung_overdue(climb_t *c)
{
    c->waits = c->arena->plain_fences.closed.count + ca_streams_closed(c->arena);
    bool served = wait_bounded(c, CA_EPOCHS_ALL, ca_unsafe_wait_ns(c->arena));
    c->arena->overdue_stuck |= c->arena->plain_fences.closed.head != NULL;
    return served || rung_idle(c) || grow(c);
}

static climb_t begin(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, size_t asked)
{
    return (climb_t){.arena = arena,
                     .stream = stream,
                     .bytes = bytes,
                     .asked = asked,
                     .rc = -ENOMEM,
                     .released = ca_giving_done(),
                     .headroom = arena->params.headroom};
}

int ca_ladder_climb(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, size_t asked,
                    ca_block_t **block, bool *grown)
{
    climb_t c = begin(arena, stream, bytes, asked);

    ca_arena_check_order(arena);
    /* Cached blocks merge with ready ones, and larger blocks stay whole; but the threads that lose
     * them pay for that. So this comes first only after CA_LOCKOUT_BACKOFF operations. */
    bool caches_first = arena->operations >= arena->locked_out_after;

    (void)((caches_first && rung_caches(&c)) || rung_passed(&c) || rung_open(&c) ||
           rung_spared(&c) || rung_caches(&c) || rung_policy(&c) || rung_joined(&c) ||
           rung_pause(&c) || (!c.refused && grow(&c)) || rung_spare(&c) || rung_headroom(&c) ||
           rung_idle(&c) || rung_reclaim(&c) || rung_wait(&c) || rung_others(&c) ||
           (!arena->params.host && give_and_grow(&c, CA_GIVE_PASSED)) ||
           give_and_grow(&c, CA_GIVE_PENDING) || (ca_export_reclaim(arena) && rung_open(&c)) ||
           rung_overdue(&c));
    if (c.locked_out)
        ca_caches_open(arena);
    *block = c.block;
    *grown = c.grown;
    return c.rc;
}

int ca_ladder_grow(ca_arena_t *arena, size_t bytes, ca_block_t **block, bool *grown)
{
    climb_t c = begin(arena, NULL, bytes, bytes);

    ca_arena_check_order(arena);
    if (!arena->home)
        (void)rung_policy(&c);
    *block = c.block;
    *grown = c.grown;
    return c.rc;
}
