/* See async_pool.h. */
#include "shim/upstream/async_pool.h"
#include <errno.h>
#include "base/counters.h"
#include "config/options.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/fences.h"
#include "shim/upstream/upstream.h"

bool ca_async_pool_possible(void)
{
    const ca_driver_t *driver = ca_driver();
    return driver->cuMemPoolCreate && driver->cuMemPoolDestroy && driver->cuMemPoolSetAttribute &&
           driver->cuMemAllocFromPoolAsync && driver->cuCtxRecordEvent && driver->cuStreamCreate &&
           driver->cuStreamDestroy_v2 && driver->cuStreamSynchronize && driver->cuEventCreate &&
           driver->cuEventQuery;
}

/* With internal dependencies an allocation would wait for work that is still running. */
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

/* A driver may have a function and not support it: memory is allocated and freed once, by every
 * call. */
static int try_out(ca_context_t *context, const ca_async_pool_t *made)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    const ca_driver_t *driver = ca_driver();
    CUdeviceptr probe;
    void *fence;
    CUresult code = driver->cuMemAllocFromPoolAsync(&probe, 1, made->pool, made->allocs);
    if (code != CUDA_SUCCESS)
        return code == CUDA_ERROR_OUT_OF_MEMORY ? 0 : -1;
    bool passed = driver->cuStreamSynchronize(made->allocs) == CUDA_SUCCESS;
    bool freed = driver->cuMemFree_v2(probe) == CUDA_SUCCESS;
    if (!freed)
        driver->cuMemFree_v2(probe);
    if (!passed || !freed)
        return -1;
    int recorded = ca_upstream_fence_record(cuda, context, true, &fence);
    if (recorded != 0)
        return recorded == -EAGAIN ? 0 : -1;
    ca_upstream_fence_release(cuda, context, fence);
    return 1;
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
    return pool->allocs ? try_out(context, pool) : -1;
}

void ca_async_pool_destroy(ca_async_pool_t *pool)
{
    const ca_driver_t *driver = ca_driver();
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
    if (code != CUDA_SUCCESS) { /* once more: this frees all that was allocated by then */
        driver->cuStreamSynchronize(pool->allocs);
        driver->cuMemFree_v2(*address);
    }
    return code;
}

/* --- the program's own frees in stream order ----------------------------------------------------
 */

static _Atomic unsigned frees, done; /* passed to the driver, and those known to be done */
static _Atomic bool graphs;

void ca_async_pool_note_free(void)
{
    if (ca_options.backend == CA_BACKEND_ASYNC)
        atomic_fetch_add(&frees, 1);
}

void ca_async_pool_note_graph(void)
{
    if (ca_options.backend == CA_BACKEND_ASYNC)
        atomic_store(&graphs, true);
}

/* They are done when all devices are idle. */
bool ca_async_pool_may_wait(ca_context_t *context)
{
    void *fence;
    unsigned seen = atomic_load(&frees);
    if (seen == atomic_load(&done) && !atomic_load(&graphs))
        return false;
    if (ca_fence_record_host(context, true, &fence) != 0)
        return true;
    bool idle = ca_fence_query(context, fence) == 1;
    ca_fence_release(context, fence);
    if (idle)
        atomic_store(&done, seen);
    return !idle;
}

void ca_async_pool_reset_after_fork(void)
{
    atomic_store(&done, atomic_load(&frees));
    atomic_store(&graphs, false);
}
