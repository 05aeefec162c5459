/* The driver API's hooks: managed memory, which the driver serves and the registry tracks. The call
 * is repeated after the pool has released its idle memory. */
#include "base/counters.h"
#include "registry/table/registry.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/oom.h"
#include "shim/upstream/reclaim.h"
#include "shim/alloc/track.h"

CA_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    CA_REAL(cuMemAllocManaged);
    if (!ca_life_active())
        return real(address, bytes, flags);
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_known();
    CUresult code = CA_WITH_OOM(
        CA_KIND_MANAGED, bytes, CA_OOM_HERE,
        CA_WITH_RECLAIM(ca_reclaim(context) || ca_reclaim_pinned(), real(address, bytes, flags)));
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(CA_KIND_MANAGED, *address, bytes, context, NULL);
    return code;
}
