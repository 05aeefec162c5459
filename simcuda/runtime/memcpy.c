/*
 * Copies of plain ranges. The kind decides the driver call, cudaMemcpyDefault leaves the decision
 * to unified addressing (driver_types.h, cudaMemcpyKind). Symbols are a device address and a size.
 */
#include "rt.h"

static void *host(const void *p)
{
    return (void *)(uintptr_t)p;
}

static cudaError_t check(const void *dst, const void *src, enum cudaMemcpyKind kind)
{
    if ((int)kind < (int)cudaMemcpyHostToHost || (int)kind > (int)cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    return dst == NULL || src == NULL ? cudaErrorInvalidValue : cudaSuccess;
}

static cudaError_t copy(const rt_driver_t *drv, void *dst, const void *src, size_t bytes,
                        enum cudaMemcpyKind kind)
{
    if (bytes == 0)
        return cudaSuccess;
    RT_TRY(check(dst, src, kind));
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_err(drv->cuMemcpyHtoD(rt_dev(dst), src, bytes));
    case cudaMemcpyDeviceToHost:
        return rt_err(drv->cuMemcpyDtoH(dst, rt_dev(src), bytes));
    case cudaMemcpyDeviceToDevice:
        return rt_err(drv->cuMemcpyDtoD(rt_dev(dst), rt_dev(src), bytes));
    default:
        return rt_err(drv->cuMemcpy(rt_dev(dst), rt_dev(src), bytes));
    }
}

static cudaError_t copy_async(const rt_driver_t *drv, void *dst, const void *src, size_t bytes,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (bytes == 0)
        return cudaSuccess;
    RT_TRY(check(dst, src, kind));
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_err(drv->cuMemcpyHtoDAsync(rt_dev(dst), src, bytes, stream));
    case cudaMemcpyDeviceToHost:
        return rt_err(drv->cuMemcpyDtoHAsync(dst, rt_dev(src), bytes, stream));
    case cudaMemcpyDeviceToDevice:
        return rt_err(drv->cuMemcpyDtoDAsync(rt_dev(dst), rt_dev(src), bytes, stream));
    default:
        return rt_err(drv->cuMemcpyAsync(rt_dev(dst), rt_dev(src), bytes, stream));
    }
}

RT_TWIN(cudaMemcpy, _ptds, (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind),
        dst, src, bytes, kind)
{
    return copy(drv, dst, src, bytes, kind);
}

RT_TWIN(cudaMemcpyAsync, _ptsz,
        (void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
        dst, src, bytes, kind, stream)
{
    return copy_async(drv, dst, src, bytes, kind, stream);
}

/* --- between devices -------------------------------------------------------------------------- */

static cudaError_t peers(int dst_device, int src_device, CUcontext *dst, CUcontext *src)
{
    RT_TRY(rt_primary(dst_device, dst));
    return rt_primary(src_device, src);
}

RT_FN(cudaMemcpyPeer, (void *dst, int dst_device, const void *src, int src_device, size_t bytes),
      dst, dst_device, src, src_device, bytes)
{
    CUcontext d, s;
    RT_TRY(peers(dst_device, src_device, &d, &s));
    return bytes == 0 ? cudaSuccess
                      : rt_err(rt_legacy.cuMemcpyPeer(rt_dev(dst), d, rt_dev(src), s, bytes));
}

/* One export only, on the legacy table: cuda_runtime_api.h has no twin of it. */
RT_FN(cudaMemcpyPeerAsync,
      (void *dst, int dst_device, const void *src, int src_device, size_t bytes,
       cudaStream_t stream),
      dst, dst_device, src, src_device, bytes, stream)
{
    CUcontext d, s;
    RT_TRY(peers(dst_device, src_device, &d, &s));
    return bytes == 0
               ? cudaSuccess
               : rt_err(rt_legacy.cuMemcpyPeerAsync(rt_dev(dst), d, rt_dev(src), s, bytes, stream));
}

/* --- symbols ---------------------------------------------------------------------------------- */

/* `bytes` at `offset` of the variable behind `symbol`. */
static cudaError_t range(const void *symbol, size_t bytes, size_t offset, void **at)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    RT_TRY(rt_symbol(symbol, &base, &size));
    if (offset > size || bytes > size - offset)
        return cudaErrorInvalidValue;
    *at = host((const void *)(uintptr_t)(base + offset));
    return cudaSuccess;
}

/* The variable is on the device: the other side alone is open (cuda_runtime_api.h,
 * cudaMemcpyToSymbol: "kind can be either cudaMemcpyHostToDevice, cudaMemcpyDeviceToDevice or
 * cudaMemcpyDefault"). */
static bool kind_fits(enum cudaMemcpyKind kind, enum cudaMemcpyKind open)
{
    return kind == open || kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDefault;
}

RT_TWIN(cudaMemcpyToSymbol, _ptds,
        (const void *symbol, const void *src, size_t bytes, size_t offset,
         enum cudaMemcpyKind kind),
        symbol, src, bytes, offset, kind)
{
    void *at;
    if (!kind_fits(kind, cudaMemcpyHostToDevice))
        return cudaErrorInvalidMemcpyDirection;
    RT_TRY(range(symbol, bytes, offset, &at));
    return copy(drv, at, src, bytes, kind);
}

RT_TWIN(cudaMemcpyFromSymbol, _ptds,
        (void *dst, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind), dst,
        symbol, bytes, offset, kind)
{
    void *at;
    if (!kind_fits(kind, cudaMemcpyDeviceToHost))
        return cudaErrorInvalidMemcpyDirection;
    RT_TRY(range(symbol, bytes, offset, &at));
    return copy(drv, dst, at, bytes, kind);
}

RT_TWIN(cudaMemcpyToSymbolAsync, _ptsz,
        (const void *symbol, const void *src, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
         cudaStream_t stream),
        symbol, src, bytes, offset, kind, stream)
{
    void *at;
    if (!kind_fits(kind, cudaMemcpyHostToDevice))
        return cudaErrorInvalidMemcpyDirection;
    RT_TRY(range(symbol, bytes, offset, &at));
    return copy_async(drv, at, src, bytes, kind, stream);
}

RT_TWIN(cudaMemcpyFromSymbolAsync, _ptsz,
        (void *dst, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind,
         cudaStream_t stream),
        dst, symbol, bytes, offset, kind, stream)
{
    void *at;
    if (!kind_fits(kind, cudaMemcpyDeviceToHost))
        return cudaErrorInvalidMemcpyDirection;
    RT_TRY(range(symbol, bytes, offset, &at));
    return copy_async(drv, dst, at, bytes, kind, stream);
}
