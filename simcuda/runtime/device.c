/*
 * What concerns a device and no memory: attributes, limits, flags, peers, names. Which
 * device a thread uses is context.c's.
 */
#include "rt.h"

/* --- attributes ------------------------------------------------------------------------------- */

_Static_assert((int)cudaDevAttrComputeCapabilityMajor ==
                   (int)CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
               "attributes");
_Static_assert((int)cudaDevAttrMemoryPoolsSupported ==
                   (int)CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
               "attributes");

static cudaError_t device_handle(int device, CUdevice *dev)
{
    RT_TRY(rt_init());
    return rt_legacy.cuDeviceGet(dev, device) == CUDA_SUCCESS ? cudaSuccess
                                                              : cudaErrorInvalidDevice;
}

RT_FN_UNBOUND(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr attr, int device), value,
              attr, device)
{
    CUdevice dev;
    RT_NEED(value);
    RT_TRY(device_handle(device, &dev));
    return rt_err(rt_legacy.cuDeviceGetAttribute(value, (CUdevice_attribute)(int)attr, dev));
}

RT_FN_UNBOUND(cudaDeviceGetPCIBusId, (char *id, int len, int device), id, len, device)
{
    CUdevice dev;
    RT_NEED(id);
    RT_TRY(device_handle(device, &dev));
    return rt_err(rt_legacy.cuDeviceGetPCIBusId(id, len, dev));
}

RT_FN_UNBOUND(cudaDeviceGetByPCIBusId, (int *device, const char *id), device, id)
{
    CUdevice dev = 0;
    RT_NEED(device);
    RT_NEED(id);
    RT_TRY(rt_init());
    RT_TRY(rt_err(rt_legacy.cuDeviceGetByPCIBusId(&dev, id)));
    *device = (int)dev;
    return cudaSuccess;
}

RT_FN_UNBOUND(cudaDeviceGetP2PAttribute,
              (int *value, enum cudaDeviceP2PAttr attr, int src, int dst), value, attr, src, dst)
{
    CUdevice s, d;
    RT_NEED(value);
    RT_TRY(device_handle(src, &s));
    RT_TRY(device_handle(dst, &d));
    return rt_err(rt_legacy.cuDeviceGetP2PAttribute(value, (CUdevice_P2PAttribute)(int)attr, s, d));
}

/* --- the current context ---------------------------------------------------------------------- */

RT_FN(cudaDeviceSynchronize, (void), )
{
    return rt_err(rt_legacy.cuCtxSynchronize());
}

RT_FN(cudaDeviceSetLimit, (enum cudaLimit limit, size_t value), limit, value)
{
    return rt_err(rt_legacy.cuCtxSetLimit((CUlimit)(int)limit, value));
}

RT_FN(cudaDeviceGetLimit, (size_t * value, enum cudaLimit limit), value, limit)
{
    RT_NEED(value);
    return rt_err(rt_legacy.cuCtxGetLimit(value, (CUlimit)(int)limit));
}

RT_FN(cudaDeviceGetCacheConfig, (enum cudaFuncCache * config), config)
{
    RT_NEED(config);
    CUfunc_cache c = CU_FUNC_CACHE_PREFER_NONE;
    RT_TRY(rt_err(rt_legacy.cuCtxGetCacheConfig(&c)));
    *config = (enum cudaFuncCache)(int)c;
    return cudaSuccess;
}

RT_FN(cudaDeviceSetCacheConfig, (enum cudaFuncCache config), config)
{
    return rt_err(rt_legacy.cuCtxSetCacheConfig((CUfunc_cache)(int)config));
}

RT_FN(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), least, greatest)
{
    return rt_err(rt_legacy.cuCtxGetStreamPriorityRange(least, greatest));
}

RT_FN(cudaCtxResetPersistingL2Cache, (void), )
{
    return rt_err(rt_legacy.cuCtxResetPersistingL2Cache());
}

RT_FN(cudaProfilerStart, (void), )
{
    return rt_err(rt_legacy.cuProfilerStart());
}

RT_FN(cudaProfilerStop, (void), )
{
    return rt_err(rt_legacy.cuProfilerStop());
}

/* --- flags ------------------------------------------------------------------------------------ */

/* "If the current device has not been initialized, it is initialized with the provided flags"
 * (cuda_runtime_api.h, cudaSetDeviceFlags). cudaDeviceMapHost is implicit in the runtime and no
 * flag of a primary context's own. */
RT_FN_UNBOUND(cudaSetDeviceFlags, (unsigned int flags), flags)
{
    if ((flags & ~(unsigned)cudaDeviceMask) != 0)
        return cudaErrorInvalidValue;
    int device;
    CUdevice dev;
    RT_TRY(rt_current_device(&device));
    RT_TRY(device_handle(device, &dev));
    RT_TRY(rt_err(rt_legacy.cuDevicePrimaryCtxSetFlags(dev, flags & ~(unsigned)cudaDeviceMapHost)));
    return rt_bind();
}

/* A current context's own flags; without one, those the device's primary context would have. */
RT_FN_UNBOUND(cudaGetDeviceFlags, (unsigned int *flags), flags)
{
    RT_NEED(flags);
    int device, active = 0;
    unsigned f = 0;
    CUdevice dev;
    CUcontext current = NULL;
    RT_TRY(rt_current_device(&device));
    if (rt_legacy.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != NULL &&
        rt_legacy.cuCtxGetFlags(&f) == CUDA_SUCCESS) {
        *flags = f | cudaDeviceMapHost;
        return cudaSuccess;
    }
    RT_TRY(device_handle(device, &dev));
    RT_TRY(rt_err(rt_legacy.cuDevicePrimaryCtxGetState(dev, &f, &active)));
    *flags = f | cudaDeviceMapHost;
    return cudaSuccess;
}

/* --- peers ------------------------------------------------------------------------------------ */

RT_FN_UNBOUND(cudaDeviceCanAccessPeer, (int *can, int device, int peer), can, device, peer)
{
    CUdevice d, p;
    RT_NEED(can);
    RT_TRY(device_handle(device, &d));
    RT_TRY(device_handle(peer, &p));
    return rt_err(rt_legacy.cuDeviceCanAccessPeer(can, d, p));
}

/* The driver knows peers by context: the peer device's primary, created here if need be. */
static cudaError_t peer_context(int peer, CUcontext *ctx)
{
    int device;
    RT_TRY(rt_current_device(&device));
    if (peer == device)
        return cudaErrorInvalidDevice;
    return rt_primary(peer, ctx);
}

RT_FN(cudaDeviceEnablePeerAccess, (int peer, unsigned int flags), peer, flags)
{
    CUcontext ctx;
    RT_TRY(peer_context(peer, &ctx));
    return rt_err(rt_legacy.cuCtxEnablePeerAccess(ctx, flags));
}

RT_FN(cudaDeviceDisablePeerAccess, (int peer), peer)
{
    CUcontext ctx;
    RT_TRY(peer_context(peer, &ctx));
    return rt_err(rt_legacy.cuCtxDisablePeerAccess(ctx));
}
