/* How much the pool asks of upstream, and what it gives back; see grow.h. */
#include "pool/growth/grow.h"

#include <errno.h>
#include <limits.h>
#include "base/clock.h"
#include "base/mutation.h"
#include "pool/cache/cache.h"
#include "pool/fence/epoch.h"
#include "pool/range/export.h"
#include "pool/growth/giving.h"
#include "pool/blocks/mixed.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "pool/blocks/segment.h"
#include "pool/growth/warmup.h"
#include "pool/blocks/span.h"
#include "pool/state.h"
#include "pool/range/view.h"
#include "pool/fence/stream.h"

/* Allocations and frees from one estimate of what upstream has to the next, while that is too
 * little for caches: another process may have released memory, which nothing reports. */
#define ESTIMATE_EVERY 65536

bool ca_grow_allowed(const ca_arena_t *arena)
{
    switch (arena->params.reuse) {
    case CA_POOL_REUSE_GROW:
        return true;
    case CA_POOL_REUSE_WAIT:
        return !arena->plain_fences.closed.head; /* nothing to wait for */
    default: /* memory that is kept for other processes counts as live: it serves no request */
        return arena->reserved <=
               arena->live_peak + arena->live_peak / 4 + CA_GROW_SPARE + arena->exported;
    }
}

bool ca_grow_spares_caches(const ca_arena_t *arena)
{
    return arena->live_peak >= CA_GROW_SPARE && ca_grow_allowed(arena) && arena->cache_count > 1 &&
           ca_caches_bytes(arena) && arena->params.reuse != CA_POOL_REUSE_WAIT &&
           !arena->params.host;
}

bool ca_grow_over_limit(const ca_arena_t *arena, size_t bytes)
{
    return bytes > arena->params.limit || arena->reserved > arena->params.limit - bytes;
}

/* A part of what is reserved: a small program holds little, and a large one makes few calls. Not
 * less than the first segment, except in warm-up, where freed memory is polled before the next
 * growth (warmup.h). */
static size_t preferred_bytes(const ca_arena_t *arena, ca_pool_t pool, size_t asked)
{
    size_t bytes = arena->reserved / CA_SEGMENT_SHARE;
    size_t least = ca_warmup_grows_by_little(arena) ? CA_SEGMENT_UNIT : arena->params.segment_first;

    /* Small blocks live long: in small segments they keep less from going back. */
    if (pool == CA_POOL_SMALL)
        return asked <= CA_APART_SMALL && ca_apart_much(arena) ? CA_SEGMENT_UNIT
                                                               : arena->params.segment_first;
    if (pool == CA_POOL_OVERSIZE)
        return CA_SEGMENT_UNIT; /* whatever the request is rounded up to */
    /* Few that are little beside most blocks fill a segment in proportion to what there is. */
    bool trifle = arena->blocks.live && asked <= arena->live / arena->blocks.live / CA_GROW_TRIFLE;
    if (trifle || ca_apart_grows(arena, asked))
        return CA_SEGMENT_UNIT;
    if (bytes < least)
        return least;
    return bytes < CA_SEGMENT_MOST ? bytes / CA_SEGMENT_UNIT * CA_SEGMENT_UNIT : CA_SEGMENT_MOST;
}

bool ca_grow_for_starved(const ca_arena_t *arena, size_t bytes)
{
    size_t segment = preferred_bytes(arena, ca_pool_of(arena, bytes), bytes);

    if (segment < bytes)
        segment = bytes;
    return arena->params.warmup && !arena->prefers_memory && !arena->growing &&
           arena->cache_count > 1 && arena->params.reuse != CA_POOL_REUSE_WAIT &&
           ca_grow_allowed(arena) &&
           arena->reserved + segment - arena->warmup_from <= ca_warmup_uncounted(arena);
}

/* Obtains a segment of exactly `segment_bytes`. Drops the lock. */
static int grow_by(ca_arena_t *arena, size_t segment_bytes, size_t bytes, ca_block_t **block)
{
    uint64_t base = 0;

    ca_lock_drop(&arena->lock);
    int rc = ca_upstream_alloc(arena->upstream, arena->context, segment_bytes, &base);
    ca_lock_take(&arena->lock);
    if (rc == -EIO)
        ca_arena_stop(arena);
    bool obtained = rc == 0;
    if (!ca_arena_serving(arena))
        rc = -EIO; /* a segment that was obtained went with its context */
    ca_pool_t pool = ca_pool_of(arena, bytes);
    ca_segment_t *segment = rc == 0 ? ca_segment_add(arena, base, segment_bytes, pool) : NULL;
    if (obtained && arena->upstream->placed)
        arena->upstream->placed(arena->context, base);
    if (rc < 0)
        return rc;
    if (base & (CA_PAGE - 1))
        arena->slack = 2 * CA_PAGE;
    if (!segment) {
        ca_lock_drop(&arena->lock);
        (void)ca_upstream_free(arena->upstream, arena->context, base, segment_bytes, CA_FREE_IDLE);
        ca_lock_take(&arena->lock);
        return -ENOBUFS;
    }
    segment->asked = bytes;
    ca_warmup_grown(arena, segment_bytes);
    *block = ca_block_take_from(arena, segment->first, bytes);
    return *block ? 0 : -ENOBUFS;
}

