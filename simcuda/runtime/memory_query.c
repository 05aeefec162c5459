/*
 * What is known about memory: pointer attributes, managed memory's advice and prefetch, and handles
 * for other processes. Structures of the two APIs that have one layout are passed on as they are.
 */
#include "rt.h"

#include <string.h>

/* Memory that CUDA does not know is no error (cuda_runtime_api.h, cudaPointerGetAttributes: "In
 * CUDA 11.0 forward passing host pointer will return cudaMemoryTypeUnregistered"). */
RT_FN(cudaPointerGetAttributes, (struct cudaPointerAttributes * out, const void *ptr), out, ptr)
{
    RT_NEED(out);
    CUmemorytype type = 0;
    CUdeviceptr device_pointer = 0;
    void *host_pointer = NULL;
    unsigned managed = 0;
    int ordinal = cudaInvalidDeviceId;
    CUpointer_attribute what[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER,   CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    };
    void *where[] = {&type, &device_pointer, &host_pointer, &managed, &ordinal};
    memset(out, 0, sizeof *out);
    out->device = cudaInvalidDeviceId;
    if (ptr != NULL)
        RT_TRY(rt_err(rt_legacy.cuPointerGetAttributes(5, what, where, rt_dev(ptr))));
    if (ptr == NULL || (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && !managed)) {
        out->type = cudaMemoryTypeUnregistered;
        out->hostPointer = (void *)(uintptr_t)ptr;
        return cudaSuccess;
    }
    out->type = managed                      ? cudaMemoryTypeManaged
                : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                             : cudaMemoryTypeDevice;
    out->device = ordinal;
    out->devicePointer = (void *)(uintptr_t)device_pointer;
    out->hostPointer = host_pointer;
    return cudaSuccess;
}

/* --- managed memory --------------------------------------------------------------------------- */

static CUmemLocation location(struct cudaMemLocation l)
{
    CUmemLocation r;
    memset(&r, 0, sizeof r);
    r.type = (CUmemLocationType)(int)l.type;
    r.id = l.id;
    return r;
}

RT_FN(cudaMemAdvise,
      (const void *ptr, size_t bytes, enum cudaMemoryAdvise advice, struct cudaMemLocation where),
      ptr, bytes, advice, where)
{
    return rt_err(
        rt_legacy.cuMemAdvise(rt_dev(ptr), bytes, (CUmem_advise)(int)advice, location(where)));
}

RT_TWIN(cudaMemPrefetchAsync, _ptsz,
        (const void *ptr, size_t bytes, struct cudaMemLocation where, unsigned int flags,
         cudaStream_t stream),
        ptr, bytes, where, flags, stream)
{
    return rt_err(drv->cuMemPrefetchAsync(rt_dev(ptr), bytes, location(where), flags, stream));
}

RT_FN(cudaMemRangeGetAttribute,
      (void *data, size_t size, enum cudaMemRangeAttribute what, const void *ptr, size_t bytes),
      data, size, what, ptr, bytes)
{
    return rt_err(rt_legacy.cuMemRangeGetAttribute(data, size, (CUmem_range_attribute)(int)what,
                                                   rt_dev(ptr), bytes));
}

RT_FN(cudaMemRangeGetAttributes,
      (void **data, size_t *sizes, enum cudaMemRangeAttribute *what, size_t count, const void *ptr,
       size_t bytes),
      data, sizes, what, count, ptr, bytes)
{
    return rt_err(rt_legacy.cuMemRangeGetAttributes(data, sizes, (CUmem_range_attribute *)what,
                                                    count, rt_dev(ptr), bytes));
}

RT_TWIN(cudaStreamAttachMemAsync, _ptsz,
        (cudaStream_t stream, void *ptr, size_t bytes, unsigned int flags), stream, ptr, bytes,
        flags)
{
    return rt_err(drv->cuStreamAttachMemAsync(stream, rt_dev(ptr), bytes, flags));
}

/* --- other processes -------------------------------------------------------------------------- */

_Static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle), "IPC handle");
_Static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle), "IPC handle");

RT_FN(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *ptr), handle, ptr)
{
    RT_NEED(handle);
    return rt_err(rt_legacy.cuIpcGetMemHandle((CUipcMemHandle *)handle, rt_dev(ptr)));
}

RT_FN(cudaIpcOpenMemHandle, (void **ptr, cudaIpcMemHandle_t handle, unsigned int flags), ptr,
      handle, flags)
{
    RT_NEED(ptr);
    CUdeviceptr p = 0;
    CUipcMemHandle h;
    memcpy(&h, &handle, sizeof h);
    RT_TRY(rt_err(rt_legacy.cuIpcOpenMemHandle(&p, h, flags)));
    *ptr = (void *)(uintptr_t)p;
    return cudaSuccess;
}

RT_FN(cudaIpcCloseMemHandle, (void *ptr), ptr)
{
    return rt_err(rt_legacy.cuIpcCloseMemHandle(rt_dev(ptr)));
}

RT_FN(cudaIpcGetEventHandle, (cudaIpcEventHandle_t * handle, cudaEvent_t event), handle, event)
{
    RT_NEED(handle);
    return rt_err(rt_legacy.cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

RT_FN(cudaIpcOpenEventHandle, (cudaEvent_t * event, cudaIpcEventHandle_t handle), event, handle)
{
    RT_NEED(event);
    CUipcEventHandle h;
    memcpy(&h, &handle, sizeof h);
    return rt_err(rt_legacy.cuIpcOpenEventHandle(event, h));
}

RT_FN(cudaDeviceFlushGPUDirectRDMAWrites,
      (enum cudaFlushGPUDirectRDMAWritesTarget target,
       enum cudaFlushGPUDirectRDMAWritesScope scope),
      target, scope)
{
    return rt_err(
        rt_legacy.cuFlushGPUDirectRDMAWrites((CUflushGPUDirectRDMAWritesTarget)(int)target,
                                             (CUflushGPUDirectRDMAWritesScope)(int)scope));
}
