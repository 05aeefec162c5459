/* The arenas of a context's device memory: one, or as many as `arenas` says (pool/arena_set.h). The
 * context's entry owns them; bytes; results as in pool/arena.h. From any thread, with no lock held.
 * Code that is about a context's arena is about all of them:
 *
 *   for (unsigned i = 0; (arena = ca_arenas_at(context, i)); i++) */
#ifndef CA_SHIM_UPSTREAM_ARENAS_H
#define CA_SHIM_UPSTREAM_ARENAS_H

#include <stdbool.h>
#include "pool/arena_set.h"
#include "shim/cuda/contexts.h"

/* The first is context->arena; NULL behind the last one. */
ca_arena_t *ca_arenas_at(const ca_context_t *context, unsigned index);

/* By ca_arena_alloc_on and, with `ready_only`, ca_arena_alloc_ready_on, behind the thread cache. */
int ca_arenas_alloc(const ca_context_t *context, ca_stream_t *order, size_t bytes, bool ready_only,
                    ca_block_t **block, uint64_t *address, bool *reused);

/* Bytes of their segments, and in `*idle` those of segments without a live block. */
size_t ca_arenas_reserved(const ca_context_t *context, size_t *idle);

/* By ca_arena_trim_as, one after the other. Returns the bytes released. */
size_t ca_arenas_trim(const ca_context_t *context, size_t bytes, ca_trim_t how);

#endif
