#include "shim/device_memory.h"
#include <errno.h>
#include "config/counters.h"
#include "config/options.h"
#include "shim/attributes.h"
#include "shim/track.h"
#include "shim/upstream.h"

int ca_device_alloc(ca_context_t *context, size_t bytes, ca_device_effort_t effort,
                    CUdeviceptr *address)
{
    ca_block_t *block;
    uint64_t pointer;
    bool reused;
    if (!context->arena || atomic_load_explicit(&context->broken, memory_order_relaxed))
        return -EIO;
    int result = effort == CA_DEVICE_HIT_ONLY
                     ? ca_arena_alloc_ready(context->arena, bytes, &block, &pointer, &reused)
                     : ca_arena_alloc(context->arena, bytes, &block, &pointer, &reused);
    if (result != 0)
        return result;
    if (ca_options.zero && reused && ca_upstream_zero(context, pointer, bytes) != CUDA_SUCCESS) {
        ca_arena_free(block);
        return -EIO;
    }
    if (ca_track_alloc(CA_KIND_DEVICE, pointer, bytes, context, NULL, block) != 0) {
        /* Without a record a free could not find the block. */
        ca_arena_free(block);
        return -EIO;
    }
    *address = pointer;
    return 0;
}

CUresult ca_device_free(const ca_record_t *record)
{
    ca_arena_t *arena = ca_block_arena(record->owner);
    ca_context_t *context = arena ? ca_arena_context(arena) : NULL;
    if (!context)
        return CUDA_SUCCESS; /* its context went while we came here, and took the memory along */
    CUresult broken = (CUresult)atomic_load_explicit(&context->broken, memory_order_relaxed);
    if (broken != CUDA_SUCCESS)
        return broken;
    ca_attributes_clear(record->address);
    ca_arena_free(record->owner);
    return CUDA_SUCCESS;
}

CUresult ca_device_free_plain(const ca_record_t *record)
{
    CUresult code = ca_context_check();
    if (code != CUDA_SUCCESS)
        return code;
    ca_arena_t *arena = ca_options.free_sync ? ca_block_arena(record->owner) : NULL;
    ca_context_t *context = arena ? ca_arena_context(arena) : NULL;
    if (context)
        ca_upstream_cuda.synchronize(context);
    return ca_device_free(record);
}
