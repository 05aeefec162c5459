/* The primary contexts, as the hooks of api D saw them. */
#ifndef CA_SHIM_DRIVER_CONTEXTS_H
#define CA_SHIM_DRIVER_CONTEXTS_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

/* The handle of a device's primary context; NULL until somebody told it. */
CUcontext ca_primary_of(CUdevice device);
void ca_primary_note(CUdevice device, CUcontext handle);

/* Whether the primary context, whose entry is `entry` or NULL, is inactive now: for after a call
 * that may have given back the last reference. */
bool ca_primary_inactive(CUdevice device, const ca_context_t *entry);

#endif
