/* Events. cudaEvent_t is the driver's CUevent, flags have the driver's values. */
#include "rt.h"

RT_FN(cudaEventCreate, (cudaEvent_t * event), event)
{
    RT_NEED(event);
    return rt_err(rt_legacy.cuEventCreate(event, CU_EVENT_DEFAULT));
}

RT_FN(cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags), event, flags)
{
    RT_NEED(event);
    return rt_err(rt_legacy.cuEventCreate(event, flags));
}

RT_TWIN(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream), event, stream)
{
    return rt_err(drv->cuEventRecord(event, stream));
}

RT_TWIN(cudaEventRecordWithFlags, _ptsz,
        (cudaEvent_t event, cudaStream_t stream, unsigned int flags), event, stream, flags)
{
    return rt_err(drv->cuEventRecordWithFlags(event, stream, flags));
}

RT_FN(cudaEventQuery, (cudaEvent_t event), event)
{
    return rt_err(rt_legacy.cuEventQuery(event));
}

RT_FN(cudaEventSynchronize, (cudaEvent_t event), event)
{
    return rt_err(rt_legacy.cuEventSynchronize(event));
}

RT_FN(cudaEventDestroy, (cudaEvent_t event), event)
{
    return rt_err(rt_legacy.cuEventDestroy(event));
}

RT_FN(cudaEventElapsedTime, (float *milliseconds, cudaEvent_t start, cudaEvent_t end), milliseconds,
      start, end)
{
    RT_NEED(milliseconds);
    return rt_err(rt_legacy.cuEventElapsedTime(milliseconds, start, end));
}
