/* Memory that is there, but in pieces. A segment goes back upstream when nothing in it is live, so
 * where sizes change, blocks that stay keep much of the device from larger requests. Mixed.h bounds
 * that for segments that are cut for smaller requests; where blocks of all sizes come and go in no
 * order it comes all the same, and no memory can be moved. So before it does:
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
#ifndef CA_POOL_BLOCKS_APART_H
#define CA_POOL_BLOCKS_APART_H

#include <stdbool.h>
#include <stddef.h>
#include "pool/blocks/block.h"
#include "pool/state.h"

#define CA_APART_SHARE 8u                /* of the device, or the limit */
#define CA_APART_SMALL ((size_t)1 << 20) /* bytes; larger ones have pages of their own */

/* Whether the pool has so much. `reserved`: by all heaps of its set. */
static inline bool ca_apart_much(const ca_arena_t *arena, size_t reserved)
{
    return arena->room / (CA_APART_SHARE - 1) < reserved;
}

/* Whether a new segment is for this request alone. */
static inline bool ca_apart_grows(const ca_arena_t *arena, size_t reserved, size_t bytes)
{
    return ca_round_up(bytes, CA_SEGMENT_UNIT) - bytes <= bytes / 8 &&
           ca_apart_much(arena, reserved);
}

/* From now on small blocks have segments of their own, for good. */
void ca_apart_small(ca_arena_t *arena);

/* Upstream, or the limit, refused a growth. */
void ca_apart_refused(ca_arena_t *arena, size_t bytes);

#endif
