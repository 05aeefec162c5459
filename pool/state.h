/* An arena's own state. Its lock guards every field that changes, and all blocks, segments and
 * epochs that hang on it. */
#ifndef CA_POOL_STATE_H
#define CA_POOL_STATE_H

#include "base/lock.h"
#include "base/mem.h"
#include "pool/blocks/bin.h"
#include "pool/blocks/block.h"
#include "pool/cache/cache_state.h"
#include "pool/fence/epoch.h"
#include "pool/growth/grow.h"

struct ca_arena {
    ca_lock_t lock;
    const ca_upstream_t *upstream;
    void *context;
    ca_arena_params_t params;

    bool apart;         /* see mixed.h */
    ca_stream_t *ended; /* streams of its lives before, for new ones */
    ca_block_slab_t blocks;

    /* From here on: of this life alone, see ca_arena_revive. */
    _Atomic bool stopped;   /* the context is broken, or was destroyed: nothing is served */
    bool retired;           /* the context is destroyed: nothing here may reach upstream any more */
    bool fenced, no_fences; /* a fence could be had, or never can */
    unsigned inside;        /* threads whose work in here drops the lock in between */

    /* What closing a cache's epoch writes: together, since thread after thread does. */
    uint64_t operations;      /* allocations, frees, waits: the clock of the back-offs */
    uint64_t freed_after;     /* the last fence before a plain free, whichever thread's */
    uint64_t long_wait_after; /* operations: see epoch.h, ca_epoch_long_wait */
    size_t cached_bytes;      /* part of live: it lies in caches, as far as they published it */
    ca_fence_queue_t plain_fences; /* epochs of plain frees */
    ca_epoch_t *passed;            /* blocks that stay whole for now: see ca_block_stays_whole */
    ca_epoch_t *owed; /* served in order last, and empty; in no list: see ca_epoch_cover */
    ca_slab_t epochs, marks;

    uint32_t tick;  /* see ca_arena_tick */
    uint32_t round; /* of giving back */

    unsigned pins;       /* pin mode is on: see ca_arena_pin */
    bool unmerged;       /* there may be ready neighbours, from while it was */
    bool prefers_memory; /* to time: see pool/growth/warmup.h */
    bool others_stuck;   /* other contexts' work was waited for in vain: see ladder.c */
    bool overdue_stuck;  /* so was what is overdue */

    ca_bins_t *bins; /* ready blocks, by ca_pool_t */
    ca_segment_t *segments;
    uint32_t segment_count, vacant; /* without a live block */
    ca_cache_t *depot;  /* no thread's: what caches had too much of, and others may take */
    ca_cache_t *caches; /* of threads, in front of it, and the depot: see pool/cache/cache.h */
    size_t cache_count; /* of threads */
    size_t cache_most;  /* bytes of the largest block that they keep; 0 before any may */
    unsigned lock_outs; /* reasons why they are locked out, counted */
    uint16_t walks;     /* that are under way along `busy` */
    bool warming_up;    /* the caches are locked out until the warm-up is over */
    bool mixed_again;   /* it grew for that though no more was live than before: see mixed.h */
    uint64_t locked_out_after; /* operations: see ladder.c */
    uint64_t warmup_until;     /* operations */
    uint64_t warmup;           /* operations that the warm-up lasts after a growth, */
    size_t warmup_peak;        /* since live_peak was this */
    size_t warmup_from;        /* what was reserved then: see ca_warmup_grown */
    ca_stream_t *streams;      /* each with its own; only ever added to, in front */
    ca_stream_t *busy;         /* those with pending blocks, or fences: see pool/fence/stream.c */
    /* Those of them that are destroyed and may serve again, oldest first. */
    ca_stream_t *retired_streams, *last_retired_stream;
    size_t living_streams; /* those that are not destroyed */
    /* See pool/fence/stream.h; made on first use, as the next one is. */
    ca_stream_t *_Atomic legacy, *_Atomic by_default;
    ca_stream_t *elsewhere;
    /* All that is ready is so in this stream's order alone; or NULL. See pool/fence/stream.h. */
    ca_stream_t *home;
    ca_stream_t *asked;     /* the last request was in its order */
    uint64_t home_after;    /* operations: no stream comes home before */
    unsigned home_left;     /* times that one left, at most CA_HOME_DOUBLINGS */
    uint64_t precise_until; /* operations; before that a free on a stream gets a fence of its own */

