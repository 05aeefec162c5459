/* Streams. cudaStream_t is the driver's CUstream, the special handles included (legacy, per
 * thread). */
#include "rt.h"

#include <stdlib.h>

RT_FN(cudaStreamCreate, (cudaStream_t * stream), stream)
{
    RT_NEED(stream);
    return rt_err(rt_legacy.cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

RT_FN(cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned int flags), stream, flags)
{
    RT_NEED(stream);
    return rt_err(rt_legacy.cuStreamCreate(stream, flags));
}

RT_FN(cudaStreamCreateWithPriority, (cudaStream_t * stream, unsigned int flags, int priority),
      stream, flags, priority)
{
    RT_NEED(stream);
    return rt_err(rt_legacy.cuStreamCreateWithPriority(stream, flags, priority));
}

/* The default streams cannot be destroyed. */
RT_FN(cudaStreamDestroy, (cudaStream_t stream), stream)
{
    if (stream == NULL || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        return cudaErrorInvalidResourceHandle;
    return rt_err(rt_legacy.cuStreamDestroy(stream));
}

RT_TWIN(cudaStreamSynchronize, _ptsz, (cudaStream_t stream), stream)
{
    return rt_err(drv->cuStreamSynchronize(stream));
}

RT_TWIN(cudaStreamQuery, _ptsz, (cudaStream_t stream), stream)
{
    return rt_err(drv->cuStreamQuery(stream));
}

RT_TWIN(cudaStreamWaitEvent, _ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
        stream, event, flags)
{
    return rt_err(drv->cuStreamWaitEvent(stream, event, flags));
}

RT_TWIN(cudaStreamGetPriority, _ptsz, (cudaStream_t stream, int *priority), stream, priority)
{
    RT_NEED(priority);
    return rt_err(drv->cuStreamGetPriority(stream, priority));
}

RT_TWIN(cudaStreamGetFlags, _ptsz, (cudaStream_t stream, unsigned int *flags), stream, flags)
{
    RT_NEED(flags);
    return rt_err(drv->cuStreamGetFlags(stream, flags));
}

RT_TWIN(cudaStreamGetId, _ptsz, (cudaStream_t stream, unsigned long long *id), stream, id)
{
    RT_NEED(id);
    return rt_err(drv->cuStreamGetId(stream, id));
}

RT_TWIN(cudaStreamGetDevice, _ptsz, (cudaStream_t stream, int *device), stream, device)
{
    RT_NEED(device);
    CUdevice dev = 0;
    RT_TRY(rt_err(drv->cuStreamGetDevice(stream, &dev)));
    *device = (int)dev;
    return cudaSuccess;
}

/* --- attributes: one union under two names (driver_types.h, cudaLaunchAttributeValue) --------- */

_Static_assert(sizeof(cudaStreamAttrValue) == sizeof(CUstreamAttrValue), "stream attributes");

RT_TWIN(cudaStreamCopyAttributes, _ptsz, (cudaStream_t dst, cudaStream_t src), dst, src)
{
    return rt_err(drv->cuStreamCopyAttributes(dst, src));
}

RT_TWIN(cudaStreamGetAttribute, _ptsz,
        (cudaStream_t stream, cudaStreamAttrID attr, cudaStreamAttrValue *value), stream, attr,
        value)
{
    RT_NEED(value);
    return rt_err(
        drv->cuStreamGetAttribute(stream, (CUstreamAttrID)(int)attr, (CUstreamAttrValue *)value));
}

RT_TWIN(cudaStreamSetAttribute, _ptsz,
        (cudaStream_t stream, cudaStreamAttrID attr, const cudaStreamAttrValue *value), stream,
        attr, value)
{
    RT_NEED(value);
    return rt_err(drv->cuStreamSetAttribute(stream, (CUstreamAttrID)(int)attr,
                                            (const CUstreamAttrValue *)value));
}

/* --- host functions --------------------------------------------------------------------------- */

RT_TWIN(cudaLaunchHostFunc, _ptsz, (cudaStream_t stream, cudaHostFn_t fn, void *data), stream, fn,
        data)
{
    if (fn == NULL)
        return cudaErrorInvalidValue;
    return rt_err(drv->cuLaunchHostFunc(stream, fn, data));
}

/* The two callback types differ in their status's type, so the driver gets one of ours, which knows
 * the other. It is called exactly once (cuda_runtime_api.h, cudaStreamAddCallback). */
typedef struct {
    cudaStreamCallback_t fn;
    void *data;
} callback_t;

static void CUDA_CB call_back(CUstream stream, CUresult status, void *data)
{
    callback_t c = *(callback_t *)data;
    free(data);
    c.fn(stream, rt_err(status), c.data);
}

RT_TWIN(cudaStreamAddCallback, _ptsz,
        (cudaStream_t stream, cudaStreamCallback_t fn, void *data, unsigned int flags), stream, fn,
        data, flags)
{
    if (fn == NULL)
        return cudaErrorInvalidValue;
    callback_t *c = malloc(sizeof *c);
    if (c == NULL)
        return cudaErrorMemoryAllocation;
    *c = (callback_t){fn, data};
    cudaError_t e = rt_err(drv->cuStreamAddCallback(stream, call_back, c, flags));
    if (e != cudaSuccess)
        free(c);
    return e;
}
