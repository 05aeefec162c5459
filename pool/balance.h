/* Memory that changes arenas: a segment with all that is in it, live blocks too, goes from one
 * arena of a set (pool/arena_set.h) to another. So an arena that comes into use late need not live
 * on what the first one leaves.
 *
 * A thread that has read which arena a block is of may come too late for it:
 *
 *   under a lock    it takes that arena's lock, and looks again: ca_block_lock, ca_span_lock
 *   inside a cache  it looks again, and leaves the block to the lock: ca_cache_enter_with. All
 *                   caches in front of the arena that gives are locked out while a block leaves
 *                   it
 *
 * What is pending waits for the other arena's next fence instead of its own, which is earlier. */
#ifndef CA_POOL_BALANCE_H
#define CA_POOL_BALANCE_H

#include "pool/arena.h"

#define CA_BALANCE_BLOCKS 4096 /* moved by one call, and those of one segment more at most */

/* Whether the arena gives segments away at all, to one that comes into use late. Under its lock. */
bool ca_balance_gives(const ca_arena_t *arena);

/* Moves segments of `from` to `to`, the newest first, `bytes` at most. What other processes may see
 * stays, and that in which too much is pending; in pin mode, and where there are streams, all does.
 * As both arenas are locked meanwhile, it stops after CA_BALANCE_BLOCKS: a caller that wants more
 * asks again. Returns the bytes; 0 too where another thread holds the lock of `to`. Takes both
 * locks; the caller holds none. */
size_t ca_balance(ca_arena_t *from, ca_arena_t *to, size_t bytes);

#endif
