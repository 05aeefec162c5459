/*
 * Allocation and release of device, managed and pinned memory, each on one driver call: cudaMalloc
 * on cuMemAlloc_v2, cudaFree on cuMemFree_v2 whatever allocated the pointer, cudaMallocHost on
 * cuMemAllocHost_v2, cudaHostAlloc on cuMemHostAlloc.
 *
 * Zero bytes: success and NULL from all of them, though the driver refuses cuMemAlloc and
 * cuMemAllocManaged of none. A call that fails leaves NULL, unless the pitch had nowhere to go
 * (tests/gpu/results/h200-580.json, codes_runtime/arguments) or no context could be bound.
 */
#include "rt.h"

static void *host_pointer(CUdeviceptr p)
{
    return (void *)(uintptr_t)p;
}

static cudaError_t device_memory(void **out, size_t bytes)
{
    CUdeviceptr p = 0;
    cudaError_t e = bytes == 0 ? cudaSuccess : rt_err(rt_legacy.cuMemAlloc(&p, bytes));
    *out = host_pointer(p);
    return e;
}

/* Without a place for the pointer the driver is initialised and no context is made current
 * (tests/gpu/results/h200-580.json, first_call/cudaMalloc-NULL). */
RT_FN_UNBOUND(cudaMalloc, (void **out, size_t bytes), out, bytes)
{
    RT_TRY(rt_init());
    RT_NEED(out);
    RT_TRY(rt_bind());
    cudaError_t e = device_memory(out, bytes);
    return rt_revive(e) ? device_memory(out, bytes) : e;
}

/* "If devPtr is 0, no operation is performed", and yet it initialises: the idiom cudaFree(0). */
RT_FN(cudaFree, (void *ptr), ptr)
{
    return ptr == NULL ? cudaSuccess : rt_err(rt_legacy.cuMemFree(rt_dev(ptr)));
}

static cudaError_t malloc_pitch(void **out, size_t *pitch, size_t width, size_t height)
{
    CUdeviceptr p = 0;
    size_t found = 0;
    /* 4: the smallest element size that cuMemAllocPitch takes; the caller's is not known. */
    cudaError_t e = cudaSuccess;
    if (width != 0 && height != 0)
        e = rt_err(rt_legacy.cuMemAllocPitch(&p, &found, width, height, 4));
    *out = host_pointer(p);
    if (e == cudaSuccess)
        *pitch = found;
    return e;
}

RT_FN(cudaMallocPitch, (void **out, size_t *pitch, size_t width, size_t height), out, pitch, width,
      height)
{
    RT_NEED(out);
    RT_NEED(pitch);
    return malloc_pitch(out, pitch, width, height);
}

RT_FN(cudaMalloc3D, (struct cudaPitchedPtr * out, struct cudaExtent extent), out, extent)
{
    RT_NEED(out);
    size_t rows;
    if (__builtin_mul_overflow(extent.height, extent.depth, &rows))
        return cudaErrorMemoryAllocation;
    out->xsize = extent.width;
    out->ysize = extent.height;
    return malloc_pitch(&out->ptr, &out->pitch, extent.width, rows);
}

RT_FN(cudaMallocManaged, (void **out, size_t bytes, unsigned int flags), out, bytes, flags)
{
    RT_NEED(out);
    CUdeviceptr p = 0;
    bool good = flags == cudaMemAttachGlobal || flags == cudaMemAttachHost;
    cudaError_t e = cudaSuccess;
    if (bytes != 0 || !good)
        e = rt_err(rt_legacy.cuMemAllocManaged(&p, bytes, flags));
    *out = host_pointer(p);
    return e;
}

RT_FN(cudaMallocHost, (void **out, size_t bytes), out, bytes)
{
    RT_NEED(out);
    void *p = NULL;
    cudaError_t e = bytes == 0 ? cudaSuccess : rt_err(rt_legacy.cuMemAllocHost(&p, bytes));
    *out = p;
    return e;
}

/* The flags' values are the driver's (cudaHostAllocPortable = CU_MEMHOSTALLOC_PORTABLE, ...). */
RT_FN(cudaHostAlloc, (void **out, size_t bytes, unsigned int flags), out, bytes, flags)
{
    RT_NEED(out);
    void *p = NULL;
    cudaError_t e = (flags & ~7u) != 0 ? cudaErrorInvalidValue : cudaSuccess;
    if (bytes != 0 && e == cudaSuccess)
        e = rt_err(rt_legacy.cuMemHostAlloc(&p, bytes, flags));
    *out = p;
    return e;
}

RT_FN(cudaFreeHost, (void *ptr), ptr)
{
    return ptr == NULL ? cudaSuccess : rt_err(rt_legacy.cuMemFreeHost(ptr));
}

RT_FN(cudaHostRegister, (void *ptr, size_t bytes, unsigned int flags), ptr, bytes, flags)
{
    RT_NEED(ptr);
    return rt_err(rt_legacy.cuMemHostRegister(ptr, bytes, flags));
}

RT_FN(cudaHostUnregister, (void *ptr), ptr)
{
    RT_NEED(ptr);
    return rt_err(rt_legacy.cuMemHostUnregister(ptr));
}

RT_FN(cudaHostGetDevicePointer, (void **out, void *host, unsigned int flags), out, host, flags)
{
    RT_NEED(out);
    RT_NEED(host);
    CUdeviceptr p = 0;
    RT_TRY(rt_err(rt_legacy.cuMemHostGetDevicePointer(&p, host, flags)));
    *out = host_pointer(p);
    return cudaSuccess;
}

RT_FN(cudaHostGetFlags, (unsigned int *flags, void *host), flags, host)
{
    RT_NEED(flags);
    RT_NEED(host);
    return rt_err(rt_legacy.cuMemHostGetFlags(flags, host));
}

RT_FN(cudaMemGetInfo, (size_t * free_bytes, size_t *total_bytes), free_bytes, total_bytes)
{
    size_t f = 0, t = 0;
    RT_TRY(rt_err(rt_legacy.cuMemGetInfo(&f, &t)));
    if (free_bytes != NULL)
        *free_bytes = f;
    if (total_bytes != NULL)
        *total_bytes = t;
    return cudaSuccess;
}
