/* Driver hooks, watching the driver's memory pools; see mempools.h.
 *
 * A release threshold alone changes no meaning, but a program that sets one has chosen the driver's
 * pool and tuned it. A high-water mark that is reset is a counter's, and changes nothing. */
#include "shim/upstream/mempools.h"
#include <stdatomic.h>
#include "base/log.h"
#include "config/options.h"
#include "pool/growth/giving.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/pool_stats.h"
#include "shim/upstream/upstream.h"

#define DEVICES_MAX 256
#define TRIM_BACKOFF 64 /* allocations from one poll of what is in flight to the next */

static _Atomic bool replaced[DEVICES_MAX]; /* another pool is the device's current one */
static _Atomic bool touched[DEVICES_MAX];  /* something was set on the default pool */

/* Allocations until the cache's memory is looked at, from 1; 0: there is none to give back. */
static _Atomic unsigned left_behind[DEVICES_MAX];

enum { NOT_ASKED, HAS_POOLS, HAS_NONE };
static _Atomic char pools[DEVICES_MAX];

static bool has_pools(uint8_t device)
{
    char has = atomic_load_explicit(&pools[device], memory_order_relaxed);
    int supported;
    if (has == NOT_ASKED && ca_driver()->cuDeviceGetAttribute &&
        ca_driver()->cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
                                          device) == CUDA_SUCCESS)
        atomic_store(&pools[device], has = supported ? HAS_POOLS : HAS_NONE);
    return has == HAS_POOLS;
}

bool ca_mempool_served(const ca_context_t *context)
{
    return !context->created &&
           !atomic_load_explicit(&replaced[context->device], memory_order_relaxed) &&
           !atomic_load_explicit(&touched[context->device], memory_order_relaxed) &&
           has_pools(context->device);
}

static bool is_default(CUmemoryPool pool, CUdevice device)
{
    __typeof__(cuDeviceGetDefaultMemPool) *ask = ca_driver()->cuDeviceGetDefaultMemPool;
    CUmemoryPool known;
    return ask && ask(&known, device) == CUDA_SUCCESS && known == pool;
}

CUdevice ca_mempool_device(CUmemoryPool pool)
{
    __typeof__(cuDeviceGetDefaultMemPool) *ask = ca_driver()->cuDeviceGetDefaultMemPool;
    CUmemoryPool known;
    CUresult answer = ask ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    for (CUdevice device = 0; device < DEVICES_MAX && answer != CUDA_ERROR_INVALID_DEVICE;
         device++) {
        answer = ask(&known, device); /* a device without pools may stand before one with them */
        if (answer == CUDA_SUCCESS && known == pool)
            return device;
    }
    return CU_DEVICE_INVALID;
}

size_t ca_mempool_kept(CUmemoryPool pool)
{
    cuuint64_t reserved = 0, used = 0;
    __typeof__(cuMemPoolGetAttribute) *get = ca_driver()->cuMemPoolGetAttribute;
    if (!get || get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS ||
        get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) != CUDA_SUCCESS)
        return 0;
    return reserved > used ? (size_t)(reserved - used) : 0;
}

size_t ca_mempool_trim(CUmemoryPool pool)
{
    __typeof__(cuMemPoolTrimTo) *trim = ca_driver()->cuMemPoolTrimTo;
    size_t before = ca_mempool_kept(pool);
    if (!trim)
        return 0;
    ca_giving_begin();
    bool trimmed = trim(pool, 0) == CUDA_SUCCESS;
    size_t after = trimmed ? ca_mempool_kept(pool) : before;
    ca_giving_end(before > after);
    return before > after ? before - after : 0;
}

static bool chosen(uint8_t device)
{
    return atomic_load_explicit(&replaced[device], memory_order_relaxed) ||
           atomic_load_explicit(&touched[device], memory_order_relaxed);
}

/* Whether some memory of the device is in a stream's order still, or behind other work. */
static bool some_pending(uint8_t device)
{
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c)) {
        ca_arena_stats_t stats = {0};
        if (c->device == device && c->arena)
            ca_arena_stats(c->arena, &stats);
        if (stats.pending_bytes)
            return true;
    }
    return false;
}

static void give_back(uint8_t device)
{
    ca_upstream_trim_device(device, NULL, SIZE_MAX, CA_TRIM_IDLE);
    if (some_pending(device))
        atomic_store(&left_behind[device], TRIM_BACKOFF);
}