/* Whether the real free of this segment waits for nothing that the plain free would not have. */
static bool may_go(const ca_arena_t *arena, const ca_segment_t *segment, ca_give_t which)
{
    if (segment->refused == arena->round || segment->ranged)
        return false;
    if (which == CA_GIVE_EXPORTED && !segment->exported)
        return false;
    if (which != CA_GIVE_PENDING && which != CA_GIVE_PASSED)
        return ca_segment_idle(segment);
    for (const ca_block_t *block = segment->live_blocks ? NULL : segment->first; block;
         block = ca_block_upper(block))
        if (ca_block_state(block) == CA_BLOCK_PENDING &&
            (ca_epoch_overdue(arena, ca_block_epoch(block)) ||
             ca_block_epoch(block)->own_passed != (which == CA_GIVE_PASSED)))
            return false;
    return segment->live_blocks == 0;
}

/* The caller is about to give memory back, so this first merges what pin mode left. NULL in pin
 * mode. */
static ca_segment_t *next_to_go(ca_arena_t *arena, ca_give_t which)
{
    ca_segment_t *found = NULL;

    if (arena->pins)
        return NULL;
    ca_pin_merge(arena, 0);
    /* Every growth comes here, and there may be thousands of segments. */
    ca_segment_t *first = arena->vacant ? arena->segments : NULL;
    for (ca_segment_t *segment = first; segment; segment = segment->next)
        if ((!found || (which == CA_GIVE_OLDEST ? segment->idle_since < found->idle_since
                                                : segment->bytes > found->bytes)) &&
            may_go(arena, segment, which))
            found = segment;
    return found;
}

/* Gives segments back until `bytes` and what is reserved come to `most`. Each goes only while
 * nothing runs: the real free waits for all work, some of which may be waiting for this very
 * thread, and there may still be memory. */
static void give_down_to(ca_arena_t *arena, size_t bytes, size_t most, ca_give_t which)
{
    size_t now = arena->reserved + bytes, released;
    /* The work is that of one stream, and the request behind it. */
    uint64_t ns = arena->home ? arena->params.reuse_wait_ns : 0;

    for (size_t left = now > most ? now - most : 0; left > 0;
         left -= released < left ? released : left) {
        if (arena->reserved + bytes <= most ||
            !(next_to_go(arena, which) || (which != CA_GIVE_SEGMENTS && ca_range_idle(arena))) ||
            !(ca_epoch_in_order(arena) ||
              (ca_nothing_in_flight(arena) && ca_epoch_device_idle(arena, ns))) ||
            !ca_arena_serving(arena) || !(released = ca_give_back(arena, 1, which)))
            return;
    }
}

/* What `gc_threshold` allows to be reserved before a growth. */
static size_t collect_above(const ca_arena_t *arena)
{
    size_t whole = ca_arena_whole(arena), percent = arena->params.gc_threshold;

    return percent && whole != SIZE_MAX ? whole / 100 * percent : SIZE_MAX;
}

/* What upstream has left by now. */
static size_t left(const ca_arena_t *arena)
{
    size_t then = arena->estimate.found + arena->estimate.held, held = arena->reserved;

    if (arena->estimate.found == SIZE_MAX)
        return SIZE_MAX;
    return then > held ? then - held : 0;
}

/* Whether that is good enough for obtaining `bytes`: afterwards half of what was found remains, and
 * twice as much as has to be left. */
static bool estimate_serves(const ca_arena_t *arena, size_t bytes, size_t leave)
{
    size_t now = left(arena);

    return ca_clock_ns() < arena->estimate.until && now >= bytes &&
           now - bytes >= arena->estimate.found / 2 && (now - bytes) / 2 >= leave;
}

/* Bytes that the arena may grow by, headroom aside: what upstream has and the limit leaves. */
static size_t free_bytes_now(const ca_arena_t *arena)
{
    size_t limit = arena->params.limit, now = arena->reserved, available = left(arena);
    size_t allowed = limit == SIZE_MAX ? SIZE_MAX : limit - (now < limit ? now : limit);

    return available < allowed ? available : allowed;
}

/* That may open the caches or lock them out. */
static void set_free_bytes(ca_arena_t *arena, size_t bytes)
{
    arena->free_bytes = bytes;
    arena->estimate_after = arena->operations + ESTIMATE_EVERY;
    ca_caches_review(arena);
}

