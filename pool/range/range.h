/* Ranges: memory that grows and shrinks in place. Where upstream has pages (upstream.h), and an
 * arena holds CA_RANGE_FROM, it grows in one segment, as large as all the memory that there is and
 * more, whose addresses get their memory page by page:
 *
 *   hole      addresses without memory are blocks in a state of their own; the last one is all that
 *             has never had any. Growth fills as much as is needed of the hole where, with what is
 *             ready beside it, that is least
 *   pages     are the larger the more is held, CA_RANGE_SHARE of them at least: each costs some
 *             calls, whatever its size; of the device CA_RANGE_DEVICE_SHARE at least
 *   whole     once the pool has a part of the device, a request that fills pages of
 *             CA_SEGMENT_UNIT but for an eighth of its size gets these, from where one begins, as
 *             the driver's own blocks have theirs: what stays spoils no page beside. Larger ones
 *             may be views (view.h). Where memory is short it gets what it asked for, anywhere
 *   going     a page that is wholly ready goes back, whatever lives beside it: its addresses are a
 *             hole again. None goes for growth alone: only where memory is short, or asked for
 *   lent      memory that is used at other addresses (view.h), or that comes or goes while the lock
 *             is dropped. To its neighbours such a block is live
 *
 * Such an arena stays in warm-up as long as it lives: see ca_warmup_never.
 *
 * What counts as reserved is pages, never addresses. A page is unmapped only once nothing is in
 * flight there, which unmapping does not wait for: what is ready in order (order.h) has to pass
 * first. In pin mode nothing goes.
 *
 * Pages belong to the process, and stay when their context goes: the last thread that leaves a
 * retired arena gives all of them back.
 *
 * The arena's lock is held in every function here unless it says otherwise; those that reach
 * upstream drop it, and say so. */
#ifndef CA_POOL_RANGE_RANGE_H
#define CA_POOL_RANGE_RANGE_H

#include <stdatomic.h>
#include "pool/blocks/block.h"

#define CA_RANGE_FROM ((size_t)64 << 20) /* bytes held, the request included */
#define CA_RANGE_SHARE 128u
#define CA_RANGE_PAGE_MOST ((size_t)32 << 20)
#define CA_RANGE_DEVICE_SHARE 1024u             /* or the limit, where that is less */
#define CA_RANGE_WHOLE_BELOW ((size_t)16 << 20) /* bytes of a request */

extern _Atomic bool ca_ranges_ended; /* see ca_ranges_end */

typedef struct ca_view ca_view_t;

typedef struct ca_range_page {
    uint64_t at;
    ca_page_t page;
    ca_block_t *ready; /* where its first byte is: see ca_range_find_ready */
    uint32_t views;    /* that it is mapped in besides */
    bool made;         /* false: it is on its way, or leaves */
    bool pinned;       /* for good: see ca_range_pin */
} ca_range_page_t;

typedef struct ca_range {
    ca_segment_t *segment;
    size_t unit;            /* of pages */
    size_t held;            /* bytes of pages; reserved, of the arena's */
    ca_range_page_t *pages; /* by address */
    size_t count, capacity;
    ca_block_t *holes;
    ca_view_t *newest, *oldest; /* views, by their last use */
    size_t view_count;
    size_t view_bytes;  /* of addresses */
    size_t mappings;    /* of pages, all addresses together */
    bool stuck;         /* a mapping failed: it grows no more, */
    bool no_views;      /* or has no further views */
    bool at_work;       /* work of a stream at home may come by a kept view's addresses */
    unsigned walks;     /* that are under way: nothing is unmapped */
    unsigned walked;    /* how many have begun */
    uint32_t idle_tick; /* since then that much could be released, at each tick: see reclaim.c */
    size_t idle_least;
} ca_range_t;

/* Where blocks are to have whole pages: those for a request of so much, or `bytes`. No lock. */
static inline size_t ca_range_round(size_t bytes)
{
    size_t whole = ca_round_up(bytes, CA_SEGMENT_UNIT);
    return bytes < CA_RANGE_WHOLE_BELOW && whole - bytes <= bytes / 8 ? whole : bytes;
}

/* About to grow: whether they are to from now on. */
void ca_range_review(ca_arena_t *arena);

/* Where a block of `bytes` had best begin; and the bytes to skip in front of it in a ready or lent
 * one, so that it does, if it is large enough. */
size_t ca_range_alignment(const ca_arena_t *arena, size_t bytes);
size_t ca_range_padding(const ca_arena_t *arena, const ca_block_t *block, size_t bytes);

/* Whether a request that nothing serves is one for a range. */
bool ca_range_wanted(const ca_arena_t *arena, size_t bytes);

/* The memory that growth for it takes; `fine`: in pages as small as they can be. */
size_t ca_range_needs(const ca_arena_t *arena, size_t bytes, bool fine);

/* Grows the arena's range, which it makes where there is none, and takes the request from it.
 * Results are those of ca_grow, or -ENOSYS: no range serves it, and other segments may. Drops the
 * lock. */
int ca_range_grow(ca_arena_t *arena, size_t bytes, bool fine, ca_block_t **block);

