/* Segments and the blocks that tile them: split, coalesce, hand out. Two neighbours are
 * never both ready, except by pin mode. The arena's lock is held in every function here, and none
 * calls upstream. */
#ifndef CA_POOL_BLOCKS_SEGMENT_H
#define CA_POOL_BLOCKS_SEGMENT_H

#include "pool/cache/cache.h"
#include "pool/state.h"

/* Registers memory obtained upstream as a segment with one ready block. NULL when there is no host
 * memory (or when the memory is too small to hold an aligned block). */
ca_segment_t *ca_segment_add(ca_arena_t *arena, uint64_t base, size_t bytes, ca_pool_t pool);

/* The same of addresses that count as nothing yet; the block has no state. */
ca_segment_t *ca_segment_place(ca_arena_t *arena, uint64_t base, size_t bytes, ca_pool_t pool);

/* Whether it has a single block, never split. */
static inline bool ca_segment_whole(const ca_segment_t *segment)
{
    return segment->pool == CA_POOL_OVERSIZE || segment->pool == CA_POOL_VIEW;
}

/* Out of the arena's list of segments. */
void ca_segment_unlink(ca_arena_t *arena, ca_segment_t *segment);

/* Where a rounded request is served from. */
ca_pool_t ca_pool_of(const ca_arena_t *arena, size_t bytes);

/* Forgets a segment that has no live block. Its memory is still to be freed upstream, and until
 * then counts as reserved. */
void ca_segment_detach(ca_arena_t *arena, ca_segment_t *segment);

/* Whether all of it is one ready block; of an exported one, ready or kept. */
bool ca_segment_idle(const ca_segment_t *segment);

/* The segment of the arena, the block of the segment that `address` lies in, or NULL. */
ca_segment_t *ca_segment_at(const ca_arena_t *arena, uint64_t address);
ca_block_t *ca_segment_block_at(const ca_segment_t *segment, uint64_t address);

/* Merges ready neighbours in a segment that was in pin mode. Returns whether there were any. */
bool ca_segment_merge(ca_arena_t *arena, ca_segment_t *segment);

/* Cuts a ready block to the size of a rounded request and makes it live. `compares`: see
 * ca_bins_find. NULL when nothing fits. */
ca_block_t *ca_block_take(ca_arena_t *arena, size_t bytes, unsigned compares);

/* The same where there is no other memory: it may strand as much as it will (mixed.h). */
ca_block_t *ca_block_take_any(ca_arena_t *arena, size_t bytes);

/* Whether there is a ready block that it would fit in. */
bool ca_block_withheld(const ca_arena_t *arena, size_t bytes);

/* The same from a pool that is not the request's own, but may be split. */
ca_block_t *ca_block_take_elsewhere(ca_arena_t *arena, size_t bytes);

/* The same from a given ready block. */
ca_block_t *ca_block_take_from(ca_arena_t *arena, ca_block_t *block, size_t bytes);

/* Makes a pending block, or the lowest `bytes` of it, live again, for a request that need not wait.
 * NULL when there is no host memory. */
ca_block_t *ca_block_take_pending(ca_arena_t *arena, ca_block_t *block, size_t bytes);

/* A live block is pending, in no epoch yet. */
void ca_block_unlive(ca_arena_t *arena, ca_block_t *block);

/* A block in no list becomes live. */
void ca_block_live(ca_arena_t *arena, ca_block_t *block);

/* Whether an oversize block may serve a request: at most 1/8 of it, or 2 MiB, stays unused. */
bool ca_block_close_enough(const ca_block_t *block, size_t bytes);

/* Makes a block ready that is in no list: merges it with its ready neighbours, if not pinned. */
void ca_block_ready(ca_arena_t *arena, ca_block_t *block);

/* A program that frees a large block soon wants one of just that size. So a large block that has
 * passed is merged only by the next request that none of them fits exactly, and until then is
 * pending, in the epoch arena->passed: what is cut and chosen for all other requests is the same as
 * if it were merged at once. Not in warm-up (warmup.h), where that could keep an exact block whole
 * at the cost of the one that fits best. */
static inline bool ca_block_stays_whole(const ca_arena_t *arena, const ca_block_t *block)
{
    return ca_block_size(block) > CA_CACHE_ALWAYS && !arena->warming_up && !arena->pins &&
           !block->exported && !ca_block_epoch(block)->fences->stream &&
           !ca_block_segment(block)->view;
}
/* Takes such a block, where it is of just that size; the caller takes it out of its epoch. */
bool ca_block_take_whole(ca_arena_t *arena, ca_block_t *block, size_t bytes);
void ca_blocks_ready(ca_arena_t *arena, ca_epoch_t *epoch); /* all that is pending in it */
static inline void ca_blocks_merge(ca_arena_t *arena)
{
    ca_blocks_ready(arena, arena->passed); /* NULL where it has been retired */
}

/* --- for ranges and views: blocks that are lent, or holes, are in no list --------------------- */

/* Cuts the lowest `bytes` off, which are then a block in the same state. NULL as above. */
ca_block_t *ca_block_cut(ca_arena_t *arena, ca_block_t *block, size_t bytes);

/* Takes in its upper neighbour. */
void ca_block_join(ca_arena_t *arena, ca_block_t *block);

/* Ready, and not merged with what is beside it; and in no list again. */
void ca_block_give(ca_arena_t *arena, ca_block_t *block);
void ca_block_unready(ca_arena_t *arena, ca_block_t *block);

#endif
