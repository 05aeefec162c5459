/* Address ranges of the pool's allocations: see address_range.c. */
#ifndef CA_SHIM_DRIVER_ADDRESS_RANGE_H
#define CA_SHIM_DRIVER_ADDRESS_RANGE_H

#include <stdbool.h>
#include "registry/table/registry.h"
#include "shim/cuda/cuda_decls.h"

/* The live allocation of the pool's that the address is in, where its range is its own and not its
 * segment's: of pinned memory, and of memory in an expandable segment. False: of none. */
bool ca_address_range_own(CUdeviceptr address, ca_allocation_t *record);

#endif
