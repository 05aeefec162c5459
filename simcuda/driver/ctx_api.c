/* What is asked of a context: waits, ids, flags, limits, peers. */
#include "sim.h"

static CUresult synchronize(CUcontext ctx)
{
    SIM_TRY(sim_capture_unsafe());
    sim_lock();
    CUresult rc = sim_capture_block_context_locked(ctx);
    sim_unlock();
    if (rc == CUDA_SUCCESS) {
        sim_wait_context(ctx);
        rc = (CUresult)atomic_load(&ctx->sticky);
    }
    return rc;
}

/* cuda.h: with ctx NULL the current context is meant (cuCtxGetId and kin). */
static CUresult named_or_current(CUcontext *ctx)
{
    return *ctx ? sim_ctx_check(*ctx) : sim_ctx_current(ctx);
}

SIM_API CUresult cuCtxSynchronize(void)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxSynchronize);
    SIM_TRY(sim_ctx_current(&ctx));
    return synchronize(ctx);
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxSynchronize_v2);
    SIM_TRY(named_or_current(&ctx));
    return synchronize(ctx);
}

SIM_API CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxGetDevice);
    if (!device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_ctx_current_any(&ctx));
    *device = ctx->dev->ordinal;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    SIM_ENTER(cuCtxGetDevice_v2);
    if (!device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(named_or_current(&ctx));
    *device = ctx->dev->ordinal;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetId(CUcontext ctx, unsigned long long *ctxId)
{
    SIM_ENTER(cuCtxGetId);
    if (!ctxId) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!ctx) {
        SIM_TRY(sim_ctx_current_any(&ctx));
    } else if (!atomic_load_explicit(&ctx->alive, memory_order_acquire)) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *ctxId = atomic_load_explicit(&ctx->id, memory_order_relaxed);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SIM_ENTER(cuCtxGetApiVersion);
    if (!version) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(named_or_current(&ctx));
    *version = ctx->api_version;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetFlags(unsigned int *flags)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxGetFlags);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = atomic_load(&ctx->flags);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetFlags(unsigned int flags)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxSetFlags);
    SIM_TRY(sim_ctx_current(&ctx));
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    atomic_store(&ctx->flags, flags);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetLimit(size_t *pvalue, CUlimit limit)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxGetLimit);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!pvalue) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((unsigned)limit >= 16 || limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *pvalue = atomic_load(&ctx->limits[limit]);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxSetLimit);
    SIM_TRY(sim_ctx_current(&ctx));
    if ((unsigned)limit >= 16 || limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    atomic_store(&ctx->limits[limit], value);
    return CUDA_SUCCESS;
}

static CUresult current_only(void)
{
    CUcontext ctx;
    return sim_ctx_current(&ctx);
}

SIM_API CUresult cuCtxGetCacheConfig(CUfunc_cache *pconfig)
{
    SIM_ENTER(cuCtxGetCacheConfig);
    SIM_TRY(current_only());
    if (!pconfig) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    SIM_ENTER(cuCtxSetCacheConfig);
    (void)config;
    return current_only();
}

SIM_API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *pConfig)
{
    SIM_ENTER(cuCtxGetSharedMemConfig);
    SIM_TRY(current_only());
    if (!pConfig) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    SIM_ENTER(cuCtxSetSharedMemConfig);
    (void)config;
    return current_only();
}

SIM_API CUresult cuCtxResetPersistingL2Cache(void)
{
    SIM_ENTER(cuCtxResetPersistingL2Cache);
    return current_only();
}

/* --- peers -------------------------------------------------------------------------------------*/
SIM_API CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceCanAccessPeer);
    if (!canAccessPeer) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_device_get(dev, &d));
    SIM_TRY(sim_device_get(peerDev, &d));
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice src,
                                         CUdevice dst)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetP2PAttribute);
    if (!value || src == dst) {
        return value ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_device_get(src, &d));
    SIM_TRY(sim_device_get(dst, &d));
    *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult peer_bit(CUcontext peer, CUcontext *ctx, uint32_t *bit)
{
    SIM_TRY(sim_ctx_current(ctx));
    SIM_TRY(sim_ctx_check(peer));
    if (peer == *ctx) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (peer->dev == (*ctx)->dev) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    *bit = 1u << peer->dev->ordinal;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags)
{
    CUcontext ctx;
    uint32_t bit;
    SIM_ENTER(cuCtxEnablePeerAccess);
    SIM_TRY(peer_bit(peerContext, &ctx, &bit));
    if (Flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return atomic_fetch_or(&ctx->peers, bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                                                   : CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDisablePeerAccess(CUcontext peerContext)
{
    CUcontext ctx;
    uint32_t bit;
    SIM_ENTER(cuCtxDisablePeerAccess);
    SIM_TRY(peer_bit(peerContext, &ctx, &bit));
    return atomic_fetch_and(&ctx->peers, ~bit) & bit ? CUDA_SUCCESS
                                                     : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
