/* See pages.h. All calls go to the driver itself, past the wrappers, which track what the program
 * makes and maps.
 *
 * Whether a device supports pages is found out by a trial, once: attributes promise what some
 * drivers then refuse. One page is made, mapped, made accessible and unmapped, with the flag that
 * other devices on the bus may reach it and as one that other processes may open, then without the
 * flag, then without either. Any error of the last trial means that the device has no pages. */
#include "shim/upstream/pages.h"
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include "base/history.h"
#include "base/log.h"
#include "base/mutation.h"
#include "pool/range/range.h"
#include "registry/table/registry.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/expandable.h"
#include "shim/upstream/upstream.h"

#define DEVICES 256

typedef enum { UNKNOWN, NONE, PLAIN, SHAREABLE, RDMA } kind_t;

/* By device: the granularity of its pages, and how they are made. */
static struct {
    _Atomic int kind;
    _Atomic size_t unit;
} known[DEVICES];

static CUmemAllocationProp prop_of(unsigned device, kind_t kind)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.requestedHandleTypes =
        kind >= SHAREABLE ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = (int)device;
    prop.allocFlags.gpuDirectRDMACapable = kind == RDMA;
    return prop;
}

static bool has_functions(const ca_driver_t *driver)
{
    return driver->cuMemAddressReserve && driver->cuMemAddressFree && driver->cuMemCreate &&
           driver->cuMemRelease && driver->cuMemMap && driver->cuMemUnmap &&
           driver->cuMemSetAccess && driver->cuMemGetAllocationGranularity;
}

static CUmemAccessDesc access_of(unsigned device)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

static CUresult let_in(unsigned device, CUdeviceptr at, size_t bytes)
{
    CUmemAccessDesc access = access_of(device);
    return ca_driver()->cuMemSetAccess(at, bytes, &access, 1);
}

/* The word of `open_to` in a context that has the device's bit. */
static _Atomic uint64_t *word_of(ca_context_t *context, unsigned device)
{
    return &context->open_to[device / 64];
}

static uint64_t bit_of(unsigned device)
{
    return UINT64_C(1) << device % 64;
}

/* Makes memory accessible to the context's own device and to all peers that are known now. */
static CUresult let_all_in(ca_context_t *context, CUdeviceptr at, size_t bytes)
{
    CUmemAccessDesc access[DEVICES];
    size_t count = 0;
    access[count++] = access_of(context->device);
    for (unsigned device = 0; device < DEVICES && !CA_MUTATED(peer_unmapped); device++)
        if (atomic_load(word_of(context, device)) & bit_of(device))
            access[count++] = access_of(device);
    return ca_driver()->cuMemSetAccess(at, bytes, access, count);
}

/* The context has been entered. */
static CUresult try_page(unsigned device, kind_t kind, size_t *unit)
{
    const ca_driver_t *driver = ca_driver();
    CUmemAllocationProp prop = prop_of(device, kind);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t least = 0, better = 0;
    CUresult code =
        driver->cuMemGetAllocationGranularity(&least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (code == CUDA_SUCCESS)
        code = driver->cuMemGetAllocationGranularity(&better, &prop,
                                                     CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (code != CUDA_SUCCESS)
        return code;
    *unit = better > least ? better : least;
    if (*unit == 0 || *unit & (*unit - 1))
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((code = driver->cuMemAddressReserve(&at, *unit, 0, 0, 0)) != CUDA_SUCCESS)
        return code;
    if ((code = driver->cuMemCreate(&handle, *unit, &prop, 0)) == CUDA_SUCCESS) {
        code = driver->cuMemMap(at, *unit, 0, handle, 0);
        if (code == CUDA_SUCCESS) {
            code = let_in(device, at, *unit);
            CUresult unmapped = driver->cuMemUnmap(at, *unit);
            code = code == CUDA_SUCCESS ? unmapped : code;
        }
        CUresult released = driver->cuMemRelease(handle);
        code = code == CUDA_SUCCESS ? released : code;
    }
    CUresult freed = driver->cuMemAddressFree(at, *unit);
    return code == CUDA_SUCCESS ? freed : code;
}

static kind_t find_out(const ca_context_t *context, size_t *unit)
{
    const ca_driver_t *driver = ca_driver();
    unsigned device = context->device;
    int can = 0, rdma = 0;
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;
    if (has_functions(driver) && driver->cuDeviceGetAttribute &&
        driver->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                     (CUdevice)device) == CUDA_SUCCESS &&
        can) {
        if (driver->cuDeviceGetAttribute(
                &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                (CUdevice)device) != CUDA_SUCCESS)
            rdma = 0;
        for (kind_t kind = rdma ? RDMA : SHAREABLE; kind > NONE; kind--)
            if ((code = try_page(device, kind, unit)) == CUDA_SUCCESS)
                return kind;
    }
    ca_info("expandable_segments: device %u cannot (error %d); segments are as without", device,
            (int)code);
    return NONE;
}

static size_t unit(void *arg)
{
    const ca_context_t *context = arg;
    unsigned device = context->device;
    ca_entered_t entered;
    size_t bytes = 0;
    if (atomic_load(&known[device].kind) != UNKNOWN)
        return atomic_load(&known[device].unit);
    if (ca_upstream_enter(arg, &entered) != CUDA_SUCCESS)
        return 0;
    kind_t kind = find_out(context, &bytes);
    ca_upstream_leave(&entered);
    atomic_store(&known[device].unit, kind == NONE ? 0 : bytes);
    atomic_store(&known[device].kind, (int)kind);
    return kind == NONE ? 0 : bytes;
}

static int reserve(void *arg, size_t bytes, uint64_t *at)
{
    ca_entered_t entered;
    CUdeviceptr pointer = 0;
    CUresult code = ca_upstream_enter(arg, &entered);
    if (code == CUDA_SUCCESS) {
        code = ca_driver()->cuMemAddressReserve(&pointer, bytes, 0, 0, 0);
        ca_upstream_leave(&entered);
    }
    *at = pointer;
    return ca_upstream_result(arg, code);
}

static int make(void *arg, size_t bytes, uint64_t *handle)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    CUmemGenericAllocationHandle made = 0;
    CUmemAllocationProp prop = prop_of(context->device, atomic_load(&known[context->device].kind));
    if (!ca_expandable_may_grow())
        return -EINVAL;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        code = ca_driver()->cuMemCreate(&made, bytes, &prop, 0);
        ca_upstream_leave(&entered);
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        ca_upstream_share_free(context, 0);
    *handle = made;
    return ca_upstream_result(context, code);
}

