/*
 * Stream-ordered memory and its pools. cudaMemPoolProps, cudaMemAccessDesc and cudaMemLocation have
 * the layout of their driver namesakes (asserted below), the attributes their values.
 */
#include "rt.h"

_Static_assert(sizeof(struct cudaMemPoolProps) == sizeof(CUmemPoolProps), "pool properties");
_Static_assert(offsetof(struct cudaMemPoolProps, maxSize) == offsetof(CUmemPoolProps, maxSize),
               "pool properties");
_Static_assert(sizeof(struct cudaMemAccessDesc) == sizeof(CUmemAccessDesc), "access descriptor");
_Static_assert(sizeof(struct cudaMemLocation) == sizeof(CUmemLocation), "location");
_Static_assert((int)cudaMemPoolAttrUsedMemHigh == (int)CU_MEMPOOL_ATTR_USED_MEM_HIGH, "attributes");

RT_TWIN(cudaMallocAsync, _ptsz, (void **out, size_t bytes, cudaStream_t stream), out, bytes, stream)
{
    RT_NEED(out);
    CUdeviceptr p = 0;
    cudaError_t e = bytes == 0 ? cudaSuccess : rt_err(drv->cuMemAllocAsync(&p, bytes, stream));
    *out = (void *)(uintptr_t)p;
    return e;
}

RT_TWIN(cudaFreeAsync, _ptsz, (void *ptr, cudaStream_t stream), ptr, stream)
{
    return ptr == NULL ? cudaSuccess : rt_err(drv->cuMemFreeAsync(rt_dev(ptr), stream));
}

RT_TWIN(cudaMallocFromPoolAsync, _ptsz,
        (void **out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), out, bytes, pool,
        stream)
{
    RT_NEED(out);
    CUdeviceptr p = 0;
    cudaError_t e = cudaSuccess;
    if (bytes != 0)
        e = rt_err(drv->cuMemAllocFromPoolAsync(&p, bytes, pool, stream));
    *out = (void *)(uintptr_t)p;
    return e;
}

RT_FN(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), pool, keep)
{
    return rt_err(rt_legacy.cuMemPoolTrimTo(pool, keep));
}

RT_FN(cudaMemPoolSetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value), pool,
      attr, value)
{
    RT_NEED(value);
    return rt_err(rt_legacy.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)(int)attr, value));
}

RT_FN(cudaMemPoolGetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value), pool,
      attr, value)
{
    RT_NEED(value);
    return rt_err(rt_legacy.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)(int)attr, value));
}

RT_FN(cudaMemPoolSetAccess,
      (cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count), pool, list, count)
{
    return rt_err(rt_legacy.cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)list, count));
}

RT_FN(cudaMemPoolGetAccess,
      (enum cudaMemAccessFlags * flags, cudaMemPool_t pool, struct cudaMemLocation *where), flags,
      pool, where)
{
    RT_NEED(flags);
    RT_NEED(where);
    return rt_err(
        rt_legacy.cuMemPoolGetAccess((CUmemAccess_flags *)flags, pool, (CUmemLocation *)where));
}

RT_FN(cudaMemPoolCreate, (cudaMemPool_t * pool, const struct cudaMemPoolProps *props), pool, props)
{
    RT_NEED(pool);
    RT_NEED(props);
    return rt_err(rt_legacy.cuMemPoolCreate(pool, (const CUmemPoolProps *)props));
}

RT_FN(cudaMemPoolDestroy, (cudaMemPool_t pool), pool)
{
    return rt_err(rt_legacy.cuMemPoolDestroy(pool));
}

RT_FN(cudaMemPoolExportToShareableHandle,
      (void *handle, cudaMemPool_t pool, enum cudaMemAllocationHandleType type, unsigned int flags),
      handle, pool, type, flags)
{
    RT_NEED(handle);
    return rt_err(rt_legacy.cuMemPoolExportToShareableHandle(
        handle, pool, (CUmemAllocationHandleType)(int)type, flags));
}

