/* Warm-up: memory first, then time. While a program is still growing, each block that is cut though
 * another one would have fitted, and each that a thread keeps for itself, makes the pool grow more,
 * and it holds for long what it then has. Once it has not grown for a while its sizes come round
 * again, and the fast path can serve them. So a growth begins a warm-up of `x_warmup` allocations
 * and frees, or of more where the arena grows again without need. In warm-up
 *
 *   caches   are locked out: every request takes the block that fits best
 *   frees    of more than CA_WARMUP_CLOSES close their epoch at once
 *   requests of CA_WARMUP_ASKS or more poll what was freed before they take anything
 *   growth   is by little at a time
 *
 * In a small program, with at most CA_SMALL_RESERVED, each block is a large part of all there is:
 * there frees close their epoch when it holds CA_WARMUP_ASKS, once a good part is live, and growth
 * is by little after warm-up, too.
 *
 * Where the device lags behind, so that polling is in vain, the caches stay locked out, but warm-up
 * polls and closes nothing more. What all this is worth is in tests/replay/NOTES.md.
 *
 * Every function takes the arena with its lock held, and none drops it. */
#ifndef CA_POOL_GROWTH_WARMUP_H
#define CA_POOL_GROWTH_WARMUP_H

#include "pool/cache/cache.h"
#include "pool/state.h"

#define CA_WARMUP_MOST 64u                   /* times `x_warmup` */
#define CA_WARMUP_MORE 64u                   /* so little of what was live at most is no more */
#define CA_SMALL_RESERVED ((size_t)16 << 20) /* bytes, at most */

/* What the arena may grow by before the growth counts. Among very many live blocks it grows now and
 * then by chance. Threads that share a small pool each take what is ready and keep it, so that one
 * that finds nothing makes it grow. If that counted, the memory that they all need would come in
 * dozens of steps, with the caches locked out and a crowded lock between two of them. */
static inline size_t ca_warmup_uncounted(const ca_arena_t *arena)
{
    size_t part = arena->warmup_from / CA_WARMUP_GROWN;
    size_t cached = arena->cache_count > 1 ? (arena->cache_count - 1) * CA_WARMUP_THREAD : 0;
    if (arena->blocks.live >= CA_WARMUP_MANY)
        part *= 4;
    return part > cached ? part : cached;
}

/* The arena has a new segment. Where its warm-up was over, it gave nothing back and no more is live
 * than before, warm-up was too short: it takes twice as long from then on, CA_WARMUP_MOST times as
 * long at most. A segment that was obtained to keep the caches full does not count, because warm-up
 * would lock them out. */
static inline void ca_warmup_grown(ca_arena_t *arena, size_t bytes)
{
    if (arena->growing_for_caches) {
        arena->warmup_from += bytes;
        return;
    }
    /* Wraps around where memory went back since: that counts. */
    if (arena->warmup && arena->reserved - arena->warmup_from <= ca_warmup_uncounted(arena))
        return;
    if (!arena->warmup ||
        arena->live_peak > arena->warmup_peak + arena->warmup_peak / CA_WARMUP_MORE) {
        arena->warmup = arena->params.warmup;
        arena->warmup_peak = arena->live_peak;
    } else if (!arena->warming_up && arena->warmup < arena->params.warmup * CA_WARMUP_MOST) {
        arena->warmup *= 2;
    }
    arena->warmup_from = arena->reserved;
    arena->warmup_until = arena->operations + arena->warmup;
    if (arena->warming_up || !arena->params.warmup)
        return;
    arena->prefers_memory = arena->warming_up = true;
    ca_caches_lock_out(arena);
}

/* The arena gave memory back that no request here needed. So its next growth shows nothing. */
static inline void ca_warmup_gave(ca_arena_t *arena)
{
    arena->warmup = 0;
}

/* Whether warm-up never ends for its frees, cuts and growth, and threads keep small blocks alone,
 * which lie apart (CA_ORDER_SMALL). That is so with reuse in order (pool/fence/order.h), where
 * nothing need be polled, and with a range (pool/range/range.h), because what threads keep between
 * large blocks holds pages. */
static inline bool ca_warmup_never(const ca_arena_t *arena)
{
    return (arena->params.reuse == CA_POOL_REUSE_ORDER && !arena->params.host) || arena->range;
}

/* Every allocation and free calls this, which ends warm-up when its time has come. */
static inline void ca_warmup_step(ca_arena_t *arena)
{
    if (!arena->warming_up || arena->operations < arena->warmup_until)
        return;
    arena->warming_up = false;
    arena->prefers_memory = ca_warmup_never(arena);
    ca_caches_open(arena);
}

/* Whether there are fences, and the last query found its fence passed. */
static inline bool ca_warmup_keeps_up(const ca_arena_t *arena)
{
    return !arena->no_fences && !arena->plain_fences.failures;
}

/* Whether the arena is in warm-up, and polling may help. */
static inline bool ca_warmup_may_ask(const ca_arena_t *arena)
{
    return arena->prefers_memory && ca_warmup_keeps_up(arena);
}

/* Whether a request polls what was freed before a block is cut for it. In pin mode it takes what
 * was freed last anyway. */
static inline bool ca_warmup_asks(const ca_arena_t *arena, size_t bytes)
{
    return bytes >= CA_WARMUP_ASKS && ca_warmup_may_ask(arena) && arena->plain_fences.closed.head &&
           !arena->pins && ca_arena_serving(arena);
}

/* Some MiB of host memory do not matter, and its fences are dear. */
static inline bool ca_warmup_small(const ca_arena_t *arena)
{
    return arena->reserved <= CA_SMALL_RESERVED && !arena->params.host;
}

/* Whether a segment need be no larger than what it is for. After warm-up that is for small programs
 * alone, because each growth begins another warm-up, which is twice as long. */
static inline bool ca_warmup_grows_by_little(const ca_arena_t *arena)
{
    return arena->params.warmup && arena->segments && ca_warmup_keeps_up(arena) &&
           (arena->prefers_memory || ca_warmup_small(arena));
}

/* What an epoch of plain frees may hold, in bytes, where free memory is not short. */
static inline size_t ca_warmup_epoch_bytes(const ca_arena_t *arena)
{
    if (!ca_warmup_may_ask(arena) || !ca_warmup_small(arena))
        return ca_epoch_bytes(arena->live_peak);
    return arena->live < arena->reserved / CA_SMALL_LIVE ? CA_SMALL_EPOCH : CA_WARMUP_ASKS;
}

#endif
