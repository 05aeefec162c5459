/* The driver API's hooks: stream-ordered memory. cuMemAllocAsync and cuMemFreeAsync are served from
 * the pool; allocations from the program's own pools are tracked.
 *
 * On a stream that is being captured an allocation is a node of the graph, and no live allocation.
 * In a context that the program created the driver serves it: there it outlives the context. Memory
 * may be allocated in one way and freed in the other: cuMemFree makes it pending behind all work,
 * cuMemFreeAsync behind one stream's. */
#include <errno.h>
#include "base/counters.h"
#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/upstream/async_pool.h"
#include "shim/upstream/backend_async.h"
#include "shim/cuda/capture.h"
#include "shim/alloc/debug_fill.h"
#include "shim/alloc/device_memory.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/mempools.h"
#include "shim/alloc/oom.h"
#include "shim/alloc/shared_memory.h"
#include "shim/upstream/reclaim.h"
#include "shim/cuda/streams.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"

/* Tracks memory on the context of its stream, which was `before`, or on `device` where its pool is
 * of another device. */
static void track(CUdeviceptr address, size_t bytes, const ca_context_t *before, CUstream stream,
                  CUdevice device)
{
    ca_context_t *now = ca_streams_context(stream);
    if (now && device != CU_DEVICE_INVALID && device != now->device) {
        now = ca_context_on((unsigned)device);
        before = NULL;
        if (!now)
            ca_track_process_alloc(CA_KIND_ASYNC, address, bytes, (uint8_t)device);
    }
    /* It must still be that context: an entry is used again when its context was destroyed. */
    if (!now || (before && before != now))
        return;
    if (now->created) /* what the driver serves there outlives it */
        ca_track_process_alloc(CA_KIND_ASYNC, address, bytes, now->device);
    else
        ca_track_alloc(CA_KIND_ASYNC, address, bytes, now, stream, NULL);
}

static CUdevice device_of(const ca_context_t *context)
{
    return context ? context->device : CA_OOM_HERE;
}

/* On a stream that is not being captured: `handle` is the program's, `stream` the one for the pool.
 */
