/* Lane D, tracked: memory that the driver serves and the registry knows. Kinds that take device
 * memory are tried once more after our caches gave theirs back. */
#include "config/counters.h"
#include "registry/registry.h"
#include "shim/capture.h"
#include "shim/device_memory.h"
#include "shim/driver_table.h"
#include "shim/life.h"
#include "shim/track.h"
#include "shim/upstream.h"

static bool make_room(const ca_context_t *context)
{
    return context && ca_upstream_trim_device(context->device, NULL, SIZE_MAX) > 0;
}

/* The call, and once more when it ran out of the memory that we hold. */
#define WITH_ROOM(context, call)                                                                   \
    ({                                                                                             \
        CUresult code_ = (call);                                                                   \
        if (code_ == CUDA_ERROR_OUT_OF_MEMORY && make_room(context))                               \
            code_ = (call);                                                                        \
        code_;                                                                                     \
    })

CA_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width,
                                              size_t height, unsigned element)
{
    CA_REAL(cuMemAllocPitch_v2);
    if (!ca_life_active())
        return real(address, pitch, width, height, element);
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_known();
    CUresult code = WITH_ROOM(context, real(address, pitch, width, height, element));
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(CA_KIND_PITCHED, *address, *pitch * height, context, NULL);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    CA_REAL(cuMemAllocManaged);
    if (!ca_life_active())
        return real(address, bytes, flags);
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_known();
    CUresult code = WITH_ROOM(context, real(address, bytes, flags));
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(CA_KIND_MANAGED, *address, bytes, context, NULL);
    return code;
}

static CUresult track_pinned(CUresult code, void **address, size_t bytes)
{
    ca_count(alloc_calls);
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(CA_KIND_PINNED, (uint64_t)(uintptr_t)*address, bytes, NULL, NULL);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void **address, size_t bytes)
{
    CA_REAL(cuMemAllocHost_v2);
    CUresult code = real(address, bytes);
    return ca_life_active() ? track_pinned(code, address, bytes) : code;
}

CA_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    CA_REAL(cuMemHostAlloc);
    CUresult code = real(address, bytes, flags);
    return ca_life_active() ? track_pinned(code, address, bytes) : code;
}

CA_EXPORT CUresult CUDAAPI cuMemFreeHost(void *address)
{
    CA_REAL(cuMemFreeHost);
    ca_record_t record;
    if (!address || !ca_life_active())
        return real(address);
    ca_count(free_calls);
    bool known = ca_registry_erase((uint64_t)(uintptr_t)address, &record);
    /* Device memory of ours is unknown to the driver at this address, or worse, a segment's base:
     * it says the same of every pointer that is not pinned memory. */
    CUresult code = known && record.owner ? CUDA_ERROR_INVALID_VALUE : real(address);
    if (known && code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}

/* Not for an allocation on a stream that is being captured: that is a node of the graph. */
static CUresult track_async(CUresult code, CUdeviceptr *address, size_t bytes,
                            ca_context_t *context, CUstream stream)
{
    ca_count(alloc_calls);
    if (code == CUDA_SUCCESS && *address)
        ca_track_driver_alloc(CA_KIND_ASYNC, *address, bytes, context, stream);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    CA_REAL(cuMemAllocAsync);
    if (!ca_life_active() || ca_capture_includes(ca_driver()->cuStreamIsCapturing, stream))
        return real(address, bytes, stream);
    ca_context_t *context = ca_context_known();
    CUresult code = WITH_ROOM(context, real(address, bytes, stream));
    return track_async(code, address, bytes, context, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    CA_REAL(cuMemAllocAsync_ptsz);
    if (!ca_life_active() || ca_capture_includes(ca_driver()->cuStreamIsCapturing_ptsz, stream))
        return real(address, bytes, stream);
    ca_context_t *context = ca_context_known();
    CUresult code = WITH_ROOM(context, real(address, bytes, stream));
    return track_async(code, address, bytes, context, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes,
                                                   CUmemoryPool pool, CUstream stream)
{
    CA_REAL(cuMemAllocFromPoolAsync);
    if (!ca_life_active() || ca_capture_includes(ca_driver()->cuStreamIsCapturing, stream))
        return real(address, bytes, pool, stream);
    ca_context_t *context = ca_context_known();
    CUresult code = WITH_ROOM(context, real(address, bytes, pool, stream));
    return track_async(code, address, bytes, context, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes,
                                                        CUmemoryPool pool, CUstream stream)
{
    CA_REAL(cuMemAllocFromPoolAsync_ptsz);
    if (!ca_life_active() || ca_capture_includes(ca_driver()->cuStreamIsCapturing_ptsz, stream))
        return real(address, bytes, pool, stream);
    ca_context_t *context = ca_context_known();
    CUresult code = WITH_ROOM(context, real(address, bytes, pool, stream));
    return track_async(code, address, bytes, context, stream);
}

/* cuMemFreeAsync may be given memory of cuMemAlloc. Ours then becomes pending as with a plain
 * free, which covers the stream's work and more. */
static CUresult free_async(__typeof__(cuMemFreeAsync) *real,
                           __typeof__(cuStreamIsCapturing) *capturing, CUdeviceptr address,
                           CUstream stream)
{
    ca_record_t record;
    if (!address || !ca_life_active())
        return real(address, stream);
    ca_count(free_calls);
    if (!ca_registry_erase(address, &record))
        return ca_pool_owns(address) ? ca_track_wrong_free(address) : real(address, stream);
    CUresult code;
    if (!record.owner)
        code = real(address, stream);
    else if (ca_capture_includes(capturing,
                                 stream)) /* only a graph's own memory may be freed in it */
        code = CUDA_ERROR_INVALID_VALUE;
    else
        code = ca_device_free(&record);
    if (code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CA_REAL(cuMemFreeAsync);
    return free_async(real, ca_driver()->cuStreamIsCapturing, address, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    CA_REAL(cuMemFreeAsync_ptsz);
    return free_async(real, ca_driver()->cuStreamIsCapturing_ptsz, address, stream);
}