void ca_mempool_before_driver(const ca_context_t *context)
{
    unsigned left =
        context ? atomic_load_explicit(&left_behind[context->device], memory_order_relaxed) : 0;
    if (!left || !chosen(context->device))
        return;
    if (atomic_compare_exchange_strong(&left_behind[context->device], &left, left - 1) && left == 1)
        give_back(context->device);
}

void ca_mempool_freed(const ca_context_t *context)
{
    if (chosen(context->device))
        atomic_store(&left_behind[context->device], 1);
}

/* What ended with it is said once for each device. */
static void touch(CUmemoryPool pool, const char *what)
{
    CUdevice device = ca_life_active() ? ca_mempool_device(pool) : CU_DEVICE_INVALID;
    if (device == CU_DEVICE_INVALID || atomic_exchange(&touched[device], true))
        return;
    ca_info("device %d: stream-ordered memory is the driver's from now on: the program set %s of "
            "its default memory pool",
            device, what);
    give_back((uint8_t)device);
}

/* After the driver was asked to make `pool` the current one. */
static void replace(CUdevice device, CUmemoryPool pool, CUresult code)
{
    if (code != CUDA_SUCCESS || !ca_life_active() || device < 0 || device >= DEVICES_MAX)
        return;
    bool others = !is_default(pool, device);
    if (atomic_exchange(&replaced[device], others) == others)
        return;
    ca_info("device %d: stream-ordered memory is %s: the program made %s the current memory pool",
            device, others ? "the driver's for now" : "the cache's again",
            others ? "another pool" : "the default one");
    if (others)
        give_back((uint8_t)device);
}

CA_EXPORT CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CA_REAL(cuDeviceSetMemPool);
    CUresult code = real(device, pool);
    replace(device, pool, code);
    return code;
}

/* "If the location type is CU_MEM_LOCATION_TYPE_DEVICE and the allocation type is
 * CU_MEM_ALLOCATION_TYPE_PINNED, then this API is the equivalent of calling cuDeviceSetMemPool"
 * (cuda.h). */
CA_EXPORT CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                           CUmemoryPool pool)
{
    CA_REAL(cuMemSetMemPool);
    CUresult code = real(location, type, pool);
    if (location && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
        type == CU_MEM_ALLOCATION_TYPE_PINNED)
        replace(location->id, pool, code);
    return code;
}

/* What an attribute is in a message; NULL: it changes nothing. */
static const char *tuned(CUmemPool_attribute attribute)
{
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return NULL;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return "the release threshold";
    default:
        return "an attribute";
    }
}

CA_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                                 void *value)
{
    CA_REAL(cuMemPoolSetAttribute);
    CUresult code = real(pool, attribute, value);
    const char *what = code == CUDA_SUCCESS ? tuned(attribute) : NULL;
    if (what)
        touch(pool, what);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access,
                                              size_t count)
{
    CA_REAL(cuMemPoolSetAccess);
    CUresult code = real(pool, access, count);
    if (code == CUDA_SUCCESS)
        touch(pool, "the access of other devices");
    return code;
}

/* Of what stands for the default pool's memory as much goes back, too. The cache does not tell what
 * of it was stream-ordered: all of it that is live counts, so that no more stays than the driver
 * would keep. */
static void trim_ours(CUmemoryPool pool, size_t keep)
{
    ca_arena_stats_t ours;
    cuuint64_t used = 0;
    CUdevice device = ca_mempool_device(pool);
    __typeof__(cuMemPoolGetAttribute) *get = ca_driver()->cuMemPoolGetAttribute;
    if (device == CU_DEVICE_INVALID)
        return;
    (void)ca_pool_stats_on((unsigned)device, &ours);
    if (get)
        (void)get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &used);
    used += ours.reserved_bytes;
    if (keep == 0 || used > keep)
        ca_upstream_trim_device((uint8_t)device, NULL, keep == 0 ? SIZE_MAX : (size_t)used - keep,
                                CA_TRIM_IDLE);
}

CA_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    CA_REAL(cuMemPoolTrimTo);
    CUresult code = real(pool, keep);
    if (code == CUDA_SUCCESS && ca_life_active() &&
        ca_options.stream_ordered == CA_STREAM_ORDERED_POOL)
        trim_ours(pool, keep);
    return code;
}
