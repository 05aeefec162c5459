/* Whether a program has customised the pool that its stream-ordered allocations come from: then
 * they go through to the driver. */
#ifndef CA_SHIM_MEMPOOLS_H
#define CA_SHIM_MEMPOOLS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the device's current memory pool is the driver's default one, and nothing was ever set on
 * that. Makes no driver call. */
bool ca_mempool_untouched(uint8_t device);

#endif
