/* What a request occupies: its size class, its step within a power of two, or its granules. */
#ifndef CA_POOL_BLOCKS_ROUNDING_H
#define CA_POOL_BLOCKS_ROUNDING_H

#include "pool/blocks/block.h"

/* The first part of it, where there are size classes or steps. */
size_t ca_round_coarsely(const ca_arena_params_t *params, size_t bytes);

/* Rounds `bytes` (1 to CA_BYTES_MOST) up: to the least of the size classes that holds it; where
 * there is none to `roundup` steps in each power of two; then, whatever that gave, to CA_GRANULE,
 * or CA_PAGE from CA_PAGE_FROM up. Reads only what never changes: needs no lock. */
static inline size_t ca_round_request(const ca_arena_params_t *params, size_t bytes)
{
    if (params->size_class_count || params->roundup)
        bytes = ca_round_coarsely(params, bytes);
    size_t granule = params->granule ? params->granule : CA_GRANULE;
    return ca_round_up(bytes, bytes >= CA_PAGE_FROM ? CA_PAGE : granule);
}

#endif
