/* Memory that is there, but in pieces. A segment goes back upstream when nothing in it is live, so
 * where sizes change, blocks that stay keep much of the device from larger requests. Mixed.h bounds
 * that for segments that are cut for smaller requests; where blocks of all sizes come and go in no
 * order it comes all the same, and no memory can be moved. So before it does:
 *
 *   much     Once the pool has a part of the device, a request that fills a segment of its own, but
 *            for an eighth of its size, gets one: that goes back with its block.
 *
 *   apart    Once upstream refused to let the pool grow though as much as was asked lies between
 *            blocks that live, all are kept apart for good, in a later life of the arena too: what
 *            fills a segment gets one of about its size, and all else small ones.
 *
 * Each costs calls upstream, where the device is full anyway: out of memory is dearer. */
#ifndef CA_POOL_APART_H
#define CA_POOL_APART_H

#include <stdbool.h>
#include <stddef.h>
#include "pool/block.h"
#include "pool/state.h"

#define CA_APART_SHARE 8u /* of the device, or the limit */

/* Whether a new segment is for this request alone. `reserved`: by all heaps of its set. */
static inline bool ca_apart_grows(const ca_arena_t *arena, size_t reserved, size_t bytes)
{
    return ca_round_up(bytes, CA_SEGMENT_UNIT) - bytes <= bytes / 8 &&
           arena->room / (CA_APART_SHARE - 1) < reserved;
}

/* Upstream, or the limit, refused a growth. */
void ca_apart_refused(ca_arena_t *arena, size_t bytes);

#endif
