/* Lane D, cuMemGetAddressRange: the range of pooled device memory is its segment's, which is what
 * those need who export it or register it. That of pinned memory is the allocation's own: nobody
 * exports it, and some take the range for its size (numba). So is that of memory in an expandable
 * segment: the driver would tell the page there, one of several that a block lies in.
 *
 * UCX's hooks (libucm) ask for another reason: the program frees, and what they are told counts as
 * freed. UCX would take all live memory behind in the segment for the host's, and have the CPU copy
 * it. They are told the allocation alone. */
#include "shim/driver/address_range.h"
#include <stdatomic.h>
#include "pool/range/range.h"
#include "shim/hooks/dlsym.h"
#include "shim/cuda/driver_table.h"

static bool is_ucx(void *caller)
{
    static void *_Atomic other; /* the last that was none: to find a caller's library takes time */
    if (atomic_load_explicit(&other, memory_order_relaxed) == caller)
        return false;
    bool is = ca_dlsym_is_ucx(caller);
    if (!is)
        atomic_store_explicit(&other, caller, memory_order_relaxed);
    return is;
}

/* The live allocation that an address of ours is in. */
static bool find_live(CUdeviceptr address, ca_allocation_t *record)
{
    uint64_t block = ca_pool_owns(address) ? ca_pool_block_at(address) : 0;
    return block && ca_registry_find(block, record) && address - record->address < record->bytes;
}

bool ca_address_range_own(CUdeviceptr address, ca_allocation_t *record)
{
    return find_live(address, record) &&
           (record->kind == CA_KIND_PINNED || ca_range_holds(address));
}

CA_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                                   CUdeviceptr address)
{
    CA_REAL(cuMemGetAddressRange_v2);
    ca_allocation_t record;
    CUresult code = real(base, bytes, address);
    if (code != CUDA_SUCCESS || !ca_pool_owns(address))
        return code;
    bool ranged = ca_range_holds(address);
    if (!find_live(address, &record))
        return ranged ? CUDA_ERROR_NOT_FOUND : code; /* as of memory that was freed */
    if (!ranged && record.kind != CA_KIND_PINNED && !is_ucx(__builtin_return_address(0)))
        return code;
    if (base)
        *base = record.address;
    if (bytes)
        *bytes = record.bytes;
    return code;
}
