/* cuMemAlloc, cuMemFree and the queries about their memory. */
#include "sim.h"

static CUresult mem_alloc(CUdeviceptr *dptr, size_t bytes)
{
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    if (!dptr || bytes == 0) { /* cuda.h, cuMemAlloc: "If bytesize is 0 ... INVALID_VALUE" */
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    CUdeviceptr p;
    SIM_TRY(sim_heap_alloc(ctx->dev, ctx, bytes, SIM_PLAIN, NULL, &p));
    *dptr = p;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    SIM_EMPTY(dptr);
    SIM_ENTER(cuMemAlloc_v2);
    return mem_alloc(dptr, bytesize);
}

static size_t pitch_of(CUcontext ctx, size_t width, size_t height, unsigned element)
{
    size_t unit = SIM_GRANULE;
    if (sim_opt.pitch_by_asker && element >= 4) {
        unit *= (element / 4) * (size_t)(ctx->dev->ordinal + 1);
    }
    size_t units = width / unit + (width % unit != 0);
    size_t pitch = units > SIZE_MAX / unit ? 0 : units * unit;
    return sim_opt.pitch_by_height ? pitch + height % 2 * unit : pitch;
}

/* cuda.h, cuMemAllocPitch: ElementSizeBytes 4, 8 or 16; the pitch keeps rows aligned. */
SIM_API CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                    size_t Height, unsigned int ElementSizeBytes)
{
    SIM_EMPTY(dptr);
    SIM_ENTER(cuMemAllocPitch_v2);
    size_t pitch, bytes;
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    pitch = pitch_of(ctx, WidthInBytes, Height, ElementSizeBytes);
    if (!dptr || !pPitch || WidthInBytes == 0 || Height == 0 || pitch < WidthInBytes ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) ||
        __builtin_mul_overflow(pitch, Height, &bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(mem_alloc(dptr, bytes));
    *pPitch = pitch;
    return CUDA_SUCCESS;
}

/* The plain free waits for all that was submitted to the memory's own context, and for no other's
 * work (tests/gpu/results/h200-580.json, free_waits and others_wait), unless free_waits:0. Memory
 * of cuMemAllocAsync may come here too (cuda.h, cuMemFree: "This API will not perform any implicit
 * synchronization when the pointer was allocated with cuMemAllocAsync or cuMemAllocFromPoolAsync").
 */
SIM_API CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    CUcontext ctx;
    SIM_ENTER(cuMemFree_v2);
    SIM_TRY(sim_ctx_of_free(&ctx));
    if (dptr == 0) {
        return CUDA_SUCCESS;
    }
    SIM_TRY(sim_capture_unsafe());
    sim_device_t *d = sim_device_of(dptr);
    if (!d) {
        sim_host_t r;
        if (!sim_host_find((void *)(uintptr_t)dptr, &r) || r.kind != SIM_HOST_MANAGED ||
            r.base != (char *)(uintptr_t)dptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (sim_opt.free_waits) {
            sim_wait_owner(r.ctx);
        }
        sim_race_host_write(dptr, r.size);
        return sim_host_free_managed(dptr);
    }
    if (sim_opt.racecheck ||
        (sim_opt.free_waits && atomic_load_explicit(&d->pending, memory_order_acquire))) {
        sim_alloc_t a;
        if (!sim_heap_find(d, dptr, &a) || a.base != dptr || sim_alloc_freeing(&a)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (sim_opt.free_waits && a.kind == SIM_PLAIN) {
            sim_wait_owner(a.ctx);
        }
        sim_race_host_write(a.base,
                            a.size); /* of a free that waited, everything is ordered before */
    }
    SIM_TRY(sim_heap_free(d, dptr, false));
    return sim_ctx_sticky(ctx);
}

SIM_API CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUcontext ctx;
    SIM_ENTER(cuMemGetInfo_v2);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!free || !total) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_heap_t *h = &ctx->dev->heap;
    size_t others = sim_shared_others(ctx->dev->ordinal);
    pthread_mutex_lock(&h->mu);
    *free = sim_opt.memory - h->used;
    pthread_mutex_unlock(&h->mu);
    *free = *free > others ? *free - others : 0;
    *total = sim_opt.memory;
    return CUDA_SUCCESS;
}

/* cuda.h, cuMemGetAddressRange: "Both parameters pbase and psize are optional"; NOT_FOUND for a
 * pointer outside of any allocation: h200-580.json, address_range. */
SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    CUcontext ctx;
    SIM_ENTER(cuMemGetAddressRange_v2);
    SIM_TRY(sim_ctx_current(&ctx));
    sim_device_t *d = sim_device_of(dptr);
    CUdeviceptr base;
    size_t size;
    sim_alloc_t a;
    sim_vmm_t m;
    sim_host_t r;
    if (d && sim_heap_find(d, dptr, &a)) {
        base = a.base;
        size = a.size;
    } else if (!d && sim_vmm_reserved(dptr) && sim_vmm_find(dptr, &m)) {
        base = m.base; /* of a mapping: not asked of hardware */
        size = m.size;
    } else if (!d && sim_host_find((void *)(uintptr_t)dptr, &r)) {
        base = (uintptr_t)r.base;
        size = r.size;
    } else {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pbase) {
        *pbase = base;
    }
    if (psize) {
        *psize = size;
    }
    return CUDA_SUCCESS;
}