static CUresult alloc_live(__typeof__(cuMemAllocAsync) *real, CUdeviceptr *address, size_t bytes,
                           CUstream handle, CUstream stream)
{
    ca_context_t *context;
    ca_stream_t *order;
    if (ca_options.stream_ordered == CA_STREAM_ORDERED_POOL &&
        ca_upstream_capture_check() == CUDA_SUCCESS &&
        ca_streams_find(stream, true, &context, &order) == CUDA_SUCCESS && context &&
        ca_mempool_served(context)) {
        int result = ca_device_alloc_on(context, order, stream, bytes, CA_DEVICE_ANY, address);
        if (result == 0)
            return CUDA_SUCCESS;
        if (result == -ENOMEM) {
            ca_count(out_of_memory);
            if (ca_device_over_limit(context, bytes, address))
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    ca_count(passed_through);
    context = ca_streams_context(handle);
    ca_mempool_before_driver(context);
    CUresult code = CA_WITH_RECLAIM(ca_reclaim_everywhere(), real(address, bytes, handle));
    if (code == CUDA_SUCCESS && *address)
        track(*address, bytes, context, handle, CU_DEVICE_INVALID);
    return code;
}

static CUresult alloc_async(__typeof__(cuMemAllocAsync) *real,
                            __typeof__(cuStreamIsCapturing) *capturing, CUdeviceptr *address,
                            size_t bytes, CUstream handle, CUstream stream)
{
    if (!address || !bytes || !ca_life_active() || ca_capture_includes(capturing, handle))
        return real(address, bytes, handle);
    ca_count(alloc_calls);
    return CA_WITH_OOM(CA_KIND_ASYNC, bytes, device_of(ca_streams_context(handle)),
                       alloc_live(real, address, bytes, handle, stream));
}

CA_EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    CA_REAL(cuMemAllocAsync);
    return alloc_async(real, ca_driver()->cuStreamIsCapturing, address, bytes, stream, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    CA_REAL(cuMemAllocAsync_ptsz);
    return alloc_async(real, ca_driver()->cuStreamIsCapturing_ptsz, address, bytes, stream,
                       ca_stream_per_thread(stream));
}

/* Where the driver does not know the device of a pool that the program made, the stream's device
 * serves. */
static CUdevice device_of_pool(CUmemoryPool pool, const ca_context_t *context)
{
    CUdevice device = ca_mempool_device(pool);
    return device != CU_DEVICE_INVALID ? device : device_of(context);
}

static CUdevice device_at(CUdeviceptr address)
{
    int device = CU_DEVICE_INVALID;
    __typeof__(cuPointerGetAttribute) *ask = ca_driver()->cuPointerGetAttribute;
    if (ask)
        (void)ask(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    return device >= 0 ? device : CU_DEVICE_INVALID;
}

static CUresult alloc_from_pool(__typeof__(cuMemAllocFromPoolAsync) *real,
                                __typeof__(cuStreamIsCapturing) *capturing, CUdeviceptr *address,
                                size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!ca_life_active() || ca_capture_includes(capturing, stream))
        return real(address, bytes, pool, stream);
    ca_count(alloc_calls);
    ca_context_t *context = ca_streams_context(stream);
    ca_mempool_before_driver(context);
    CUresult code =
        CA_WITH_OOM(CA_KIND_ASYNC, bytes, device_of_pool(pool, context),
                    CA_WITH_RECLAIM(ca_reclaim_everywhere(), /* where the pool has its memory */
                                    real(address, bytes, pool, stream)));
    if (code == CUDA_SUCCESS && *address)
        track(*address, bytes, context, stream, device_at(*address));
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes,
                                                   CUmemoryPool pool, CUstream stream)
{
    CA_REAL(cuMemAllocFromPoolAsync);
    return alloc_from_pool(real, ca_driver()->cuStreamIsCapturing, address, bytes, pool, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes,
                                                        CUmemoryPool pool, CUstream stream)
{
    CA_REAL(cuMemAllocFromPoolAsync_ptsz);
    return alloc_from_pool(real, ca_driver()->cuStreamIsCapturing_ptsz, address, bytes, pool,
                           stream);
}

/* Frees a pooled block, on a stream that is not being captured. */
static CUresult free_pooled(const ca_allocation_t *record, CUstream stream)
{
    ca_context_t *context;
    ca_stream_t *order;
    CUresult code = ca_streams_find(stream, true, &context, &order);
    if (code != CUDA_SUCCESS)
        return code;
    ca_debug_freed(record, context, stream);
    return ca_device_free_on(record, order, context);
}

static CUresult free_async(__typeof__(cuMemFreeAsync) *real,
                           __typeof__(cuStreamIsCapturing) *capturing, CUdeviceptr address,
                           CUstream handle, CUstream stream)
{
    ca_allocation_t record;
    if (!address || !ca_life_active())
        return real(address, handle);
    ca_count(free_calls);
    bool captured = ca_capture_includes(capturing, handle);
    CUresult code = captured ? CUDA_SUCCESS : ca_upstream_capture_check();
    if (code != CUDA_SUCCESS)
        return code;
    if (!ca_track_erase(address, &record))
        return CA_FORWARD_FREE(address, ca_device_owns(address) || ca_backend_async_holds(address),
                               ca_track_invalid_free(address),
                               ca_debug_explain_refusal(address, real(address, handle)));
    if (record.shared)
        return captured ? CUDA_ERROR_INVALID_VALUE : ca_shared_free_async(&record, real, handle);
    if (!record.owner)
        code = real(address, handle);
    else if (ca_device_lost(&record))
        code = CA_FORWARD_FREE(address, ca_device_owns(address), CUDA_ERROR_INVALID_VALUE,
                               real(address, handle));
    else if (captured) /* a capture frees only memory of its graph */
        code = CUDA_ERROR_INVALID_VALUE;
    else
        code = free_pooled(&record, stream);
    return code == CUDA_SUCCESS ? code : ca_track_refused(&record, CA_FREES_DEVICE, code);
}

/* Counts the free after the call: counted before it, it could be found done before it has begun. */
static CUresult in_driver(CUresult code)
{
    ca_async_pool_note_free();
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CA_REAL(cuMemFreeAsync);
    return in_driver(free_async(real, ca_driver()->cuStreamIsCapturing, address, stream, stream));
}

CA_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    CA_REAL(cuMemFreeAsync_ptsz);
    return in_driver(free_async(real, ca_driver()->cuStreamIsCapturing_ptsz, address, stream,
                                ca_stream_per_thread(stream)));
}
