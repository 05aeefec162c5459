/* Pin mode, and what becomes of its unmerged blocks; see ca_arena_pin. The arena's lock is held in
 * every function here, and none calls upstream. */
#ifndef CA_POOL_GROWTH_PIN_H
#define CA_POOL_GROWTH_PIN_H

#include "pool/blocks/block.h"

/* Merges whatever pin mode left unmerged. Only when it is off. */
void ca_pin_merge(ca_arena_t *arena);

/* When memory has run out, on or off: merges segment by segment until the request fits. NULL when
 * it does in none. */
ca_block_t *ca_pin_take(ca_arena_t *arena, size_t bytes);

#endif
