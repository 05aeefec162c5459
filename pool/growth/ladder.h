/* What an allocation tries after the ready blocks failed it, cheapest first; see ladder.c. */
#ifndef CA_POOL_GROWTH_LADDER_H
#define CA_POOL_GROWTH_LADDER_H

#include "pool/blocks/block.h"

#define CA_STUCK_SHARE 10u /* of oom_wait, where the last wait was in vain */
/* For the work of other contexts alone. */
#define CA_OTHERS_WAIT_NS ((uint64_t)1000 * 1000 * 1000)

/* Which rungs to climb: with several arenas all of them take one part before any takes the next. */
typedef enum {
    CA_RUNGS_PASSED = 1,   /* passed */
    CA_RUNGS_OPEN = 2,     /* open */
    CA_RUNGS_CACHES = 4,   /* caches */
    CA_RUNGS_GROW = 8,     /* caches to reclaim */
    CA_RUNGS_WAIT = 16,    /* caches, wait, pending */
    CA_RUNGS_OVERDUE = 32, /* caches, late */
    CA_RUNGS_SPARED = 64,  /* spared */
    CA_RUNGS_ALL = 127,
    CA_RUNGS_UNSPARED = 128, /* caches, unless the arena grows before it takes them */
    CA_RUNGS_POLICY = 256,   /* policy */
} ca_rungs_t;

/* Closes the open epochs and polls them, and waits for none. */
void ca_ladder_close(ca_arena_t *arena);

/* How long the pool waits, before an out-of-memory, for epochs that are not safe to block on. */
uint64_t ca_unsafe_wait_ns(const ca_arena_t *arena);

/* Lock held on entry and on return, dropped in between. `bytes` is rounded, and `asked` all
 * that will do where there is no more: see range.h; `stream` may be NULL; `rungs` are of
 * ca_rungs_t. Returns 0 with a live block, where `*grown` says whether it came out of a new
 * segment; -ENOMEM; or -EIO. */
int ca_ladder_climb(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, size_t asked,
                    unsigned rungs, ca_block_t **block, bool *grown);

#endif
