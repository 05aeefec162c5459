/* The heaps of a context's device memory: one, or as many as `shards` says (pool/arena_set.h).
 * Whoever looks at a context's arena looks at all of them:
 *
 *   for (unsigned i = 0; (heap = ca_heap(context, i)); i++) */
#ifndef CA_SHIM_UPSTREAM_HEAPS_H
#define CA_SHIM_UPSTREAM_HEAPS_H

#include <stdbool.h>
#include "pool/arena_set.h"
#include "shim/cuda/contexts.h"

/* Makes them, for an entry that nobody else knows yet. `count` 0: one, and more as threads wait for
 * each other. None is made when there is no memory. */
void ca_heaps_make(ca_context_t *context, const ca_arena_params_t *params, unsigned count);
void ca_heaps_retire_begin(ca_context_t *context);
void ca_heaps_retire_end(ca_context_t *context);
void ca_heaps_retire(ca_context_t *context); /* both */

/* Of an entry that is to be another context's on the same device: they serve again, as of
 * ca_arena_revive. False leaves them retired. */
bool ca_heaps_revive(ca_context_t *context);

/* NULL from the last one on; the first is context->arena. */
ca_arena_t *ca_heap(const ca_context_t *context, unsigned index);

/* As of ca_arena_alloc_on and, with `ready_only`, of ca_arena_alloc_ready_on. */
int ca_heaps_alloc(const ca_context_t *context, ca_stream_t *order, size_t bytes, bool ready_only,
                   ca_block_t **block, uint64_t *address, bool *reused);

/* Bytes that they hold together, and those of them that are in segments without a live block. */
size_t ca_heaps_reserved(const ca_context_t *context, size_t *idle);

/* As of ca_arena_trim_as. */
size_t ca_heaps_trim(const ca_context_t *context, size_t bytes, ca_trim_t how);

#endif
