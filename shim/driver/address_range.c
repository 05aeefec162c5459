/* The driver API's hooks: cuMemGetAddressRange. The range of pooled device memory is its segment's,
 * which is what a program needs that exports or registers it. The range of pinned memory is the
 * allocation's own: it is never exported, and some programs take the range for its size (numba). So
 * is the range of memory in an expandable segment: the driver would answer with the page, one of
 * several that a block lies in.
 *
 * UCX's hooks (libucm) ask for another reason: the program frees, and the range that they get
 * counts as freed. UCX would take all live memory behind it in the segment for the host's, and let
 * the CPU copy it. They get the allocation alone. */
#include <stdatomic.h>
#include "pool/range/range.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/attributes.h"

static bool is_ucx(void *caller)
{
    static void *_Atomic other; /* the last other caller: to find its library takes time */
    if (atomic_load_explicit(&other, memory_order_relaxed) == caller)
        return false;
    bool is = ca_dlsym_is_ucx(caller);
    if (!is)
        atomic_store_explicit(&other, caller, memory_order_relaxed);
    return is;
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
    if (!ca_address_find(address, &record))
        return ranged ? CUDA_ERROR_NOT_FOUND : code; /* as of memory that was freed */
    if (!ranged && record.kind != CA_KIND_PINNED && !is_ucx(__builtin_return_address(0)))
        return code;
    if (base)
        *base = record.address;
    if (bytes)
        *bytes = record.bytes;
    return code;
}
