/* Lane D, stream-ordered: cuMemAllocAsync and cuMemFreeAsync from the pool, and allocations from
 * pools of the program's own, which are tracked.
 *
 * On a stream that is being captured an allocation is a node of the graph, and no live allocation.
 * In a context that a program created it is the driver's: there it outlives the context.
 * Memory may be allocated in one way and freed in the other: cuMemFree makes it pending behind all
 * work, cuMemFreeAsync behind one stream's. */
#include <errno.h>
#include "config/counters.h"
#include "config/options.h"
#include "registry/registry.h"
#include "shim/backend_async.h"
#include "shim/capture.h"
#include "shim/debug_fill.h"
#include "shim/device_memory.h"
#include "shim/driver_table.h"
#include "shim/life.h"
#include "shim/mempools.h"
#include "shim/oom.h"
#include "shim/shared_memory.h"
#include "shim/room.h"
#include "shim/streams.h"
#include "shim/track.h"

static CUresult track(CUresult code, const CUdeviceptr *address, size_t bytes,
                      ca_context_t *context, CUstream stream)
{
    if (code != CUDA_SUCCESS || !*address)
        return code;
    /* What the driver serves in a created context outlives it. It must be that still: an entry is
     * used again when its context has gone. */
    if (context && context->created && context == ca_context_known())
        ca_track_process_alloc(CA_KIND_ASYNC, *address, bytes, context->device);
    else
        ca_track_driver_alloc(CA_KIND_ASYNC, *address, bytes, context, stream);
    return code;
}

/* On a stream that is not being captured: `given` by the program, `stream` for the pool. */
static CUresult alloc_live(__typeof__(cuMemAllocAsync) *real, CUdeviceptr *address, size_t bytes,
                           CUstream given, CUstream stream)
{
    ca_context_t *context;
    ca_stream_t *order;
    if (ca_options.async == CA_ASYNC_POOL &&
        ca_streams_find(stream, true, &context, &order) == CUDA_SUCCESS && context &&
        ca_mempool_served(context)) {
        int result = ca_device_alloc_on(context, order, stream, bytes, CA_DEVICE_ANY, address);
        if (result == 0)
            return CUDA_SUCCESS;
        if (result == -ENOMEM) {
            ca_count(out_of_memory);
            if (ca_device_over_limit(context, bytes))
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    ca_count(passed_through);
    context = ca_context_known();
    /* The memory is the stream's device's. */
    CUresult code = CA_WITH_ROOM(ca_room_make_everywhere(), real(address, bytes, given));
    return track(code, address, bytes, context, given);
}

static CUresult alloc_async(__typeof__(cuMemAllocAsync) *real,
                            __typeof__(cuStreamIsCapturing) *capturing, CUdeviceptr *address,
                            size_t bytes, CUstream given, CUstream stream)
{
    if (!address || !bytes || !ca_life_active() || ca_capture_includes(capturing, given))
        return real(address, bytes, given);
    ca_count(alloc_calls);
    return CA_WITH_OOM(CA_KIND_ASYNC, bytes, alloc_live(real, address, bytes, given, stream));
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

static CUresult alloc_from_pool(__typeof__(cuMemAllocFromPoolAsync) *real,
                                __typeof__(cuStreamIsCapturing) *capturing, CUdeviceptr *address,
                                size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (!ca_life_active() || ca_capture_includes(capturing, stream))
        return real(address, bytes, pool, stream);
    ca_count(alloc_calls);
    ca_context_t *context = ca_context_known();
    CUresult code =
        CA_WITH_OOM(CA_KIND_ASYNC, bytes,
                    CA_WITH_ROOM(ca_room_make_everywhere(), /* where the pool has its memory */
                                 real(address, bytes, pool, stream)));
    return track(code, address, bytes, context, stream);
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

/* Of a pooled block, on a stream that is not being captured. */
static CUresult free_pooled(const ca_record_t *record, CUstream stream)
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
                           CUstream given, CUstream stream)
{
    ca_record_t record;
    if (!address || !ca_life_active())
        return real(address, given);
    ca_count(free_calls);
    if (!ca_track_erase(address, &record))
        return ca_device_owns(address) || ca_backend_async_holds(address)
                   ? ca_track_wrong_free(address)
                   : ca_debug_explain_refusal(address, real(address, given));
    if (record.shared)
        return ca_capture_includes(capturing, given) ? CUDA_ERROR_INVALID_VALUE
                                                     : ca_shared_free_async(&record, real, given);
    CUresult code;
    if (!record.owner || ca_device_lost(&record))
        code = real(address, given);
    else if (ca_capture_includes(capturing, given)) /* only a graph's own memory is freed in it */
        code = CUDA_ERROR_INVALID_VALUE;
    else
        code = free_pooled(&record, stream);
    return code == CUDA_SUCCESS ? code : ca_track_refused(&record, CA_FREES_DEVICE, code);
}

CA_EXPORT CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    CA_REAL(cuMemFreeAsync);
    return free_async(real, ca_driver()->cuStreamIsCapturing, address, stream, stream);
}

CA_EXPORT CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    CA_REAL(cuMemFreeAsync_ptsz);
    return free_async(real, ca_driver()->cuStreamIsCapturing_ptsz, address, stream,
                      ca_stream_per_thread(stream));
}