    unsigned grower;         /* the thread that is obtaining a segment, by ca_thread_number */
    uint16_t stream_numbers; /* given so far */
    bool growing;            /* there is such a thread; others search again when it is done */
    bool growing_for_caches; /* so that caches need not be emptied */
    ca_signal_t grown;
    size_t slack; /* added to segments once upstream returned a badly aligned address */

    size_t free_bytes;           /* left to grow by: upstream's, as reckoned last, or the limit's */
    ca_free_estimate_t estimate; /* what that is reckoned from */
    uint64_t estimate_after;     /* operations; where it was short then, the next one: see grow.c */
    size_t reserved, reserved_peak;
    size_t leaving; /* part of reserved: detached, upstream's free under way */
    size_t live, live_peak;
    size_t pending, ready;
    size_t exported; /* in CA_BLOCK_EXPORTED */

    struct ca_range *range; /* see range.h; NULL: none */

    size_t stranded;   /* bytes: see mixed.h */
    size_t mixed_peak; /* live_peak when it last grew for that */

    ca_slab_t segment_slab;
};

static inline bool ca_arena_serving(const ca_arena_t *arena)
{
    return !arena->stopped && !arena->retired;
}

/* What there may be at most: the device, or the limit; SIZE_MAX where that is not known. */
static inline size_t ca_arena_whole(const ca_arena_t *arena)
{
    size_t device = arena->params.device_bytes, limit = arena->params.limit;

    return device && device < limit ? device : limit;
}

/* Bytes that the program has, as far as caches published them. A block that a cache served, and did
 * not publish, may be freed past the cache meanwhile: on a stream, or by a thread that has none. */
static inline size_t ca_arena_in_use(const ca_arena_t *arena)
{
    return arena->live > arena->cached_bytes ? arena->live - arena->cached_bytes : 0;
}

/* Some thread made a plain free after the fence with this number. */
static inline void ca_arena_note_free(ca_arena_t *arena, uint64_t number)
{
    if (arena->freed_after < number)
        arena->freed_after = number;
}

/* After that rose. */
static inline void ca_arena_note_peak(ca_arena_t *arena)
{
    size_t now = ca_arena_in_use(arena);

    if (now > arena->live_peak)
        arena->live_peak = now;
}

/* The driver reported a broken context: it serves nothing more (-EIO), but keeps its books. */
void ca_arena_stop(ca_arena_t *arena);

/* Its address is about to be another one, or none. */
static inline void ca_block_forget(ca_block_t *block)
{
    if (ca_record_indexed(&block->record))
        block->arena->upstream->forget(&block->record);
}

/* Takes the lock of the arena that has a segment with this address, or NULL. */
ca_arena_t *ca_span_lock(uint64_t address);

/* Where it may be (pool/fence/order.h), what plain frees left in flight is made ready. Drops the
 * lock. */
void ca_arena_serve_in_order(ca_arena_t *arena);

/* Whether nothing is handed out in flight any more, for good: then threads keep again what they
 * would have kept, and the arena prefers memory to time no more than another one does. */
void ca_arena_check_order(ca_arena_t *arena);

/* Around all that drops the lock in between; the lock is held here. Holds cancellation off: a
 * thread that vanished in an upstream call or a wait would leave its epoch, its part in the growth
 * or the lock behind. And keeps a retired arena's memory until the last thread is out. */
int ca_arena_enter(ca_arena_t *arena);
void ca_arena_leave(ca_arena_t *arena, int cancellation);
/* The same for what added to `inside` by itself, around what is no cancellation point. */
void ca_arena_left(ca_arena_t *arena);

/* The only ways to change `reserved`; they keep the totals of the process too
 * (pool/growth/giving.c). `forget`: the arena is being retired; what it reserved is lost. */
void ca_reserved_raise(ca_arena_t *arena, size_t bytes);
void ca_reserved_lower(ca_arena_t *arena, size_t bytes);
void ca_reserved_forget(const ca_arena_t *arena);

/* Every invariant, with the lock held; see ca_arena_check. */
const char *ca_check_locked(const ca_arena_t *arena);

#endif
