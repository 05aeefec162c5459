/* Stream-ordered allocation. cuMemAllocAsync chooses the address and takes the memory when it is
 * called; the free happens when the stream reaches it. Up to its release threshold, 0 by default,
 * the pool keeps the memory then; the rest goes back to the device at once, where a driver may wait
 * for the next synchronization. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CUmemPoolHandle_st {
    sim_device_t *dev;
    bool is_default;
    _Atomic bool alive;
    _Atomic uint64_t threshold, used, high, kept;
    _Atomic int reuse[4]; /* by attribute */
    CUmemoryPool next;
};

static pthread_mutex_t graveyard_mu = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool graveyard; /* destroyed pools */

void sim_pool_init(sim_device_t *d)
{
    CUmemoryPool p = calloc(1, sizeof(*p));
    if (p) {
        p->dev = d;
        p->is_default = true;
        atomic_store(&p->alive, true);
        for (int i = 0; i < 4; i++) {
            atomic_store(&p->reuse[i], 1);
        }
    }
    d->default_pool = p;
    atomic_store(&d->pool, p);
}

static CUresult pool_check(CUmemoryPool p)
{
    return p && atomic_load(&p->alive) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* On a capturing stream: an address now, memory with the graph. The pool only names the device. */
static CUresult alloc_node(CUdeviceptr *dptr, size_t bytes, sim_device_t *d, CUstream s)
{
    sim_op_t op = {.kind = SIM_OP_ALLOC, .u.alloc.bytes = bytes};
    SIM_TRY(sim_heap_graph_reserve(d, s->ctx, bytes, &op.u.alloc.at, &op.u.alloc.id));
    CUresult rc = sim_submit(s, &op, false);
    if (rc != CUDA_SUCCESS) {
        sim_heap_graph_change(d, op.u.alloc.at, op.u.alloc.id, SIM_GRAPH_DISOWNED);
        return rc;
    }
    *dptr = op.u.alloc.at;
    return CUDA_SUCCESS;
}

static CUresult alloc(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream h, bool pt)
{
    CUstream s;
    CUdeviceptr p;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!dptr || bytes == 0) { /* 0 bytes: NULL; h200-580.json, codes_driver/arguments */
        return dptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_opt.no_mempools) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUcontext ctx = s->ctx;
    if (sim_capture_has(s)) {
        return alloc_node(dptr, bytes, pool ? pool->dev : ctx->dev, s);
    }
    SIM_TRY(sim_capture_unsafe());
    sim_device_t *d = pool ? pool->dev : ctx->dev;
    pool = pool ? pool : atomic_load(&d->pool);
    CUresult rc = sim_heap_alloc(d, ctx, bytes, SIM_ASYNC, pool, &p);
    if (rc == CUDA_ERROR_OUT_OF_MEMORY && atomic_load(&d->frees)) {
        sim_wait_device_quietly(d); /* frees that streams have not reached yet return it */
        rc = sim_heap_alloc(d, ctx, bytes, SIM_ASYNC, pool, &p);
    }
    if (rc == CUDA_SUCCESS) {
        *dptr = p;
        sim_race_async_alloc(s, p, bytes);
    }
    return rc;
}

static CUresult alloc_from(CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool, CUstream h, bool pt)
{
    SIM_TRY(pool_check(pool));
    return alloc(dptr, bytes, pool, h, pt);
}

SIM_BOTH_FIRST(cuMemAllocAsync, cuMemAllocAsync_ptsz,
               (CUdeviceptr * dptr, size_t bytesize, CUstream hStream), SIM_EMPTY(dptr),
               alloc(dptr, bytesize, NULL, hStream, pt))
SIM_BOTH_FIRST(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz,
               (CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream),
               SIM_EMPTY(dptr), alloc_from(dptr, bytesize, pool, hStream, pt))

/* Memory of cuMemAlloc may be freed here too (cuda.h, cuMemFreeAsync takes "memory to free"). A
 * second free before the stream reached the first is refused. */
static CUresult free_async(CUdeviceptr dptr, CUstream h, bool pt)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (dptr == 0) { /* h200-580.json, codes_driver/frees */
        return CUDA_SUCCESS;
    }
    sim_device_t *d = sim_device_of(dptr);
    sim_op_t op = {.kind = SIM_OP_FREE, .u.free_ptr = dptr};
    if (sim_capture_has(s)) {
        return sim_submit(s, &op, false);
    }
    if (!d || !sim_heap_update(d, dptr, -1, 1)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult rc = sim_capture_unsafe();
    if (rc != CUDA_SUCCESS) {
        sim_heap_update(d, dptr, -1, 0);
        return rc;
    }
    atomic_fetch_add(&d->frees, 1);
    rc = sim_submit(s, &op, false);
    if (rc != CUDA_SUCCESS) {
        atomic_fetch_sub(&d->frees, 1);
        sim_heap_update(d, dptr, -1, 0);
    }
    return rc;
}

SIM_BOTH(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr dptr, CUstream hStream),
         free_async(dptr, hStream, pt))

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetDefaultMemPool);
    SIM_TRY(sim_device_get(dev, &d));
    SIM_TRY(sim_opt.no_mempools ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS);
    if (!pool_out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pool_out = d->default_pool;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetMemPool);
    SIM_TRY(sim_device_get(dev, &d));
    SIM_TRY(sim_opt.no_mempools ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS);
    if (!pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pool = atomic_load(&d->pool);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceSetMemPool);
    SIM_TRY(sim_device_get(dev, &d));
    SIM_TRY(pool_check(pool));
    if (pool->dev != d) { /* cuda.h: "The memory pool must be local to the specified device" */
        return CUDA_ERROR_INVALID_VALUE;
    }
    atomic_store(&d->pool, pool);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    sim_device_t *d;
    SIM_ENTER(cuMemPoolCreate);
    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE || sim_opt.no_mempools) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    SIM_TRY(sim_device_get(poolProps->location.id, &d));
    CUmemoryPool p = calloc(1, sizeof(*p));
    if (!p) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    p->dev = d;
    atomic_store(&p->alive, true);
    for (int i = 0; i < 4; i++) {
        atomic_store(&p->reuse[i], 1);
    }
    *pool = p;
    return CUDA_SUCCESS;
}

