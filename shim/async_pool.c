/* See async_pool.h. */
#include "shim/async_pool.h"
#include <errno.h>
#include "config/counters.h"
#include "shim/driver_table.h"
#include "shim/mempools.h"
#include "shim/upstream.h"

bool ca_async_pool_possible(void)
{
    const ca_driver_t *driver = ca_driver();
    return driver->cuMemPoolCreate && driver->cuMemPoolDestroy && driver->cuMemPoolSetAttribute &&
           driver->cuMemAllocFromPoolAsync && driver->cuMemFreeAsync && driver->cuCtxRecordEvent &&
           driver->cuStreamCreate && driver->cuStreamDestroy_v2 && driver->cuStreamSynchronize &&
           driver->cuStreamWaitEvent && driver->cuEventCreate && driver->cuEventQuery;
}

/* With internal dependencies an allocation would be made to wait for work that is still running. */
static CUresult make_pool(const ca_driver_t *driver, CUdevice device, CUmemoryPool *pool)
{
    cuuint64_t keep_all = UINT64_MAX;
    int no = 0;
    CUmemPoolProps properties = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    CUresult code = driver->cuMemPoolCreate(pool, &properties);
    if (code != CUDA_SUCCESS)
        return code;
    code = driver->cuMemPoolSetAttribute(*pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                                         &no);
    if (code == CUDA_SUCCESS)
        code = driver->cuMemPoolSetAttribute(*pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all);
    if (code != CUDA_SUCCESS)
        driver->cuMemPoolDestroy(*pool);
    return code;
}

/* A driver may have a function and not support it: a free goes all its way once. */
static int try_out(ca_context_t *context, const ca_async_pool_t *made)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    const ca_driver_t *driver = ca_driver();
    CUdeviceptr probe;
    void *fence;
    CUresult code = driver->cuMemAllocFromPoolAsync(&probe, 1, made->pool, made->allocs);
    if (code != CUDA_SUCCESS)
        return code == CUDA_ERROR_OUT_OF_MEMORY ? 0 : -1;
    int rc = driver->cuStreamSynchronize(made->allocs) == CUDA_SUCCESS &&
                     driver->cuMemFreeAsync(probe, made->allocs) == CUDA_SUCCESS
                 ? 1
                 : -1;
    if (rc < 0)
        driver->cuMemFree_v2(probe);
    int recorded = rc > 0 ? ca_upstream_fence_record(cuda, context, true, &fence) : -EAGAIN;
    if (recorded != 0)
        return rc > 0 && recorded == -EAGAIN ? 0 : -1;
    int joined = ca_upstream_fence_join(cuda, context, made->frees, fence);
    if (joined != 0)
        rc = joined == -EAGAIN ? 0 : -1;
    ca_upstream_fence_release(cuda, context, fence);
    return rc;
}

int ca_async_pool_make(ca_context_t *context, ca_async_pool_t *pool)
{
    const ca_driver_t *driver = ca_driver();
    *pool = (ca_async_pool_t){0};
    if (make_pool(driver, context->device, &pool->pool) != CUDA_SUCCESS)
        pool->pool = NULL;
    if (!pool->pool ||
        driver->cuStreamCreate(&pool->allocs, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        pool->allocs = NULL;
    if (!pool->allocs ||
        driver->cuStreamCreate(&pool->frees, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        pool->frees = NULL;
    return pool->frees ? try_out(context, pool) : -1;
}

void ca_async_pool_destroy(ca_async_pool_t *pool)
{
    const ca_driver_t *driver = ca_driver();
    if (pool->frees)
        driver->cuStreamDestroy_v2(pool->frees);
    if (pool->allocs)
        driver->cuStreamDestroy_v2(pool->allocs);
    if (pool->pool)
        driver->cuMemPoolDestroy(pool->pool);
}

CUresult ca_async_pool_alloc(const ca_async_pool_t *pool, CUdeviceptr *address, size_t bytes)
{
    const ca_driver_t *driver = ca_driver();
    ca_count(upstream_allocs);
    CUresult code = driver->cuMemAllocFromPoolAsync(address, bytes, pool->pool, pool->allocs);
    if (code != CUDA_SUCCESS)
        return code;
    code = driver->cuStreamSynchronize(pool->allocs);
    if (code != CUDA_SUCCESS)
        driver->cuMemFreeAsync(*address, pool->allocs);
    return code;
}

size_t ca_async_pool_room(ca_context_t *context, const ca_async_pool_t *pool)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    size_t free = SIZE_MAX, total;
    if (!driver->cuMemGetInfo_v2 || ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return SIZE_MAX;
    bool known = driver->cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS;
    if (known)
        free += ca_mempool_kept(pool->pool);
    ca_upstream_leave(&entered);
    return known ? free : SIZE_MAX;
}
