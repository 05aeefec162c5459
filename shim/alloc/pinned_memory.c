#include "shim/alloc/pinned_memory.h"
#include <errno.h>
#include <sys/sysinfo.h>
#include "config/options.h"
#include "pool/cache/cache.h"
#include "shim/upstream/attributes.h"
#include "shim/alloc/debug_fill.h"
#include "shim/cuda/graph_memory.h"
#include "shim/upstream/pin_mode.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"
#include "shim/upstream/upstream_pinned.h"

#define KEPT_MOST ((size_t)256 << 20)   /* idle bytes of an arena, in whole segments */
#define SEGMENT_FIRST ((size_t)2 << 20) /* it is dear: the pages are taken from the machine */

/* What the machine has; 0 when unknown. */
static size_t host_bytes(void)
{
    struct sysinfo machine;

    return sysinfo(&machine) == 0 ? (size_t)machine.totalram * machine.mem_unit : 0;
}

/* The arena for `flags`, made where it is missing and asked for. */
static ca_arena_t *arena_for(ca_context_t *context, unsigned flags, bool create)
{
    ca_arena_t *arena = atomic_load_explicit(&context->pinned[flags], memory_order_acquire);
    if (arena || !create)
        return arena;
    ca_arena_params_t params = {
        .max_split = ca_options.max_split,
        .limit = SIZE_MAX,
        .reuse = (ca_reuse_t)ca_options.reuse,
        .reuse_wait_ns = ca_options.reuse_wait,
        .oom_wait_ns = ca_options.oom_wait,
        .thread_cache = ca_options.thread_cache,
        .settle = ca_options.settle,
        .granule = CA_PAGE, /* direct I/O and network cards want pages */
        .segment_first = SEGMENT_FIRST,
        .host = true,
        .device_bytes = host_bytes(),
    };
    ca_arena_t *fresh = ca_arena_create(&ca_upstream_pinned[flags], context, &params);
    if (!fresh)
        return NULL;
    if (!atomic_compare_exchange_strong(&context->pinned[flags], &arena, fresh)) {
        ca_arena_retire(fresh); /* another thread was first */
        return arena;
    }
    ca_pin_mode_apply(context);
    /* Either we see that the context is gone, or whoever retires its arenas sees this one. */
    if (atomic_load(&context->state) == CA_CONTEXT_RETIRED)
        ca_arena_retire(fresh);
    return fresh;
}

int ca_pinned_alloc(ca_context_t *context, unsigned flags, size_t bytes, ca_device_effort_t effort,
                    void **address)
{
    bool ready_only = effort == CA_DEVICE_HIT_ONLY;
    ca_block_t *block;
    uint64_t pointer;
    bool reused;
    if (flags >= CA_PINNED_KINDS || !context->arena ||
        atomic_load_explicit(&context->broken, memory_order_relaxed))
        return -EIO;
    ca_arena_t *arena = arena_for(context, flags, !ready_only);
    if (!arena)
        return -EIO;
    int result =
        ca_cached_alloc(arena, ca_debug_padded(bytes), ready_only, &block, &pointer, &reused);
    if (result != 0)
        return result;
    ca_debug_fill_host(pointer, bytes, reused);
    if (ca_track_alloc(CA_KIND_PINNED, pointer, bytes, context, NULL, block) != 0) {
        /* Without a record a free could not find the block. */
        ca_cached_free(block);
        return -EIO;
    }
    ca_graph_memory_given(pointer, block, atomic_load(&context->number));
    *address = (void *)(uintptr_t)pointer;
    return 0;
}

/* Pages that stay pinned are nobody else's, not malloc's either, and nothing tells when the machine
 * runs short. So what is kept for later is bounded: beyond that a free does what the driver's would
 * have done, it waits for its context's work, and all that is idle goes back. Not each time for
 * what comes and goes by hits. */
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

/* One that is made between the two retires itself: see arena_for. */
void ca_pinned_retire_begin(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++) {
        context->leaving_pinned[i] = atomic_load(&context->pinned[i]);
        if (context->leaving_pinned[i])
            ca_arena_retire_begin(context->leaving_pinned[i]);
    }
}

void ca_pinned_retire_end(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++)
        if (context->leaving_pinned[i])
            ca_arena_retire_end(context->leaving_pinned[i]);
}

bool ca_pinned_revive(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++) {
        ca_arena_t *arena = atomic_load(&context->pinned[i]);
        if (!arena || ca_arena_revive(arena))
            continue;
        while (i-- > 0)
            if ((arena = atomic_load(&context->pinned[i])))
                ca_arena_retire(arena);
        return false;
    }
    return true;
}

size_t ca_pinned_trim(size_t bytes)
{
    size_t given = 0;
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c)) {
        for (unsigned i = 0; i < CA_PINNED_KINDS && given < bytes; i++) {
            ca_arena_t *arena = atomic_load(&c->pinned[i]);
            if (arena && atomic_load(&c->state) == CA_CONTEXT_SERVING)
                given += ca_arena_trim(arena, bytes - given);
        }
    }
    return given;
}