RT_FN(cudaMemPoolImportFromShareableHandle,
      (cudaMemPool_t * pool, void *handle, enum cudaMemAllocationHandleType type,
       unsigned int flags),
      pool, handle, type, flags)
{
    RT_NEED(pool);
    return rt_err(rt_legacy.cuMemPoolImportFromShareableHandle(
        pool, handle, (CUmemAllocationHandleType)(int)type, flags));
}

RT_FN(cudaMemPoolExportPointer, (struct cudaMemPoolPtrExportData * data, void *ptr), data, ptr)
{
    RT_NEED(data);
    return rt_err(rt_legacy.cuMemPoolExportPointer((CUmemPoolPtrExportData *)data, rt_dev(ptr)));
}

RT_FN(cudaMemPoolImportPointer,
      (void **ptr, cudaMemPool_t pool, struct cudaMemPoolPtrExportData *data), ptr, pool, data)
{
    RT_NEED(ptr);
    RT_NEED(data);
    CUdeviceptr p = 0;
    RT_TRY(rt_err(rt_legacy.cuMemPoolImportPointer(&p, pool, (CUmemPoolPtrExportData *)data)));
    *ptr = (void *)(uintptr_t)p;
    return cudaSuccess;
}

/* --- which pool a device uses ----------------------------------------------------------------- */

RT_FN_UNBOUND(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device), pool, device)
{
    RT_NEED(pool);
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuDeviceGetDefaultMemPool(pool, device));
}

RT_FN_UNBOUND(cudaDeviceGetMemPool, (cudaMemPool_t * pool, int device), pool, device)
{
    RT_NEED(pool);
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuDeviceGetMemPool(pool, device));
}

RT_FN_UNBOUND(cudaDeviceSetMemPool, (int device, cudaMemPool_t pool), device, pool)
{
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuDeviceSetMemPool(device, pool));
}

RT_FN(cudaMemGetDefaultMemPool,
      (cudaMemPool_t * pool, struct cudaMemLocation *where, enum cudaMemAllocationType type), pool,
      where, type)
{
    RT_NEED(pool);
    RT_NEED(where);
    return rt_err(rt_legacy.cuMemGetDefaultMemPool(pool, (CUmemLocation *)where,
                                                   (CUmemAllocationType)(int)type));
}

RT_FN(cudaMemGetMemPool,
      (cudaMemPool_t * pool, struct cudaMemLocation *where, enum cudaMemAllocationType type), pool,
      where, type)
{
    RT_NEED(pool);
    RT_NEED(where);
    return rt_err(
        rt_legacy.cuMemGetMemPool(pool, (CUmemLocation *)where, (CUmemAllocationType)(int)type));
}

RT_FN(cudaMemSetMemPool,
      (struct cudaMemLocation * where, enum cudaMemAllocationType type, cudaMemPool_t pool), where,
      type, pool)
{
    RT_NEED(where);
    return rt_err(
        rt_legacy.cuMemSetMemPool((CUmemLocation *)where, (CUmemAllocationType)(int)type, pool));
}

/* --- the memory of graphs --------------------------------------------------------------------- */

RT_FN(cudaDeviceGraphMemTrim, (int device), device)
{
    return rt_err(rt_legacy.cuDeviceGraphMemTrim(device));
}

RT_FN(cudaDeviceGetGraphMemAttribute,
      (int device, enum cudaGraphMemAttributeType attr, void *value), device, attr, value)
{
    return rt_err(
        rt_legacy.cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)(int)attr, value));
}

RT_FN(cudaDeviceSetGraphMemAttribute,
      (int device, enum cudaGraphMemAttributeType attr, void *value), device, attr, value)
{
    return rt_err(
        rt_legacy.cuDeviceSetGraphMemAttribute(device, (CUgraphMem_attribute)(int)attr, value));
}
