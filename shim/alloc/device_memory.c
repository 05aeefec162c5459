#include "shim/alloc/device_memory.h"
#include <errno.h>
#include "config/options.h"
#include "pool/cache/cache.h"
#include "pool/range/export.h"
#include "pool/blocks/span.h"
#include "shim/upstream/attributes.h"
#include "shim/alloc/debug_fill.h"
#include "shim/cuda/graph_memory.h"
#include "shim/upstream/mempools.h"
#include "shim/cuda/streams.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"

static int serve(ca_context_t *context, ca_kind_t kind, ca_stream_t *order, CUstream stream,
                 size_t bytes, ca_device_effort_t effort, CUdeviceptr *address)
{
    ca_block_t *block;
    uint64_t pointer;
    bool reused;
    if (!context->arena || atomic_load_explicit(&context->broken, memory_order_relaxed))
        return -EIO;
    ca_pool_note_request(bytes);
    int result = ca_cached_alloc(context->arena, order, ca_debug_padded(bytes),
                                 effort == CA_DEVICE_READY_ONLY, &block, &pointer, &reused);
    if (result != 0)
        return result;
    if (order && reused)
        ca_streams_reused(order);
    if (ca_debug_fill(context, pointer, bytes, reused, order ? &stream : NULL) != CUDA_SUCCESS) {
        ca_cached_free(block);
        return -EIO;
    }
    uintptr_t number = order ? ca_stream_number(order) : 0;
    CUstream numbered = (CUstream)((uintptr_t)stream | number << CA_STREAM_BITS);
    if (ca_track_alloc(kind, pointer, bytes, context, numbered, block) != 0) {
        /* Without a record a free could not find the block. */
        ca_cached_free(block);
        return -EIO;
    }
    ca_graph_memory_acquired(pointer, block, atomic_load(&context->number));
    *address = pointer;
    return 0;
}

int ca_device_alloc(ca_context_t *context, size_t bytes, ca_device_effort_t effort,
                    CUdeviceptr *address)
{
    return serve(context, CA_KIND_DEVICE, NULL, NULL, bytes, effort, address);
}

int ca_device_alloc_kind(ca_context_t *context, ca_kind_t kind, size_t bytes,
                         ca_device_effort_t effort, CUdeviceptr *address)
{
    return serve(context, kind, NULL, NULL, bytes, effort, address);
}

int ca_device_alloc_on(ca_context_t *context, ca_stream_t *order, CUstream stream, size_t bytes,
                       ca_device_effort_t effort, CUdeviceptr *address)
{
    return serve(context, CA_KIND_ASYNC, order, stream, bytes, effort, address);
}

/* Of a block that is not lost. `user`: NULL, or the context whose work it is freed behind. */
static CUresult give(const ca_allocation_t *record, bool waits, ca_stream_t *order,
                     const ca_context_t *user)
{
    if (record->kind == CA_KIND_PINNED)
        return CUDA_ERROR_INVALID_VALUE; /* what the driver says of pinned memory */
    ca_arena_t *arena = ca_block_arena(record->owner);
    ca_context_t *context = arena ? ca_arena_context(arena) : NULL;
    if (!context || !ca_block_is_at(record->owner, record->address))
        return CUDA_SUCCESS; /* its context went while we came here, and took the memory along */
    CUresult broken = (CUresult)atomic_load_explicit(&context->broken, memory_order_relaxed);
    if (broken != CUDA_SUCCESS)
        return broken;
    ca_attributes_clear(record->address);
    ca_pool_note_free(record->bytes);
    if (ca_graph_memory_keep(record))
        return CUDA_SUCCESS;
    if (order)
        ca_cached_free_on(record->owner, order);
    else if (user && user != context)
        ca_arena_free_elsewhere(record->owner);
    else if (waits)
        ca_cached_free(record->owner);
    else
        ca_cached_free_async(record->owner, user ? NULL : ca_streams_of(record, context),
                             ca_registry_stream_number(record));
    if (record->kind == CA_KIND_ASYNC)
        ca_mempool_freed(context);
    return CUDA_SUCCESS;
}

CUresult ca_device_free_on(const ca_allocation_t *record, ca_stream_t *order,
                           const ca_context_t *user)
{
    return ca_device_lost(record) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                  : give(record, false, order, user);
}

CUresult ca_device_free(const ca_allocation_t *record)
{
    if (ca_device_lost(record))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    ca_debug_freed(record, NULL, NULL);
    /* "will not perform any implicit synchronization when the pointer was allocated with either
     * cudaMallocAsync or cudaMallocFromPoolAsync" (cudaFree); "Callers must ensure that all
     * accesses to these pointer have completed before invoking cuMemFree" (cuda.h). So nothing that
     * the program did with it is still at work. What was there before may be, where the memory was
     * taken in the order of the stream that asked for it, and was never used since: it goes back to
     * that order. */
    return give(record, record->kind != CA_KIND_ASYNC, NULL, NULL);
}

CUresult ca_device_free_behind_all(const ca_allocation_t *record)
{
    return ca_device_lost(record) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                  : give(record, true, NULL, NULL);
}

CUresult ca_device_free_plain(const ca_allocation_t *record)
{
    bool waits = ca_options.free_sync && record->kind != CA_KIND_ASYNC;
    ca_arena_t *arena = waits ? ca_block_arena(record->owner) : NULL;
    ca_context_t *context = arena ? ca_arena_context(arena) : NULL;
    if (context)
        ca_upstream_cuda.synchronize(context, false);
    return ca_device_free(record);
}

bool ca_device_owns(CUdeviceptr address)
{
    ca_arena_t *arena = ca_span_arena(address);

    return arena && !ca_context_lost_address(ca_arena_context(arena), address);
}

bool ca_device_lost(const ca_allocation_t *record)
{
    ca_arena_t *arena = record->owner ? ca_block_arena(record->owner) : NULL;
    const ca_context_t *context =
        arena ? ca_arena_context(arena) : ca_context_numbered(record->context);

    /* A later segment at the same place is not the program's to free either. */
    return record->owner && ca_context_lost_address(context, record->address) &&
           !ca_device_owns(record->address);
}
