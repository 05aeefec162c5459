/* Views: memory of a range at other addresses. A request that fits nowhere in one piece is mapped a
 * second time, over pages of the range that are ready, wherever these lie, one behind the other:
 *
 *   made      over whole pages that are ready, the highest first, of the last one no more than is
 *             needed; and over new pages at the end, where too few are ready and growth would take
 *             more. The first mapping stays, and so does the page
 *   in use    it is a segment with one block (CA_POOL_VIEW), whose memory is lent: those blocks of
 *             the range serve no request. Its free is like any other: its block is pending, and
 *             when its epoch has passed what was lent is ready again, and merges
 *   kept      the mapping stays all the same, with a hole for a block. Once its pages are ready
 *             again, it serves a request that needs all of them, without a call upstream: so no
 *             page of a view in use can go back. A program that repeats itself makes no further
 *             views
 *   given up  the one that served longest ago, where all of them have more than CA_VIEWS_MOST
 *             times the addresses that the range has memory; and those over a page that goes back
 *
 * An owner uses one address, and the next owner's work is behind the last one's, as ever, so that
 * it does not matter by which address either of them came: a page that is ready in order (order.h)
 * may be in flight while it is mapped. It may not be in flight by an address that is unmapped:
 * where a stream at home (stream.h) freed a view, nothing may run when one is given up for others.
 *
 * In pin mode blocks keep their addresses: none is made or given up, and one that becomes ready
 * stays whole, and serves requests of just its size.
 *
 * The arena's lock is held in every function here unless it says otherwise. */
#ifndef CA_POOL_RANGE_VIEW_H
#define CA_POOL_RANGE_VIEW_H

#include "base/mutation.h"
#include "pool/blocks/block.h"
#include "pool/range/range.h"

#define CA_VIEW_LEAST ((size_t)16 << 20) /* bytes of a request that gets one */
#define CA_VIEWS_MOST 2u
#define CA_MAPPINGS_MOST ((size_t)200000) /* pages mapped; drivers map few more */

static inline bool ca_view_for(size_t bytes)
{
    return bytes >= CA_VIEW_LEAST || (CA_MUTATED(range_small) && bytes >= CA_PAGE_FROM);
}

struct ca_view {
    ca_segment_t *segment;
    ca_view_t *newer, *older;
    uint64_t at;
    size_t bytes;     /* of its pages, */
    size_t last;      /* and of the last one */
    ca_block_t *lent; /* while in use: the range's, in order, each behind the other's `next` */
    size_t count;
    bool pinned;
    uint64_t pages[]; /* where they lie in the range */
};

/* From a kept view; NULL where none serves, or the request is none for ranges. */
ca_block_t *ca_view_take(ca_arena_t *arena, ca_pool_t pool, size_t bytes);

/* The new memory that a view for the request takes, in pages of `page`; SIZE_MAX: none can be made.
 */
size_t ca_view_needs(const ca_arena_t *arena, size_t bytes, size_t page);
/* Whether it takes none: what is ready has just to be mapped in one piece. */
bool ca_view_needs_none(const ca_arena_t *arena, size_t bytes);

/* Makes a view and takes the request from it: results as of ca_range_grow. `page` 0: with no new
 * memory. Drops the lock. */
int ca_view_make(ca_arena_t *arena, size_t bytes, size_t page, ca_block_t **block);

/* The block of a view, in no list, has become ready. */
void ca_view_ready(ca_arena_t *arena, ca_block_t *block);

/* What a view uses is the range's again. */
void ca_view_return(ca_arena_t *arena, ca_view_t *view);

/* What pin mode kept in views is the range's again. */
void ca_view_merge(ca_arena_t *arena);

/* A device on the bus has its memory: it keeps its addresses, and its pages are lent no more. */
void ca_view_pin(ca_arena_t *arena, ca_view_t *view);

/* Takes the views with pages in [at, at + bytes), none of which is in use, out of the arena.
 * Returns them in a row, by `older`, for the second function, which unmaps them without a lock. */
ca_view_t *ca_view_detach(ca_arena_t *arena, uint64_t at, size_t bytes);
void ca_view_unmap(const ca_arena_t *arena, ca_view_t *views);

const char *ca_view_check(const ca_arena_t *arena);

#endif
