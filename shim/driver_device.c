/* Lane D, pooled: cuMemAlloc_v2 and cuMemFree_v2. */
#include <errno.h>
#include "config/counters.h"
#include "config/options.h"
#include "registry/registry.h"
#include "shim/device_memory.h"
#include "shim/driver_table.h"
#include "shim/life.h"
#include "shim/track.h"

/* Memory that the driver serves all the same: tracked. */
static CUresult alloc_from_driver(ca_context_t *context, CUdeviceptr *address, size_t bytes)
{
    CA_REAL(cuMemAlloc_v2);
    ca_count(passed_through);
    CUresult code = real(address, bytes);
    if (code == CUDA_SUCCESS && address)
        ca_track_alloc(CA_KIND_DEVICE, *address, bytes, context, NULL, NULL);
    return code;
}

/* `limit` is the user's wish: where it is what stands in the way, the driver is not asked. */
static bool over_limit(ca_context_t *context, size_t bytes)
{
    ca_arena_stats_t stats;
    if (ca_options.limit == SIZE_MAX || !context->arena)
        return false;
    ca_arena_stats(context->arena, &stats);
    return bytes > ca_options.limit || stats.reserved_bytes > ca_options.limit - bytes;
}

CA_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    CA_REAL(cuMemAlloc_v2);
    if (!address || !bytes || !ca_life_active())
        return real(address, bytes);
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_current(true, NULL);
    if (!context)
        return alloc_from_driver(NULL, address, bytes);
    int result = ca_device_alloc(context, bytes, CA_DEVICE_ANY, address);
    if (result == 0)
        return CUDA_SUCCESS;
    if (result == -ENOMEM) {
        ca_count(out_of_memory);
        if (over_limit(context, bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return alloc_from_driver(context, address, bytes);
}

CA_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
    CA_REAL(cuMemFree_v2);
    ca_record_t record;
    if (!address || !ca_life_active())
        return real(address);
    ca_count(free_calls);
    /* Erased before the memory goes back: another thread may get this address at once. */
    if (!ca_registry_erase(address, &record))
        return ca_pool_owns(address) ? ca_track_wrong_free(address) : real(address);
    CUresult code = record.owner ? ca_device_free(&record) : real(address);
    if (code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}
