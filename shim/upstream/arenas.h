/* The arena of a context's device memory, which the context's entry owns. */
#ifndef CA_SHIM_UPSTREAM_ARENAS_H
#define CA_SHIM_UPSTREAM_ARENAS_H

#include <stddef.h>
#include "shim/cuda/contexts.h"

/* Bytes of its segments, and in `*idle` those of segments without a live block; 0 where the context
 * has no arena. */
size_t ca_context_reserved(const ca_context_t *context, size_t *idle);

#endif
