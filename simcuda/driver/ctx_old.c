/* Contexts by their older forms: usage counts, and the calls without _v2 that libcuda.so.1 still
 * exports. */
#include "sim.h"

/* cuda.h, cuCtxAttach: "Increments the usage count of the context and passes back a context
 * handle"; "the flags parameter must be 0". */
SIM_API CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxAttach);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!pctx || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    atomic_fetch_add(&ctx->attached, 1);
    *pctx = ctx;
    return CUDA_SUCCESS;
}

/* cuda.h, cuCtxDetach: "destroys the context if the usage count goes to 0 ... must be a handle that
 * was passed back by cuCtxCreate() or cuCtxAttach(), and must be current to the calling thread". */
SIM_API CUresult cuCtxDetach(CUcontext ctx)
{
    CUcontext current;
    SIM_ENTER(cuCtxDetach);
    SIM_TRY(sim_ctx_current_any(&current));
    if (!ctx || ctx != current || ctx->primary || ctx->home) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    int was = atomic_load(&ctx->attached);
    while (was > 0 && !atomic_compare_exchange_weak(&ctx->attached, &was, was - 1)) {
    }
    return was > 0 ? CUDA_SUCCESS : sim_ctx_destroy(ctx);
}

SIM_API CUresult cuCtxDestroy(CUcontext ctx)
{
    SIM_ENTER(cuCtxDestroy);
    return sim_ctx_destroy(ctx);
}

SIM_API CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxRelease);
    SIM_TRY(sim_device_get(dev, &d));
    return sim_primary_release(d);
}

SIM_API CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxReset);
    SIM_TRY(sim_device_get(dev, &d));
    sim_primary_reset(d);
    return CUDA_SUCCESS;
}
