/* The driver API's hooks: pinned host memory, served from the pool. What the pool cannot serve the
 * driver serves, and it is tracked. */
#include <errno.h>
#include "base/counters.h"
#include "registry/table/registry.h"
#include "shim/cuda/driver_table.h"
#include "shim/alloc/fast_path.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/oom.h"
#include "shim/alloc/pinned_memory.h"
#include "shim/upstream/reclaim.h"
#include "shim/alloc/shared_memory.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"
#include "shim/upstream/upstream_pinned.h"

/* Asks the pool. False: the driver serves the call. `known` is the current context's entry. */
static bool pooled(void **address, size_t bytes, unsigned flags, const ca_context_t **known)
{
    uint64_t pointer;
    if (address && !ca_track_runtime_stack &&
        ca_fast_alloc_pinned(CA_API_DRIVER, bytes, flags, &pointer)) {
        *address = (void *)(uintptr_t)pointer;
        return true;
    }
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_current(true, NULL);
    *known = context ? context : ca_context_known();
    if (!context || !address || !bytes || ca_upstream_capture_check() != CUDA_SUCCESS)
        return false;
    int result = ca_pinned_alloc(context, flags, bytes, CA_DEVICE_ANY, address);
    if (result == 0)
        ca_fast_remember(CA_API_DRIVER);
    else if (result == -ENOMEM)
        ca_count(out_of_memory);
    return result == 0;
}

/* Tracks what the driver served. */
static CUresult track(CUresult code, void **address, size_t bytes, const ca_context_t *known)
{
    ca_count(passed_through);
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(CA_KIND_PINNED, (uint64_t)(uintptr_t)*address, bytes, known, NULL);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void **address, size_t bytes)
{
    CA_REAL(cuMemAllocHost_v2);
    const ca_context_t *known;
    if (!ca_life_active())
        return real(address, bytes);
    return CA_WITH_OOM(CA_KIND_PINNED, bytes, CA_OOM_HERE,
                       CA_WITH_RECLAIM(ca_pinned_trim(SIZE_MAX) > 0,
                                       pooled(address, bytes, 0, &known)
                                           ? CUDA_SUCCESS
                                           : track(real(address, bytes), address, bytes, known)));
}

CA_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    CA_REAL(cuMemHostAlloc);
    const ca_context_t *known;
    if (!ca_life_active())
        return real(address, bytes, flags);
    return CA_WITH_OOM(
        CA_KIND_PINNED, bytes, CA_OOM_HERE,
        CA_WITH_RECLAIM(ca_pinned_trim(SIZE_MAX) > 0,
                        pooled(address, bytes, flags, &known)
                            ? CUDA_SUCCESS
                            : track(real(address, bytes, flags), address, bytes, known)));
}

static CUresult free_pooled(const ca_allocation_t *record)
{
    CUresult code = ca_context_check();
    return code != CUDA_SUCCESS ? code : ca_pinned_free_plain(record);
}

CA_EXPORT CUresult CUDAAPI cuMemFreeHost(void *address)
{
    CA_REAL(cuMemFreeHost);
    uint64_t pointer = (uint64_t)(uintptr_t)address;
    ca_allocation_t record;
    if (!address || !ca_life_active())
        return real(address);
    if (ca_fast_free_pinned(CA_API_DRIVER, &pointer))
        return CUDA_SUCCESS;
    ca_count(free_calls);
    CUresult code = ca_upstream_capture_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (!ca_track_erase(pointer, &record))
        return CA_FORWARD_FREE(pointer, ca_pool_owns(pointer), ca_track_invalid_free(pointer),
                               ca_debug_explain_refusal(pointer, real(address)));
    if (record.shared)
        return ca_shared_free_host(&record);
    code = record.owner ? free_pooled(&record) : real(address);
    if (code == CUDA_SUCCESS) {
        ca_fast_remember(CA_API_DRIVER);
        return code;
    }
    return ca_track_refused(&record, CA_FREES_HOST, code);
}
