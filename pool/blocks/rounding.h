/* What a request occupies: its size class, its step within a power of two, or its granules. */
#ifndef CA_POOL_BLOCKS_ROUNDING_H
#define CA_POOL_BLOCKS_ROUNDING_H

#include "pool/arena.h"

/* Rounds `bytes` (1 to CA_BYTES_MOST) up: to the least of the size classes that holds it; where
 * there is none to `roundup` steps in each power of two; then, whatever that gave, to CA_GRANULE,
 * or CA_PAGE from CA_PAGE_FROM up. Reads only what never changes: needs no lock. */
size_t ca_round_request(const ca_arena_params_t *params, size_t bytes);

#endif
