/* What cutting may strand. A segment goes back upstream when nothing in it is live, so a block that
 * is cut from one which was obtained for a larger request keeps the rest of it. A program that
 * takes a large buffer, frees it and keeps a smaller one, again and again, would come to hold twice
 * what it has; and no memory can be moved once the device is full. So it counts when a block is
 * cut:
 *
 *   - A segment is mixed from the first block on that is smaller than what it was obtained for,
 *     until nothing in it is live. What was not live in it whenever such a block was cut, at least,
 *     is stranded there: where small blocks fill it, that comes to nothing.
 *   - All that is stranded is at most one part in CA_MIXED_SHARE of the device (or of `limit`), and
 *     CA_SEGMENT_FIRST at least.
 *   - A request of more than one part in CA_MIXED_LARGE of that gets a segment of about its size:
 *     so few of them fit the device that a single one less is percents.
 *   - A pool that grew for this, and grows for it again though no more is live than then, serves a
 *     program that comes round: it may strand twice as much, whatever the sizes, until more is
 * live.
 *   - One that is CA_MIXED_TRIFLE times smaller than what an idle segment was obtained for goes
 * into one that is in use, or into a smaller one, where it fits: the end of a large segment is
 * often the tightest block for it, and would keep that segment from serving a little more, or from
 *     going back.
 *
 * A request that may not be cut from anything grows the pool, and what is idle goes back for it
 * where the peak would rise. Where upstream has nothing left, it is cut from whatever fits. */
#ifndef CA_POOL_MIXED_H
#define CA_POOL_MIXED_H

#include "pool/block.h"

#define CA_MIXED_SHARE 64u
#define CA_MIXED_LARGE 2u
#define CA_MIXED_TRIFLE 64u

/* Whether a block of `bytes` may be cut from the segment. */
bool ca_mixed_allows(const ca_arena_t *arena, const ca_segment_t *segment, size_t bytes);

/* Whether it would take into use an idle segment that was obtained for much more. */
static inline bool ca_mixed_wakes(const ca_segment_t *segment, size_t bytes)
{
    return !segment->live && segment->asked / CA_MIXED_TRIFLE > bytes &&
           segment->asked > CA_SEGMENT_UNIT + bytes;
}

/* A block of it becomes live, or was. */
void ca_mixed_live(ca_arena_t *arena, ca_segment_t *segment, size_t bytes);
void ca_mixed_unlive(ca_arena_t *arena, ca_segment_t *segment, size_t bytes);

/* Another arena gets it. */
void ca_mixed_move(ca_arena_t *from, ca_arena_t *to, const ca_segment_t *segment);

/* The pool is about to grow though there is a block that the request would fit in. */
void ca_mixed_grows(ca_arena_t *arena);

#endif