/* Bytes of pages that could go back. */
size_t ca_range_idle(const ca_arena_t *arena);

/* Bytes of pages in which nothing lives, whatever may still be at them. */
size_t ca_range_vacant(const ca_arena_t *arena);

/* Releases the highest row of wholly ready pages, up to `bytes` of it and the rest of a page. The
 * caller has held the lock since nothing was in flight. Returns the bytes released. Drops the lock.
 */
size_t ca_range_give(ca_arena_t *arena, size_t bytes);

/* For every tick of the arena; and what could go back at each of more than `ticks` of them. */
void ca_range_tick(ca_arena_t *arena);
size_t ca_range_idle_longer(ca_arena_t *arena, uint32_t ticks);

/* The arena is retired and the caller the last one inside: all its pages and addresses go back.
 * Drops the lock. */
void ca_range_end(ca_arena_t *arena);

/* Pages of a range, all of its addresses from `at` on: the number of the first that ends above. */
size_t ca_range_page_at(const ca_range_t *range, uint64_t at);

/* Pins all pages that lie in [at, at + bytes), or reach into it. */
void ca_range_pin_pages(ca_range_t *range, uint64_t at, size_t bytes);

static inline uint64_t ca_range_page_end(const ca_range_page_t *page)
{
    return page->at + page->page.bytes;
}

/* Sets in each page the ready block that it begins in, or NULL; of blocks that are smaller than a
 * page it takes no notice. */
void ca_range_find_ready(ca_arena_t *arena);

/* The highest whole pages of the highest ready block that has any are lent, as many as `bytes`
 * need; unless `whole`, of the last one just what is needed. 0, -ENOENT: there are none, or
 * -ENOSYS: no host memory. */
int ca_range_lend(ca_arena_t *arena, size_t bytes, bool whole, ca_block_t **lent);

/* `bytes` of a ready block from `at` on are lent: returns that part, or NULL where there is no host
 * memory, which all of a block needs none of. */
ca_block_t *ca_range_lend_part(ca_arena_t *arena, ca_block_t *block, uint64_t at, size_t bytes);

/* Lent blocks become ready, and merge. The next one is behind `next`. */
void ca_range_return(ca_arena_t *arena, ca_block_t *lent);

/* New memory on its way: the lowest `bytes` of a hole, in pages of `page` and a smaller one, with
 * what is ready beside it. */
typedef struct ca_fill {
    ca_block_t *hole, *below, *above;
    size_t bytes, page;
    uint64_t at;
    size_t count;
    ca_page_t *pages;
    ca_block_t *block; /* that part of the hole; lent, as those beside it are */
} ca_fill_t;

/* 0, -ENOMEM: the limit refuses, or -ENOSYS: there is no host memory. Then, without the
 * lock, upstream is asked. And with it: `rc` is what that answered; -EIO: the arena is retired, and
 * what has come goes with the rest. Unless the last gives 0 all is as before the first. */
int ca_range_fill_begin(ca_arena_t *arena, ca_fill_t *fill);
int ca_range_fill_make(const ca_arena_t *arena, ca_fill_t *fill);
int ca_range_fill_end(ca_arena_t *arena, ca_fill_t *fill, int rc);

/* The lowest hole that is as large, or NULL. */
ca_block_t *ca_range_hole(const ca_range_t *range, size_t bytes);

/* What is broken, or NULL. */
const char *ca_range_check(const ca_arena_t *arena);

/* --- between range.c and range_give.c --------------------------------------------------------- */

extern _Atomic size_t ca_ranges_count; /* of the process */

/* False where there is no block. */
static inline bool ca_range_is(const ca_block_t *block, ca_block_state_t state)
{
    return block && ca_block_state(block) == state;
}

/* They are no pages any more. */
void ca_range_forget_pages(ca_range_t *range, uint64_t at, size_t count);

/* A block, in no list, has no memory any more; merges with its neighbours that have none. */
void ca_range_make_hole(ca_arena_t *arena, ca_block_t *block);

/* --- for the shim; no lock is held -------------------------------------------------------------
 */

/* Whether the address lies in a range or a view: memory without a legacy IPC handle, whose
 * mappings a peer has to be let into. */
bool ca_range_holds(uint64_t address);

/* A device on the bus has [address, address + bytes), where a block is live: the pages keep their
 * addresses from now on, for good, and are mapped at no others. */
void ca_range_pin(uint64_t address, size_t bytes);

/* From now on no range is made, and none grows: of all arenas, for good. */
void ca_ranges_end(void);

/* Visits all that is mapped at the time, of ranges and views, in rows without a gap, and unmaps
 * nothing meanwhile. `sure` is false for a page that is on its way: another thread maps or unmaps
 * it meanwhile. A view that is on its way is not visited, and is mapped anew after this. So a
 * caller that wants each mapping to have something first makes `map` see to it, and then visits the
 * mappings that began before. Stops where `visit` does not return 0, and returns that. */
typedef int ca_range_visit_t(void *arg, uint64_t at, size_t bytes, bool sure);
int ca_range_walk(ca_arena_t *arena, ca_range_visit_t *visit, void *arg);

void ca_ranges_reset_after_fork(void);

#endif
