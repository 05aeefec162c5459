/* What an allocation tries after the ready blocks failed it, cheapest first; see ladder.c. */
#ifndef CA_POOL_GROWTH_LADDER_H
#define CA_POOL_GROWTH_LADDER_H

#include "pool/blocks/block.h"

#define CA_STUCK_SHARE 10u /* of oom_wait, where the last wait was in vain */
/* For the work of other contexts alone. */
#define CA_OTHERS_WAIT_NS ((uint64_t)1000 * 1000 * 1000)

/* Closes the open epochs and polls them, and waits for none. */
void ca_ladder_close(ca_arena_t *arena);

/* How long the pool waits, before an out-of-memory, for epochs that are not safe to block on. */
uint64_t ca_unsafe_wait_ns(const ca_arena_t *arena);

/* Lock held on entry and on return, dropped in between. `bytes` is rounded, and `asked` all
 * that will do where there is no more: see range.h; `stream` may be NULL. Returns 0 with a live
 * block, where `*grown` says whether it came out of a new segment; -ENOMEM; or -EIO. */
int ca_ladder_climb(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, size_t asked,
                    ca_block_t **block, bool *grown);

/* The same by growth in proportion alone. */
int ca_ladder_grow(ca_arena_t *arena, size_t bytes, ca_block_t **block, bool *grown);

#endif
