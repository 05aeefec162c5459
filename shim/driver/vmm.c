/* The driver API's hooks: physical memory of cuMemCreate, tracked by handles with reference counts,
 * and host memory that the program has pinned (registered).
 *
 * A handle belongs to the process, not to a context: cuMemCreate names a device and needs none, and
 * "the memory allocation will be freed when all outstanding mappings to the memory are unmapped and
 * when all outstanding references to the handle are also released" (cuda.h, cuMemRelease). So its
 * record has no context and stays when contexts are destroyed. It is erased with the last reference
 * that a wrapper has seen, or with the last mapping where that is later (shim/driver/mappings.h).
 */
#include "base/counters.h"
#include "base/mutation.h"
#include "pool/range/range.h"
#include "registry/table/registry.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/driver/mappings.h"
#include "shim/alloc/oom.h"
#include "shim/upstream/reclaim.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream_pinned.h"

static bool on_device(const CUmemAllocationProp *what)
{
    return what && what->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CA_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                       const CUmemAllocationProp *what, unsigned long long flags)
{
    CA_REAL(cuMemCreate);
    if (!ca_life_active())
        return real(handle, bytes, what, flags);
    ca_count(alloc_calls);
    CUresult code =
        CA_WITH_OOM(CA_KIND_VMM, bytes, on_device(what) ? what->location.id : CA_OOM_HERE,
                    CA_WITH_RECLAIM(on_device(what) && ca_reclaim_on(what->location.id),
                                    real(handle, bytes, what, flags)));
    if (code == CUDA_SUCCESS)
        ca_track_process_alloc(CA_KIND_VMM, ca_registry_key(CA_KIND_VMM, *handle), bytes,
                               on_device(what) ? (uint8_t)what->location.id : 0);
    return code;
}

/* One reference more, where the memory was created in this process. Imported memory is an
 * allocation of the other process. */
static CUresult retained(CUresult code, const CUmemGenericAllocationHandle *handle)
{
    if (code == CUDA_SUCCESS && ca_life_active())
        ca_registry_retain(ca_registry_key(CA_KIND_VMM, *handle));
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                       void *address)
{
    CA_REAL(cuMemRetainAllocationHandle);
    /* A page of the pool's is not the allocation, and memory that the program would map or pass on
     * is lent to other blocks, or released. The answer is that for memory of cuMemAlloc. */
    if (ca_life_active() && ca_range_holds((uint64_t)(uintptr_t)address) &&
        !CA_MUTATED(handle_exported))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult code = real(handle, address);
    if (code == CUDA_SUCCESS && ca_life_active())
        ca_mappings_retain((uint64_t)(uintptr_t)address, ca_registry_key(CA_KIND_VMM, *handle));
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                          void *from,
                                                          CUmemAllocationHandleType type)
{
    CA_REAL(cuMemImportFromShareableHandle);
    return retained(real(handle, from, type), handle);
}

/* The reference is dropped before the driver is called: another thread may get this handle at once.
 */
CA_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CA_REAL(cuMemRelease);
    ca_allocation_t record;
    if (!ca_life_active())
        return real(handle);
    ca_count(free_calls);
    uint64_t key = ca_registry_key(CA_KIND_VMM, handle);
    ca_peak_before_free();
    int64_t left = ca_registry_release(key, &record);
    uint64_t kept = left == 0 ? ca_mappings_keep(&record) : 0;
    CUresult code = real(handle);
    if (code != CUDA_SUCCESS && kept)
        ca_mappings_restore(kept, key);
    else if (code != CUDA_SUCCESS && left == 0)
        ca_track_restore(&record);
    else if (code != CUDA_SUCCESS && left > 0)
        ca_registry_retain(key);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CA_REAL(cuMemMap);
    CUresult code = real(address, bytes, offset, handle, flags);
    if (code == CUDA_SUCCESS && ca_life_active())
        ca_mappings_add(address, bytes, ca_registry_key(CA_KIND_VMM, handle));
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CA_REAL(cuMemUnmap);
    if (ca_life_active())
        ca_peak_before_free();
    CUresult code = real(address, bytes);
    if (code == CUDA_SUCCESS && ca_life_active())
        ca_mappings_remove(address, bytes);
    return code;
}

/* The pool may hold the memory that could be pinned. */
CA_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    CA_REAL(cuMemHostRegister_v2);
    if (!ca_life_active())
        return real(address, bytes, flags);
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_known();
    CUresult code = CA_WITH_RECLAIM(ca_pinned_trim(SIZE_MAX) > 0, real(address, bytes, flags));
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(CA_KIND_REGISTERED,
                              ca_registry_key(CA_KIND_REGISTERED, (uint64_t)(uintptr_t)address),
                              bytes, context, NULL);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *address)
{
    CA_REAL(cuMemHostUnregister);
    ca_allocation_t record;
    if (!address || !ca_life_active())
        return real(address);
    ca_count(free_calls);
    uint64_t key = ca_registry_key(CA_KIND_REGISTERED, (uint64_t)(uintptr_t)address);
    ca_peak_before_free();
    bool known = ca_registry_erase(key, &record);
    CUresult code = real(address);
    if (known && code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}
