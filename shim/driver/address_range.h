/* Address ranges of the pool's allocations as cuMemGetAddressRange and the pointer attributes
 * report them. Addresses and bytes as in CUDA. From any thread, with no lock held. */
#ifndef CA_SHIM_DRIVER_ADDRESS_RANGE_H
#define CA_SHIM_DRIVER_ADDRESS_RANGE_H

#include <stdbool.h>
#include "registry/table/registry.h"
#include "shim/cuda/cuda_decls.h"

/* Fills `record` with a copy of the pool's live allocation that the address lies in, where its
 * range is its own and not its segment's: pinned memory, and memory in an expandable segment. False
 * for any other address. */
bool ca_address_range_own(CUdeviceptr address, ca_allocation_t *record);

#endif
