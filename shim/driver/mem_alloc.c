/* The driver API's hooks: device memory. cuMemAlloc_v2 and cuMemFree_v2 are served from the pool,
 * and cuMemGetInfo_v2 counts the pool's idle memory as free. */
#include <errno.h>
#include "base/counters.h"
#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/upstream/backend_async.h"
#include "shim/alloc/device_memory.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/arenas.h"
#include "shim/alloc/fast_path.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/oom.h"
#include "shim/upstream/reclaim.h"
#include "shim/alloc/shared_memory.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"

/* Memory of backend:async. Without a record a free could not tell where it came from. */
static bool alloc_from_async(ca_context_t *context, CUdeviceptr *address, size_t bytes)
{
    CUdeviceptr pointer;
    CUstream stream;
    if (!ca_backend_async_alloc(context, &pointer, bytes, &stream))
        return false;
    if (ca_track_alloc(CA_KIND_DEVICE, pointer, bytes, context, stream, NULL) != 0) {
        ca_backend_async_untracked(context, pointer);
        return false;
    }
    *address = pointer;
    return true;
}

/* Memory that the driver serves after all is tracked. `context` is NULL where there is none, or it
 * is not in service. */
static CUresult alloc_from_driver(ca_context_t *context, CUdeviceptr *address, size_t bytes)
{
    CA_REAL(cuMemAlloc_v2);
    const ca_context_t *before = context ? context : ca_context_known();
    if (alloc_from_async(context, address, bytes))
        return CUDA_SUCCESS;
    ca_count(passed_through);
    /* The retry ladder has tried this context's memory and idle memory. What other contexts freed
     * and is in flight remains: the program without the shim would have it back. */
    CUresult code = CA_WITH_RECLAIM(ca_reclaim(context), real(address, bytes));
    if (code == CUDA_SUCCESS && address)
        ca_track_driver_alloc(CA_KIND_DEVICE, *address, bytes, before, NULL);
    return code;
}

bool ca_device_over_limit(ca_context_t *context, size_t bytes, CUdeviceptr *address)
{
    size_t idle;
    if (!context->arena || context->limit == SIZE_MAX)
        return false;
    if (bytes <= context->limit && ca_context_reserved(context, &idle) <= context->limit - bytes)
        return false;
    *address = 0;
    return true;
}

static CUresult alloc(CUdeviceptr *address, size_t bytes)
{
    ca_context_t *context = ca_context_current(true, NULL);
    if (!context || ca_upstream_capture_check() != CUDA_SUCCESS)
        return alloc_from_driver(context, address, bytes);
    int result = ca_device_alloc(context, bytes, CA_DEVICE_ANY, address);
    if (result == 0) {
        ca_fast_remember(CA_API_DRIVER);
        return CUDA_SUCCESS;
    }
    if (result == -ENOMEM) {
        ca_count(out_of_memory);
        if (ca_device_over_limit(context, bytes, address))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return alloc_from_driver(context, address, bytes);
}

CA_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    CA_REAL(cuMemAlloc_v2);
    if (!address || !bytes || !ca_life_active())
        return real(address, bytes);
    uint64_t pointer;
    if (!ca_track_runtime_stack && (ca_fast_alloc(CA_API_DRIVER, bytes, &pointer) ||
                                    ca_fast_alloc_large(CA_API_DRIVER, bytes, &pointer) == 0)) {
        *address = pointer;
        return CUDA_SUCCESS;
    }
    ca_count(alloc_calls);
    return CA_WITH_OOM(CA_KIND_DEVICE, bytes, CA_OOM_HERE, alloc(address, bytes));
}

/* Bytes that the arenas of a device could release for one allocation: segments without a live
 * block. */
static size_t idle_on(uint8_t device)
{
    size_t idle = 0;
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c)) {
        size_t own;
        if (c->device != device || atomic_load(&c->state) != CA_CONTEXT_SERVING)
            continue;
        idle += ca_backend_async_idle(c);
        ca_context_reserved(c, &own);
        idle += own;
    }
    return idle;
}

/* Programs size their buffers by this call, so memory that is only cached counts as free. */
CA_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CA_REAL(cuMemGetInfo_v2);
    CUresult code = real(free, total);
    if (code != CUDA_SUCCESS || !free || !total || !ca_life_active())
        return code;
    ca_context_t *context = ca_context_current(ca_options.limit.bytes != SIZE_MAX, NULL);
    if (!context)
        return code;
    size_t idle = idle_on(context->device);
    *free = *free < *total - idle ? *free + idle : *total;
    if (context->limit != SIZE_MAX && context->arena) {
        size_t own, kept = ca_context_reserved(context, &own);
        kept -= own;
        size_t left = context->limit > kept ? context->limit - kept : 0;
        if (*free > left)
            *free = left;
    }
    return code;
}

static CUresult free_pooled(const ca_allocation_t *record)
{
    CUresult code = ca_context_check();
    return code != CUDA_SUCCESS ? code : ca_device_free_plain(record);
}

CA_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
    CA_REAL(cuMemFree_v2);
    ca_allocation_t record;
    if (!address || !ca_life_active())
        return real(address);
    uint64_t pointer = address;
    if (ca_fast_free(CA_API_DRIVER, &pointer))
        return CUDA_SUCCESS;
    ca_count(free_calls);
    CUresult code = ca_upstream_capture_check();
    if (code != CUDA_SUCCESS)
        return code;
    /* The record is erased before the memory goes back: another thread may get this address at
     * once. */
    if (!ca_track_erase(address, &record))
        return CA_FORWARD_FREE(address, ca_device_owns(address) || ca_backend_async_holds(address),
                               ca_track_invalid_free(address),
                               ca_debug_explain_refusal(address, real(address)));
    if (record.shared)
        return ca_shared_free(&record);
    bool lost = ca_device_lost(&record);
    code = record.owner && !lost            ? free_pooled(&record)
           : ca_backend_async_gave(&record) ? ca_backend_async_free(&record)
           : lost ? CA_FORWARD_FREE(address, ca_device_owns(address), CUDA_ERROR_INVALID_VALUE,
                                    real(address))
                  : real(address);
    if (code == CUDA_SUCCESS) {
        ca_fast_remember(CA_API_DRIVER);
        return code;
    }
    return ca_track_refused(&record, CA_FREES_DEVICE, code);
}