/* Memory that belongs to the process is released with a context or without. */
static CUresult enter_or_not(ca_context_t *context, ca_entered_t *entered, bool *inside)
{
    CUresult code = ca_upstream_enter(context, entered);
    *inside = code == CUDA_SUCCESS;
    return code == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_SUCCESS : code;
}

static void unreserve(void *arg, uint64_t at, size_t bytes)
{
    ca_entered_t entered;
    bool inside;
    (void)enter_or_not(arg, &entered, &inside);
    if (ca_driver()->cuMemAddressFree(at, bytes) != CUDA_SUCCESS)
        ca_driver()->cuMemAddressFree(at, bytes); /* nothing else frees it */
    if (inside)
        ca_upstream_leave(&entered);
}

static void drop(void *arg, uint64_t handle)
{
    ca_entered_t entered;
    bool inside;
    (void)enter_or_not(arg, &entered, &inside);
    if (ca_driver()->cuMemRelease(handle) != CUDA_SUCCESS)
        ca_driver()->cuMemRelease(handle); /* nothing else frees it */
    if (inside)
        ca_upstream_leave(&entered);
}

static CUresult unmap_entered(uint64_t at, size_t bytes)
{
    CUresult code = ca_driver()->cuMemUnmap(at, bytes);
    /* Once more: nothing else unmaps it. */
    return code == CUDA_SUCCESS || ca_upstream_is_sticky(code) ? code
                                                               : ca_driver()->cuMemUnmap(at, bytes);
}

static int map(void *arg, uint64_t at, const ca_page_t *pages, size_t count)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    size_t bytes = 0;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return ca_upstream_result(context, code);
    for (size_t i = 0; i < count && code == CUDA_SUCCESS; i++) {
        code = ca_driver()->cuMemMap(at + bytes, pages[i].bytes, 0, pages[i].handle, 0);
        bytes += code == CUDA_SUCCESS ? pages[i].bytes : 0;
    }
    if (code == CUDA_SUCCESS)
        code = let_all_in(context, at, bytes);
    if (code != CUDA_SUCCESS && bytes)
        (void)unmap_entered(at, bytes);
    ca_upstream_leave(&entered);
    if (code == CUDA_SUCCESS)
        ca_history_note(.event = CA_EVENT_SEGMENT, .address = at, .bytes = bytes,
                        .device = context->device, .kind = CA_KIND_DEVICE);
    return ca_upstream_result(context, code);
}

static int unmap(void *arg, uint64_t at, size_t bytes)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    bool inside;
    CUresult code = enter_or_not(context, &entered, &inside);
    if (code != CUDA_SUCCESS)
        return ca_upstream_result(context, code);
    ca_history_note(.event = CA_EVENT_TRIM, .address = at, .bytes = bytes,
                    .device = context->device, .kind = CA_KIND_DEVICE);
    code = unmap_entered(at, bytes);
    if (inside)
        ca_upstream_leave(&entered);
    return ca_upstream_result(context, code);
}

typedef struct opening {
    unsigned device;
    CUresult code;
} opening_t;

/* A page that is being mapped may be mapped already, or not yet: then its access is set after this,
 * for every peer. */
static int open_row(void *arg, uint64_t at, size_t bytes, bool sure)
{
    opening_t *opening = arg;
    CUresult code = let_in(opening->device, at, bytes);
    if (sure)
        opening->code = code;
    return sure && code != CUDA_SUCCESS;
}

CUresult ca_pages_open_to(ca_context_t *context, CUdevice device)
{
    opening_t opening = {(unsigned)device, CUDA_SUCCESS};
    ca_entered_t entered;
    if (device < 0 || device >= DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device == context->device)
        return CUDA_SUCCESS;
    atomic_fetch_or(word_of(context, opening.device), bit_of(opening.device));
    if (CA_MUTATED(peer_unmapped))
        return CUDA_SUCCESS;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    int rc = context->arena ? ca_range_walk(context->arena, open_row, &opening) : 0;
    ca_upstream_leave(&entered);
    if (rc != 0 && opening.code == CUDA_SUCCESS)
        opening.code = CUDA_ERROR_OUT_OF_MEMORY;
    if (opening.code != CUDA_SUCCESS)
        atomic_fetch_and(word_of(context, opening.device), ~bit_of(opening.device));
    return opening.code;
}

void ca_pages_reset_after_fork(void)
{
    for (unsigned i = 0; i < DEVICES; i++)
        atomic_store(&known[i].kind, UNKNOWN);
}

const ca_pages_t ca_pages_cuda = {
    .unit = unit,
    .reserve = reserve,
    .unreserve = unreserve,
    .make = make,
    .drop = drop,
    .map = map,
    .unmap = unmap,
};
