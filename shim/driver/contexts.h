/* The primary contexts, as the driver API's hooks saw them. Handles are the driver's and belong to
 * the program. From any thread, with no lock held. */
#ifndef CA_SHIM_DRIVER_CONTEXTS_H
#define CA_SHIM_DRIVER_CONTEXTS_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

/* The handle of a device's primary context; NULL until a call has returned it. */
CUcontext ca_primary_of(CUdevice device);
void ca_primary_note(CUdevice device, CUcontext handle);

/* Whether the primary context, whose entry is `entry` or NULL, is inactive now. For after a call
 * that may have released the last reference. */
bool ca_primary_inactive(CUdevice device, const ca_context_t *entry);

#endif
