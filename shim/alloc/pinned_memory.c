#include "shim/alloc/pinned_memory.h"
#include <errno.h>
#include "config/options.h"
#include "pool/cache/cache.h"
#include "shim/upstream/attributes.h"
#include "shim/alloc/debug_fill.h"
#include "shim/cuda/graph_memory.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"
#include "shim/upstream/upstream_pinned.h"

#define KEPT_MOST ((size_t)256 << 20) /* idle bytes of an arena, in whole segments */

int ca_pinned_alloc(ca_context_t *context, unsigned flags, size_t bytes, ca_device_effort_t effort,
                    void **address)
{
    bool ready_only = effort == CA_DEVICE_READY_ONLY;
    ca_block_t *block;
    uint64_t pointer;
    bool reused;
    if (flags >= CA_PINNED_KINDS || !context->arena ||
        atomic_load_explicit(&context->broken, memory_order_relaxed))
        return -EIO;
    ca_arena_t *arena = ca_pinned_arena(context, flags, !ready_only);
    if (!arena)
        return -EIO;
    int result =
        ca_cached_alloc(arena, NULL, ca_debug_padded(bytes), ready_only, &block, &pointer, &reused);
    if (result != 0)
        return result;
    ca_debug_fill_host(pointer, bytes, reused);
    if (ca_track_alloc(CA_KIND_PINNED, pointer, bytes, context, NULL, block) != 0) {
        /* Without a record a free could not find the block. */
        ca_cached_free(block);
        return -EIO;
    }
    ca_graph_memory_acquired(pointer, block, atomic_load(&context->number));
    *address = (void *)(uintptr_t)pointer;
    return 0;
}

/* Pages that stay pinned are lost to all others, malloc included, and nothing says when the machine
 * runs short. So what is kept for later is bounded: beyond that a free does what the driver's would
 * have done, it waits for its context's work, and all that is idle goes back. Not each time for
 * what comes and goes by the fast path. */
static void keep_little(ca_context_t *context, ca_arena_t *arena, size_t bytes)
{
    ca_arena_stats_t now;
    if (bytes <= CA_CACHE_MOST)
        return;
    ca_arena_stats(arena, &now);
    if (now.idle_bytes <= KEPT_MOST)
        return;
    ca_upstream_cuda.synchronize(context, false);
    ca_arena_trim(arena, SIZE_MAX);
}

CUresult ca_pinned_free_plain(const ca_allocation_t *record)
{
    if (record->kind != CA_KIND_PINNED)
        return CUDA_ERROR_INVALID_VALUE; /* what the driver says of all that is not pinned */
    ca_arena_t *arena = ca_block_arena(record->owner);
    ca_context_t *context = arena ? ca_arena_context(arena) : NULL;
    if (!context || !ca_block_is_at(record->owner, record->address))
        return CUDA_SUCCESS; /* its context went while we came here, and took the memory along */
    CUresult broken = (CUresult)atomic_load_explicit(&context->broken, memory_order_relaxed);
    if (broken != CUDA_SUCCESS)
        return broken;
    if (ca_options.free_sync)
        ca_upstream_cuda.synchronize(context, false);
    ca_attributes_clear(record->address);
    if (ca_graph_memory_keep(record))
        return CUDA_SUCCESS;
    ca_debug_freed_host(context, record);
    ca_cached_free(record->owner);
    keep_little(context, arena, record->bytes);
    return CUDA_SUCCESS;
}
