/* What cutting may strand. A segment goes back upstream when nothing in it is live, so a block that
 * is cut from one which was obtained for a larger request keeps the rest of it. A program that
 * takes a large buffer, frees it and keeps a smaller one, again and again, would come to hold twice
 * what it has; and no memory can be moved once the device is full. So it counts when a block is
 * cut:
 *
 *   stranded  is what was not live, at least, whenever a block was cut from a segment that was
 *             obtained for a larger one, until nothing in it is live: where small blocks fill it,
 *             that comes to nothing. All of it is at most one part in CA_MIXED_SHARE of the device,
 *             or of `limit`, and CA_SEGMENT_FIRST at least
 *   large     requests, of more than one part in CA_MIXED_LARGE of that, get segments of about
 *             their size: so few of them fit that a single one less is some per cent
 *   rounds    of a program that comes round with no more live than when the pool last grew for
 *             this: until more is live it may strand half as much again, whatever the sizes,
 *             and as much as it will while upstream has half of the device left
 *   trifles   that are CA_MIXED_TRIFLE times smaller than what an idle segment was obtained for go
 *             where memory is in use, or into a smaller segment, if they fit there: the end of a
 *             large segment is often the tightest block for them, and they would keep it from
 *             serving a little more, or from going back
 *
 * A request that may not be cut from anything grows the pool, and what is idle goes back for it
 * where the peak would rise. Where upstream has nothing left, it is cut from whatever fits. */
#ifndef CA_POOL_BLOCKS_MIXED_H
#define CA_POOL_BLOCKS_MIXED_H

#include "pool/state.h"

/* Whether a block is about what the segment was obtained for, or more. */
static inline bool ca_mixed_at_home(const ca_segment_t *segment, size_t bytes)
{
    return segment->asked <= bytes + CA_SEGMENT_UNIT;
}

/* Whether a block of `bytes` may be cut from the segment; and where it is not at home there. */
bool ca_mixed_allows_other(const ca_arena_t *arena, const ca_segment_t *segment, size_t bytes);
static inline bool ca_mixed_allows(const ca_arena_t *arena, const ca_segment_t *segment,
                                   size_t bytes)
{
    return ca_mixed_at_home(segment, bytes) || ca_mixed_allows_other(arena, segment, bytes);
}

/* Whether it would take into use an idle segment that was obtained for much more. */
static inline bool ca_mixed_wakes(const ca_segment_t *segment, size_t bytes)
{
    return !segment->live && segment->asked / CA_MIXED_TRIFLE > bytes &&
           segment->asked > CA_SEGMENT_UNIT + bytes;
}

/* A block of it becomes live, or was. */
void ca_mixed_live(ca_arena_t *arena, ca_segment_t *segment, size_t bytes);
void ca_mixed_unlive(ca_arena_t *arena, ca_segment_t *segment, size_t bytes);

/* The pool is about to grow though there is a block that the request would fit in. */
void ca_mixed_grows(ca_arena_t *arena);

/* Memory that is there, but in pieces. A segment goes back upstream when nothing in it is live, so
 * where sizes change, blocks that stay keep much of the device from larger requests. What
 * is above bounds that for segments that are cut for smaller requests; where blocks of all sizes
 * come and go in no order it comes all the same. So before it does:
 *
 *   much     Once the pool has a part of the device, a request that fills a segment of its own, but
 *            for an eighth of its size, gets one: that goes back with its block.
 *
 *   small    From then on, too, requests of up to CA_APART_SMALL get segments of the smallest size,
 *            with nothing else in them, as the driver's own lie in its pages: what stays of them
 *            keeps no more than those, and nothing that larger ones come and go in.
 *
 *   apart    Once upstream refused to let the pool grow though as much as was asked lies between
 *            blocks that live, all are kept apart for good, in a later life of the arena too: what
 *            fills a segment gets one of about its size, and all else small ones.
 *
 * Each costs calls upstream, where the device is full anyway: out of memory is dearer. */
#define CA_APART_SMALL ((size_t)1 << 20) /* bytes; larger ones have pages of their own */

/* Whether the pool has so much. */
static inline bool ca_apart_much(const ca_arena_t *arena)
{
    return arena->free_bytes / (CA_APART_SHARE - 1) < arena->reserved;
}

/* Whether a new segment is for this request alone. */
static inline bool ca_apart_grows(const ca_arena_t *arena, size_t bytes)
{
    return ca_round_up(bytes, CA_SEGMENT_UNIT) - bytes <= bytes / 8 && ca_apart_much(arena);
}

/* From now on blocks of up to `bytes` have segments of their own, for good. */
void ca_apart_small(ca_arena_t *arena, size_t bytes);

/* Upstream, or the limit, refused a growth. */
void ca_apart_refused(ca_arena_t *arena, size_t bytes);

#endif
