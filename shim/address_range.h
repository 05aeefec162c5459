/* Address ranges of the pool's allocations: see address_range.c. */
#ifndef CA_SHIM_ADDRESS_RANGE_H
#define CA_SHIM_ADDRESS_RANGE_H

#include <stdbool.h>
#include "shim/cuda_decls.h"

/* The range of the pinned allocation of the pool's that the address is in; false: of none. */
bool ca_address_range_of_pinned(CUdeviceptr address, CUdeviceptr *base, size_t *bytes);

#endif