/* cuda.h, cuMemPoolDestroy: the current pool of a device falls back to the default; a device's
 * default pool cannot be destroyed. The struct stays: allocations may still point at it. */
SIM_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER(cuMemPoolDestroy);
    SIM_TRY(pool_check(pool));
    if (pool->is_default) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemoryPool was = pool;
    atomic_compare_exchange_strong(&pool->dev->pool, &was, pool->dev->default_pool);
    atomic_store(&pool->alive, false);
    sim_heap_trim(pool->dev, pool, SIZE_MAX);
    pthread_mutex_lock(&graveyard_mu);
    pool->next = graveyard;
    graveyard = pool;
    pthread_mutex_unlock(&graveyard_mu);
    return CUDA_SUCCESS;
}

/* Unused bytes that it has above `most`. */
static void trim(CUmemoryPool pool, size_t most)
{
    uint64_t has = atomic_load(&pool->used) + atomic_load(&pool->kept);
    if (has > most) {
        sim_heap_trim(pool->dev, pool, has - most);
    }
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    SIM_ENTER(cuMemPoolTrimTo);
    SIM_TRY(pool_check(pool));
    SIM_TRY(sim_capture_unsafe());
    trim(pool, minBytesToKeep);
    return CUDA_SUCCESS;
}

static CUresult attribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value, bool set)
{
    SIM_TRY(pool_check(pool));
    if (!value) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        if (set) {
            atomic_store(&pool->reuse[attr], *(int *)value);
        } else {
            *(int *)value = atomic_load(&pool->reuse[attr]);
        }
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        if (set) {
            atomic_store(&pool->threshold, *(cuuint64_t *)value);
            trim(pool, *(cuuint64_t *)value);
        } else {
            *(cuuint64_t *)value = atomic_load(&pool->threshold);
        }
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (set) { /* "can only be set to zero" */
            if (*(cuuint64_t *)value != 0) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            atomic_store(&pool->high, atomic_load(&pool->used));
        } else {
            *(cuuint64_t *)value = atomic_load(&pool->high);
        }
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        if (!set) {
            bool all = attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
            *(cuuint64_t *)value = atomic_load(&pool->used) + (all ? atomic_load(&pool->kept) : 0);
        }
        return set ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

void sim_pool_count(CUmemoryPool pool, size_t bytes, bool more)
{
    if (!more) {
        atomic_fetch_sub(&pool->used, bytes);
        return;
    }
    uint64_t now = atomic_fetch_add(&pool->used, bytes) + bytes, high = atomic_load(&pool->high);
    while (now > high && !atomic_compare_exchange_weak(&pool->high, &high, now)) {
    }
}

_Atomic uint64_t *sim_pool_kept(CUmemoryPool pool)
{
    return &pool->kept;
}

bool sim_pool_wants(CUmemoryPool pool, size_t bytes)
{
    uint64_t has = atomic_load(&pool->used) + atomic_load(&pool->kept);
    uint64_t threshold = atomic_load(&pool->threshold);
    return atomic_load(&pool->alive) && has <= threshold && bytes <= threshold - has;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolGetAttribute);
    return attribute(pool, attr, value, false);
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolSetAttribute);
    return attribute(pool, attr, value, true);
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    SIM_ENTER(cuMemPoolSetAccess);
    (void)map;
    (void)count; /* every device may touch every byte here */
    return pool_check(pool);
}

/* CUDA 13's forms by location: devices only. */
static CUresult by_location(const CUmemLocation *where, CUmemAllocationType type, sim_device_t **d)
{
    if (!where || type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return where->type == CU_MEM_LOCATION_TYPE_DEVICE ? sim_device_get(where->id, d)
                                                      : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                        CUmemAllocationType type)
{
    sim_device_t *d;
    SIM_ENTER(cuMemGetDefaultMemPool);
    SIM_TRY(by_location(location, type, &d));
    if (!pool_out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pool_out = d->default_pool;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                 CUmemAllocationType type)
{
    sim_device_t *d;
    SIM_ENTER(cuMemGetMemPool);
    SIM_TRY(by_location(location, type, &d));
    if (!pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pool = atomic_load(&d->pool);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                 CUmemoryPool pool)
{
    sim_device_t *d;
    SIM_ENTER(cuMemSetMemPool);
    SIM_TRY(by_location(location, type, &d));
    SIM_TRY(pool_check(pool));
    if (pool->dev != d) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    atomic_store(&d->pool, pool);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool memPool,
                                    CUmemLocation *location)
{
    SIM_ENTER(cuMemPoolGetAccess);
    SIM_TRY(pool_check(memPool));
    if (!flags || !location) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

/* --- memory of graphs ---------------------------------------------------------------------------
 * Nothing is kept beyond what graphs use: both are one. */
SIM_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr,
                                              void *value)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetGraphMemAttribute);
    SIM_TRY(sim_device_get(device, &d));
    if (!value) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attr != CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT &&
        attr != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) {
        fprintf(stderr, "simcuda: high-water marks of graphs are not modelled\n");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *(cuuint64_t *)value = sim_heap_graph_bytes(d);
    return CUDA_SUCCESS;
}