void ca_grow_set_found(ca_arena_t *arena, size_t bytes)
{
    arena->estimate.found = bytes;
    arena->estimate.held = arena->reserved;
    set_free_bytes(arena, bytes);
}

/* Asks upstream what it has. Drops the lock. */
static void estimate_free(ca_arena_t *arena)
{
    size_t held = arena->reserved;

    arena->estimate_after = arena->operations + ESTIMATE_EVERY; /* for others, meanwhile */
    ca_lock_drop(&arena->lock);
    size_t found = ca_upstream_available(arena->upstream, arena->context);
    ca_lock_take(&arena->lock);
    arena->estimate = (ca_free_estimate_t){found, held, ca_clock_ns() + CA_ESTIMATE_SERVES_NS};
    set_free_bytes(arena, free_bytes_now(arena));
}

void ca_grow_estimate_again(ca_arena_t *arena)
{
    if (arena->operations >= arena->estimate_after && ca_caches_lack_memory(arena) &&
        ca_arena_serving(arena))
        estimate_free(arena);
}

/* Upstream has `bytes` more, which it got back. */
static void add_free_bytes(ca_arena_t *arena, size_t bytes)
{
    if (arena->free_bytes < SIZE_MAX - bytes && !arena->retired)
        set_free_bytes(arena, arena->free_bytes + bytes);
}

static int try_sizes(ca_arena_t *arena, size_t bytes, size_t headroom, ca_block_t **block)
{
    size_t needed = bytes + arena->slack;
    size_t whole = ca_round_up(needed, CA_SEGMENT_UNIT);
    ca_pool_t pool = ca_pool_of(arena, bytes);
    if (pool == CA_POOL_MAIN && ca_apart_much(arena)) {
        ca_apart_small(arena, CA_APART_SMALL);
        pool = ca_pool_of(arena, bytes);
    }
    size_t preferred = preferred_bytes(arena, pool, bytes);
    if (pool == CA_POOL_OVERSIZE || preferred < whole || ca_export_begins(&arena->params, bytes))
        preferred = whole;
    else /* no rest that none of its kind fits in */
        preferred = ca_round_up(preferred / needed * needed, CA_SEGMENT_UNIT);
    ca_range_review(arena);
    bool ranged = ca_range_wanted(arena, bytes);
    if (ranged) {
        preferred = ca_range_needs(arena, bytes, false);
        whole = needed = ca_range_needs(arena, bytes, true);
    }
    const size_t sizes[] = {preferred, whole, needed};
    int rc = -ENOMEM;

    ca_give_exported(arena);
    give_down_to(arena, 0, collect_above(arena), CA_GIVE_OLDEST);
    bool estimated = !estimate_serves(arena, preferred, headroom);
    if (estimated)
        estimate_free(arena);
    else
        set_free_bytes(arena, free_bytes_now(arena));
    for (unsigned i = 0; i < 3 && rc == -ENOMEM; i++) {
        if (i > 0 && sizes[i] == sizes[i - 1])
            continue;
        if (ca_grow_over_limit(arena, sizes[i]) ||
            (headroom && (sizes[i] > arena->free_bytes || arena->free_bytes - sizes[i] < headroom)))
            continue;
        if (i == 0) /* so that it keeps within the highest reserve ever */
            give_down_to(arena, sizes[i], arena->reserved_peak, CA_GIVE_SEGMENTS);
        if (!ca_arena_serving(arena))
            return -EIO;
        rc = ranged ? ca_range_grow(arena, bytes, i > 0, block)
                    : grow_by(arena, sizes[i], bytes, block);
        if (rc == 0 && arena->free_bytes != SIZE_MAX)
            arena->free_bytes -= arena->free_bytes < sizes[i] ? arena->free_bytes : sizes[i];
        if (rc == -ENOMEM && !estimated) { /* others have got it since */
            estimated = true;
            estimate_free(arena);
        }
    }
    if (rc == -ENOMEM && !headroom)
        ca_grow_set_found(arena, 0);
    return rc;
}

int ca_grow(ca_arena_t *arena, size_t bytes, size_t headroom, ca_block_t **block)
{
    if (ca_view_needs_none(arena, bytes)) {
        int made = ca_view_make(arena, bytes, 0, block);
        if (made != -ENOSYS)
            return made;
    }
    size_t slack = arena->slack;
    if (ca_block_withheld(arena, bytes))
        ca_mixed_grows(arena);
    int rc = try_sizes(arena, bytes, headroom, block);
    if (rc == -ENOSYS) /* no range after all */
        rc = try_sizes(arena, bytes, headroom, block);
    /* The first badly aligned address may have left too little; from now on there is slack. */
    if (rc == -ENOBUFS && arena->slack != slack)
        rc = try_sizes(arena, bytes, headroom, block);
    return rc;
}

