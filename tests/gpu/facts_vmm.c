/*
 * Virtual memory: what the device has of it, which ranges calls take, what is known of a pointer
 * into it, and whether copies and sets take memory that consists of several handles.
 */
#include "facts_vmm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

vmm_t vmm;

/* --- what each fact begins with ----------------------------------------------------------------
 */

int vmm_attribute(CUdevice_attribute what)
{
    int value = -1;

    return cuDeviceGetAttribute(&value, what, 0) == CUDA_SUCCESS ? value : -1;
}

bool vmm_ready_in(CUcontext ctx)
{
    size_t least = 0, advised = 0;

    vmm.ctx = ctx;
    vmm.prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    if (vmm_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 1) {
        row_note("this device has no virtual memory management");
        return false;
    }
    cuMemGetAllocationGranularity(&least, &vmm.prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    cuMemGetAllocationGranularity(&advised, &vmm.prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    vmm.unit = advised > least ? advised : least;
    if (vmm.unit == 0 || cuStreamCreate(&vmm.stream, CU_STREAM_NON_BLOCKING) ||
        cuStreamCreate(&vmm.other, CU_STREAM_NON_BLOCKING)) {
        row_note("no granularity, or no streams");
        return false;
    }
    return true;
}

bool vmm_ready(void)
{
    return vmm_ready_in(use_primary());
}

CUresult vmm_reserve(CUdeviceptr *at, size_t bytes)
{
    return cuMemAddressReserve(at, bytes, 0, 0, 0);
}

CUresult vmm_create(CUmemGenericAllocationHandle *handle, size_t bytes)
{
    return cuMemCreate(handle, bytes, &vmm.prop, 0);
}

CUresult vmm_grant(CUdeviceptr at, size_t bytes, int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc one = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                           .flags = flags};

    return cuMemSetAccess(at, bytes, &one, 1);
}

CUresult vmm_open(CUdeviceptr at, size_t bytes)
{
    return vmm_grant(at, bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

CUresult vmm_put(CUdeviceptr at, size_t bytes, size_t each)
{
    CUmemGenericAllocationHandle handle;
    CUresult r = CUDA_SUCCESS;

    for (size_t done = 0; !r && done < bytes; done += each) {
        if ((r = vmm_create(&handle, each)))
            break;
        r = cuMemMap(at + done, each, 0, handle, 0);
        cuMemRelease(handle);
    }
    return r ? r : vmm_open(at, bytes);
}

CUdeviceptr vmm_pair(size_t spare)
{
    CUdeviceptr at = 0;
    CUresult r = vmm_reserve(&at, (2 + spare) * vmm.unit);

    if (!r)
        r = vmm_put(at, 2 * vmm.unit, vmm.unit);
    if (r)
        row_call("two handles", "to begin with", r);
    return r ? 0 : at;
}

void row_answer(const char *question, long long answer)
{
    row_begin();
    row_str("question", question);
    row_int("answer", answer);
    row_end();
}

void row_call(const char *call, const char *when, CUresult code)
{
    row_begin();
    row_str("call", call);
    row_str("when", when);
    row_drv("code", code);
    row_end();
}

/* --- the device --------------------------------------------------------------------------------
 */

static void granularity(const char *name, const CUmemAllocationProp *prop)
{
    char question[100];
    size_t bytes = 0;
    CUresult r;

    for (int advised = 0; advised < 2; advised++) {
        r = cuMemGetAllocationGranularity(&bytes, prop,
                                          advised ? CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
                                                  : CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        snprintf(question, sizeof question, "%s granularity, %s",
                 advised ? "recommended" : "minimum", name);
        if (r)
            row_call("cuMemGetAllocationGranularity", question, r);
        else
            row_answer(question, (long long)bytes);
    }
}

/* Made, mapped, accessed and used, with properties that not every device has. */
static void try_with(const char *name, const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    CUresult r = vmm_reserve(&at, vmm.unit);

    if (!r)
        row_call("cuMemCreate", name, r = cuMemCreate(&handle, vmm.unit, prop, 0));
    if (!r)
        row_call("cuMemMap", name, r = cuMemMap(at, vmm.unit, 0, handle, 0));
    if (!r)
        row_call("cuMemSetAccess", name, r = vmm_open(at, vmm.unit));
    if (!r && !(r = cuMemsetD8(at, 1, vmm.unit)))
        row_call("cuMemsetD8", name, cuCtxSynchronize());
}

void fact_vmm_device(const char *arg)
{
    static const struct {
        const char *name;
        CUdevice_attribute what;
    } attributes[] = {
        {"attribute 103, file descriptors",
         CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
        {"attribute 110, RDMA", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
        {"attribute 124, dma-buf", (CUdevice_attribute)124},
    };
    static const size_t reserved[] = {1 << 10, 32 << 10, 256 << 10}; /* MiB */
    CUmemAllocationProp prop;
    CUdeviceptr at;
    char question[100];

    (void)arg;
    use_primary();
    row_answer("attribute 102, virtual memory management",
               vmm_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    if (!vmm_ready())
        return;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        row_answer(attributes[i].name, vmm_attribute(attributes[i].what));
    granularity("plain", &vmm.prop);
    try_with("plain", &vmm.prop);
    prop = vmm.prop;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    granularity("file descriptors", &prop);
    try_with("file descriptors", &prop);
    prop = vmm.prop;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    granularity("for RDMA", &prop);
    try_with("for RDMA", &prop);
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        snprintf(question, sizeof question, "%zu GiB", reserved[i] >> 10);
        CUresult r = vmm_reserve(&at, reserved[i] * MIB);
        row_call("cuMemAddressReserve", question, r);
        if (!r)
            cuMemAddressFree(at, reserved[i] * MIB);
    }
}

/* --- ranges ------------------------------------------------------------------------------------
 */

/* Undone where it succeeds, so that the next one finds the same. */
static void try_map(const char *when, CUdeviceptr at, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle)
{
    CUresult r = cuMemMap(at, bytes, offset, handle, 0);

    row_call("cuMemMap", when, r);
    if (!r)
        cuMemUnmap(at, bytes);
}

void fact_vmm_ranges(const char *arg)
{
    CUmemGenericAllocationHandle two;
    unsigned long long flags = 0;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    size_t unit;
    CUdeviceptr at, more;

    (void)arg;
    if (!vmm_ready() || !(at = vmm_pair(6)))
        return;
    unit = vmm.unit;
    /* at: two mappings, a gap of one unit, one mapping of two units, a gap of three */
    if (vmm_create(&two, 2 * unit))
        return;
    try_map("half of a handle", at + 3 * unit, unit, 0, two);
    try_map("from an offset on", at + 3 * unit, unit, unit, two);
    try_map("over what is mapped", at + unit, 2 * unit, 0, two);
    try_map("over the end of the addresses", at + 7 * unit, 2 * unit, 0, two);
    row_call("cuMemMap", "a whole handle", cuMemMap(at + 3 * unit, 2 * unit, 0, two, 0));
    cuMemGetAccess(&flags, &device, at + 3 * unit);
    row_answer("access of what is mapped, before it is given", (long long)flags);
    row_call("cuMemSetAccess", "over a gap", vmm_open(at, 5 * unit));
    row_call("cuMemSetAccess", "over the end of a mapping", vmm_open(at + 3 * unit, 3 * unit));
    row_call("cuMemSetAccess", "half of a mapping", vmm_open(at + 3 * unit, unit));
    row_call("cuMemSetAccess", "one mapping", vmm_open(at + 3 * unit, 2 * unit));
    row_call("cuMemSetAccess", "two mappings, again", vmm_open(at, 2 * unit));
    row_call("cuMemMap", "a second time elsewhere",
             vmm_reserve(&more, 2 * unit) ? CUDA_ERROR_NOT_FOUND
                                          : cuMemMap(more, 2 * unit, 0, two, 0));
    cuMemGetAccess(&flags, &device, more);
    row_answer("access of its second mapping, before it is given", (long long)flags);
    row_call("cuMemRelease", "while it is mapped", cuMemRelease(two));
    row_call("cuMemAddressFree", "while something is mapped", cuMemAddressFree(at, 8 * unit));
    row_call("cuMemAddressFree", "half of the addresses", cuMemAddressFree(at, 4 * unit));
    row_call("cuMemUnmap", "half of a mapping", cuMemUnmap(at + 3 * unit, unit));
    row_call("cuMemUnmap", "nothing there", cuMemUnmap(at + 5 * unit, unit));
    row_call("cuMemUnmap", "over a gap", cuMemUnmap(at, 5 * unit));
    row_call("cuMemUnmap", "two mappings", cuMemUnmap(at, 2 * unit));
    row_call("cuMemUnmap", "one mapping", cuMemUnmap(at + 3 * unit, 2 * unit));
    row_call("cuMemUnmap", "the last one of a released handle", cuMemUnmap(more, 2 * unit));
    row_call("cuMemAddressFree", "nothing is mapped", cuMemAddressFree(at, 8 * unit));
    /* Last: a driver may not live through it. */
    try_map("of a handle that is gone", more, 2 * unit, 0, two);
}

/* --- pointers ----------------------------------------------------------------------------------
 */

/* Of an answer that is an address or a size, how far it is from the first one, in units. */
static void tells(const char *what, CUpointer_attribute attribute, CUdeviceptr at, CUdeviceptr from,
                  size_t unit, const char *pointer)
{
    unsigned long long value = 0; /* the widest of them */
    CUresult r = cuPointerGetAttribute(&value, attribute, at);

    row_begin();
    row_str("call", what);
    row_str("pointer", pointer);
    row_drv("code", r);
    if (!r)
        row_num("answer", ((double)value - (double)from) / (double)unit);
    row_end();
}

static void address_range(CUdeviceptr at, CUdeviceptr from, const char *pointer)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult r = cuMemGetAddressRange(&base, &bytes, at);

    row_begin();
    row_str("call", "cuMemGetAddressRange");
    row_str("pointer", pointer);
    row_drv("code", r);
    if (!r) {
        row_num("begins at unit", ((double)base - (double)from) / (double)vmm.unit);
        row_num("units", (double)bytes / (double)vmm.unit);
    }
    row_end();
}

static void tell_all(CUdeviceptr at, CUdeviceptr from, const char *pointer)
{
    size_t unit = vmm.unit;
    CUcontext ctx = NULL;

    address_range(at, from, pointer);
    tells("RANGE_START_ADDR", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at, from, unit, pointer);
    tells("RANGE_SIZE", CU_POINTER_ATTRIBUTE_RANGE_SIZE, at, 0, unit, pointer);
    tells("MAPPING_BASE_ADDR", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at, from, unit, pointer);
    tells("MAPPING_SIZE", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at, 0, unit, pointer);
    tells("MAPPED", CU_POINTER_ATTRIBUTE_MAPPED, at, 0, 1, pointer);
    tells("MEMORY_TYPE", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, 0, 1, pointer);
    tells("DEVICE_ORDINAL", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at, 0, 1, pointer);
    tells("IS_MANAGED", CU_POINTER_ATTRIBUTE_IS_MANAGED, at, 0, 1, pointer);
    tells("IS_LEGACY_CUDA_IPC_CAPABLE", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at, 0, 1,
          pointer);
    tells("ALLOWED_HANDLE_TYPES", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at, 0, 1, pointer);
    tells("IS_GPU_DIRECT_RDMA_CAPABLE", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, at, 0, 1,
          pointer);
    tells("ACCESS_FLAGS", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at, 0, 1, pointer);
    tells("SYNC_MEMOPS", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at, 0, 1, pointer);
    row_begin();
    row_str("call", "CONTEXT");
    row_str("pointer", pointer);
    row_drv("code", cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    row_bool("of a context", ctx != NULL);
    row_end();
}

typedef CUresult (*range_handle_fn)(void *, CUdeviceptr, size_t, int, unsigned long long);

void fact_vmm_pointers(const char *arg)
{
    range_handle_fn range_handle = (range_handle_fn)driver_entry("cuMemGetHandleForAddressRange");
    CUipcMemHandle ipc;
    cudaIpcMemHandle_t runtime_ipc;
    struct cudaPointerAttributes a;
    unsigned on = 1;
    int fd = -1;
    size_t unit;
    CUdeviceptr at;
    unsigned long long ids[2] = {0, 0};

    (void)arg;
    if (!vmm_ready() || !(at = vmm_pair(1)))
        return;
    unit = vmm.unit;
    tell_all(at, at, "first handle");
    tell_all(at + unit + 4096, at, "inside the second");
    tell_all(at + 2 * unit, at, "nothing mapped");
    cuPointerGetAttribute(&ids[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    cuPointerGetAttribute(&ids[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, at + unit);
    row_answer("two handles have one buffer id", ids[0] == ids[1]);
    row_call("cuPointerSetAttribute of SYNC_MEMOPS", "mapped",
             cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    row_call("cuIpcGetMemHandle", "mapped", cuIpcGetMemHandle(&ipc, at));
    row_begin();
    row_str("call", "cudaIpcGetMemHandle");
    row_str("when", "mapped");
    row_rt("code", cudaIpcGetMemHandle(&runtime_ipc, (void *)(uintptr_t)at));
    row_end();
    row_begin();
    row_str("call", "cudaPointerGetAttributes");
    row_str("when", "mapped");
    row_rt("code", cudaPointerGetAttributes(&a, (void *)(uintptr_t)(at + unit)));
    row_int("type", a.type);
    row_end();
    row_call("dma-buf", "of one handle",
             range_handle ? range_handle(&fd, at, unit, 1, 0) : CUDA_ERROR_NOT_FOUND);
    row_call("dma-buf", "over two handles",
             range_handle ? range_handle(&fd, at, 2 * unit, 1, 0) : CUDA_ERROR_NOT_FOUND);
    row_call("dma-buf", "over what is not mapped",
             range_handle ? range_handle(&fd, at, 3 * unit, 1, 0) : CUDA_ERROR_NOT_FOUND);
    row_call("cuMemFree", "mapped", cuMemFree(at));
    row_call("cuMemFreeAsync", "mapped", cuMemFreeAsync(at, vmm.stream));
}

/* --- copies and sets over two handles ----------------------------------------------------------
 */

enum { SPAN = 4096, EACH = 64 }; /* bytes: half of them on either side */

/* The whole of SPAN has that value, or not; host is pinned. */
static void over_two(const char *call, CUresult r, CUdeviceptr from, uint8_t *host, uint8_t value)
{
    bool right;

    if (!r)
        r = cuStreamSynchronize(vmm.stream);
    memset(host, value + 1, SPAN);
    if (!r)
        r = cuMemcpyDtoH(host, from, SPAN);
    right = host[0] == value && memcmp(host, host + 1, SPAN - 1) == 0;
    row_begin();
    row_str("call", call);
    row_drv("code", r);
    row_bool("the bytes are right", right);
    row_end();
}

static CUresult copy_2d(CUdeviceptr to, const void *host)
{
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = host,
                       .srcPitch = EACH,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = to,
                       .dstPitch = EACH,
                       .WidthInBytes = EACH,
                       .Height = SPAN / EACH};

    return cuMemcpy2DAsync(&c, vmm.stream);
}

static CUresult copy_3d(CUdeviceptr to, CUdeviceptr from)
{
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = from,
                       .srcPitch = EACH,
                       .srcHeight = 4,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = to,
                       .dstPitch = EACH,
                       .dstHeight = 4,
                       .WidthInBytes = EACH,
                       .Height = 4,
                       .Depth = SPAN / EACH / 4};

    return cuMemcpy3DAsync(&c, vmm.stream);
}

static CUresult kernel_over(CUdeviceptr to, uint8_t value)
{
    gate_t *g = gate_marking();

    g->where = to;
    g->bytes = SPAN;
    g->value = value;
    return gate_launch(g, vmm.stream);
}

/* A texture of linear memory. */
static CUresult texture(CUdeviceptr from)
{
    CUtexObject object;
    CUDA_RESOURCE_DESC res = {.resType = CU_RESOURCE_TYPE_LINEAR};
    CUDA_TEXTURE_DESC tex = {.flags = CU_TRSF_READ_AS_INTEGER};
    CUresult r;

    res.res.linear.devPtr = from;
    res.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
    res.res.linear.numChannels = 1;
    res.res.linear.sizeInBytes = SPAN;
    r = cuTexObjectCreate(&object, &res, &tex, NULL);
    return r ? r : cuTexObjectDestroy(object);
}

void fact_vmm_copies(const char *arg)
{
    uint8_t *host;
    void *p;
    CUdeviceptr at, mid, plain;

    (void)arg;
    if (!vmm_ready() || !(at = vmm_pair(0)) || !gates_ready() || cuMemAlloc(&plain, SPAN) ||
        cuMemAllocHost(&p, 2 * SPAN))
        return;
    host = p;
    mid = at + vmm.unit - SPAN / 2;
    memset(host + SPAN, 3, SPAN);
    over_two("cuMemsetD8Async", cuMemsetD8Async(mid, 1, SPAN, vmm.stream), mid, host, 1);
    over_two("cuMemsetD2D8Async", cuMemsetD2D8Async(mid, EACH, 2, EACH, SPAN / EACH, vmm.stream),
             mid, host, 2);
    over_two("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync(mid, host + SPAN, SPAN, vmm.stream), mid, host,
             3);
    over_two("cuMemcpyDtoDAsync, to plain memory", cuMemcpyDtoDAsync(plain, mid, SPAN, vmm.stream),
             plain, host, 3);
    cuMemsetD8(plain, 4, SPAN);
    cuCtxSynchronize();
    over_two("cuMemcpyDtoDAsync, from plain memory",
             cuMemcpyDtoDAsync(mid, plain, SPAN, vmm.stream), mid, host, 4);
    over_two("cuMemcpy2DAsync", copy_2d(mid, host + SPAN), mid, host, 3);
    over_two("cuMemcpy3DAsync", copy_3d(mid, plain), mid, host, 4);
    over_two("kernel", kernel_over(mid, 5), mid, host, 5);
    row_call("cuTexObjectCreate", "over two handles", texture(at + vmm.unit - SPAN / 2));
}
