/* Pin mode for the whole process: see ca_arena_pin in pool/arena.h. */
#ifndef CA_SHIM_UPSTREAM_PIN_MODE_H
#define CA_SHIM_UPSTREAM_PIN_MODE_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

/* Pins, or unpins, the arenas of all contexts, those included that are made later. Counted: it ends
 * with as many calls for off as for on; one more for off is ignored. Thread-safe; makes no driver
 * call. */
void ca_pin_mode_set(bool on);

/* For a context that was just published: it may have come after the walk over all contexts. */
void ca_pin_mode_apply(ca_context_t *context);

/* Its arenas are new, or as new: none is pinned. */
void ca_pin_mode_forget(ca_context_t *context);

void ca_pin_mode_reset_after_fork(void);

#endif
