/* Lane D, cuMemGetAddressRange: the range of pooled memory is its segment's, which is what those
 * need who export it or register it.
 *
 * UCX's hooks (libucm) ask for another reason: the program frees, and what they are told counts as
 * freed. UCX would take all live memory behind in the segment for the host's, and have the CPU copy
 * it. They are told the allocation alone. */
#include <stdatomic.h>
#include "pool/arena.h"
#include "registry/registry.h"
#include "shim/dlsym.h"
#include "shim/driver_table.h"

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

CA_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes,
                                                   CUdeviceptr address)
{
    CA_REAL(cuMemGetAddressRange_v2);
    ca_record_t record;
    CUresult code = real(base, bytes, address);
    if (code != CUDA_SUCCESS || !ca_pool_owns(address) || !is_ucx(__builtin_return_address(0)))
        return code;
    uint64_t block = ca_pool_block_at(address);
    if (!block || !ca_registry_find(block, &record))
        return code;
    if (base)
        *base = record.address;
    if (bytes)
        *bytes = record.bytes;
    return code;
}