ca_block_t *ca_grow_without(ca_arena_t *arena, size_t bytes)
{
    if (!ca_arena_serving(arena))
        return NULL;
    /* Looking for what may go back may have merged what is needed. */
    ca_block_t *block = ca_block_take_any(arena, bytes);
    if (!block)
        block = ca_pin_merge(arena, bytes);
    return block ? block : ca_block_take_elsewhere(arena, bytes);
}

/* A segment that upstream would not take back returns to the arena. What was pending in it still
 * is. Not where its context is ending and another one has the addresses. */
static void put_back(ca_arena_t *arena, uint64_t base, size_t bytes, size_t asked, ca_pool_t pool,
                     bool idle)
{
    if (ca_span_owner(base, bytes))
        return;
    ca_segment_t *segment = ca_segment_add(arena, base, bytes, pool);
    if (!segment)
        return;
    segment->asked = asked;
    segment->first->touched = true;
    segment->refused = arena->round;
    ca_block_t *block = idle ? NULL : ca_block_take_from(arena, segment->first, segment->usable);
    if (block) {
        ca_block_unlive(arena, block);
        ca_epoch_push(arena, &arena->plain_fences, block);
        ca_epoch_freed_by(arena->plain_fences.open, CA_BY_SEVERAL);
    }
}

size_t ca_give_segment(ca_arena_t *arena, ca_segment_t *segment, ca_free_t how)
{
    uint64_t base = segment->base;
    size_t bytes = segment->bytes, asked = segment->asked;
    ca_pool_t pool = segment->pool;

    ca_segment_detach(arena, segment);
    ca_lock_drop(&arena->lock);
    int rc = ca_upstream_free(arena->upstream, arena->context, base, bytes, how);
    ca_lock_take(&arena->lock);
    arena->leaving -= bytes;
    ca_reserved_lower(arena, bytes);
    if (rc < 0 && !arena->retired)
        put_back(arena, base, bytes, asked, pool, how == CA_FREE_IDLE);
    if (rc == -EIO)
        ca_arena_stop(arena);
    if (rc == 0)
        add_free_bytes(arena, bytes);
    ca_giving_end(rc == 0);
    return rc == 0 ? bytes : 0;
}

bool ca_nothing_in_flight(ca_arena_t *arena)
{
    if (!ca_stream_leave_passed(arena))
        return false;
    while (ca_order_owes(arena->context)) {
        ca_lock_drop(&arena->lock);
        bool paid = ca_order_paid(arena->context);
        ca_lock_take(&arena->lock);
        if (!paid || !ca_arena_serving(arena))
            return false;
    }
    return true;
}

/* Host memory's real free waits for all work, some of which may be waiting for this very thread,
 * and the program freed it long ago: so the question is asked before each. Drops the lock. */
static ca_segment_t *next_that_may_go(ca_arena_t *arena, ca_give_t which)
{
    bool host = arena->params.host;
    ca_segment_t *segment = ca_arena_serving(arena) ? next_to_go(arena, which) : NULL;

    if (!segment || (!host && !arena->home && !ca_order_owes(arena->context)))
        return segment;
    bool may = host ? ca_epoch_device_idle(arena, 0) : ca_nothing_in_flight(arena);
    return may && ca_arena_serving(arena) ? next_to_go(arena, which) : NULL;
}

/* Pages go only where nothing is in flight, whatever `which` says of the rest. */
static size_t give_pages(ca_arena_t *arena, size_t bytes, ca_give_t which)
{
    size_t released = 0, more = 1;

    if (which == CA_GIVE_SEGMENTS || which == CA_GIVE_EXPORTED)
        return 0;
    while (released < bytes && more && ca_range_idle(arena) &&
           (CA_MUTATED(unmap_unfenced) || ca_nothing_in_flight(arena))) {
        more = ca_range_give(arena, bytes - released);
        released += more;
        if (more)
            add_free_bytes(arena, more);
    }
    return released;
}

size_t ca_give_back(ca_arena_t *arena, size_t bytes, ca_give_t which)
{
    size_t released = 0;
    ca_segment_t *segment;

    arena->round++;
    if (bytes > arena->reserved) /* others may go on growing and freeing meanwhile */
        bytes = arena->reserved;
    while (released < bytes && (segment = next_that_may_go(arena, which)))
        released += ca_give_segment(arena, segment,
                                    which == CA_GIVE_PENDING  ? CA_FREE_PENDING
                                    : which == CA_GIVE_PASSED ? CA_FREE_PASSED
                                                              : CA_FREE_IDLE);
    return released < bytes ? released + give_pages(arena, bytes - released, which) : released;
}

void ca_give_exported(ca_arena_t *arena)
{
    if (arena->exported)
        (void)ca_give_back(arena, SIZE_MAX, CA_GIVE_EXPORTED);
}
