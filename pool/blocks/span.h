/* The address ranges of all segments of the process, sorted: tells pointers that are ours from
 * those that are not, with no arena in hand. A range is removed before its memory goes back
 * upstream: another context may get the address at once. Thread-safe. */
#ifndef CA_POOL_BLOCKS_SPAN_H
#define CA_POOL_BLOCKS_SPAN_H

#include <stddef.h>
#include <stdint.h>
#include "pool/arena.h"

/* A segment of `arena`. Returns 0, or -ENOMEM when there is no host memory. */
int ca_span_add(uint64_t base, size_t bytes, ca_arena_t *arena);
/* Where a later segment of another arena lies by now, that one stays. */
void ca_span_remove(uint64_t base, size_t bytes, const ca_arena_t *arena);

/* The arena that has a segment within these `bytes`, the highest one, or NULL. */
ca_arena_t *ca_span_owner(uint64_t base, size_t bytes);

static inline ca_arena_t *ca_span_arena(uint64_t address)
{
    return ca_span_owner(address, 1);
}

/* An empty index with a lock of its own; the parent's stays mapped. */
void ca_span_reset_after_fork(void);

#endif
