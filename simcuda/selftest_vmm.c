/* SIM: reserved addresses, physical memory and mappings: codes, access by devices, costs of calls,
 * limits of devices. selftest_places.c checks the bytes. */
#include "selftest_bodies.h"

#include <time.h>

#define MIB ((size_t)1 << 20)
#define UNIT (2 * MIB)

static const CUmemAllocationProp plain = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

static CUmemAllocationProp for_rdma(void)
{
    CUmemAllocationProp prop = plain;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    return prop;
}

static CUmemGenericAllocationHandle create(size_t bytes)
{
    CUmemGenericAllocationHandle handle = 0;
    OK(cuMemCreate(&handle, bytes, &plain, 0));
    return handle;
}

static CUresult grant_to(int device, CUdeviceptr p, size_t bytes)
{
    CUmemAccessDesc d = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(p, bytes, &d, 1);
}

static CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr p = 0;
    OK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    return p;
}

/* n handles of UNIT side by side, which are mapped and nothing else. */
static CUdeviceptr mapped(size_t n)
{
    CUdeviceptr p = reserve(n * UNIT);
    for (size_t i = 0; i < n; i++) {
        CUmemGenericAllocationHandle h = create(UNIT);
        OK(cuMemMap(p + i * UNIT, UNIT, 0, h, 0));
        OK(cuMemRelease(h));
    }
    return p;
}

static simcuda_vmm_t left(void)
{
    simcuda_vmm_t v;
    simcuda_vmm(&v);
    return v;
}

static int attribute_of_device(CUdevice_attribute what)
{
    int value = -1;
    OK(cuDeviceGetAttribute(&value, what, 0));
    return value;
}

static double ms_of(CUresult (*call)(CUdeviceptr p, size_t bytes), CUdeviceptr p, size_t bytes)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    OK(call(p, bytes));
    clock_gettime(CLOCK_MONOTONIC, &to);
    return (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
}

/* --- mapping and unmapping ---------------------------------------------------------------------*/
void a_handle_is_mapped_whole(void)
{
    primary();
    CUdeviceptr p = reserve(4 * UNIT);
    CUmemGenericAllocationHandle h = create(2 * UNIT);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, UNIT, 0, h, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemMap(p, UNIT, UNIT, h, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemMap(p + 3 * UNIT, 2 * UNIT, 0, h, 0));
    OK(cuMemMap(p, 2 * UNIT, 0, h, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemMap(p + UNIT, 2 * UNIT, 0, h, 0));
    OK(cuMemMap(p + 2 * UNIT, 2 * UNIT, 0, h, 0));
    OK(cuMemRelease(h));
}

void whole_mappings_are_unmapped(void)
{
    primary();
    CUdeviceptr p = mapped(4);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, MIB));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p + MIB, UNIT));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, 5 * UNIT));
    CHECK(left().mappings == 4);
    OK(cuMemUnmap(p + UNIT, 2 * UNIT));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(p, 4 * UNIT)); /* over a gap */
    IS(CUDA_ERROR_INVALID_VALUE, grant_to(0, p, 4 * UNIT));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, 4 * UNIT));
    OK(cuMemUnmap(p, UNIT));
    OK(cuMemUnmap(p + 3 * UNIT, UNIT));
    OK(cuMemAddressFree(p, 4 * UNIT));
    CHECK(left().mappings == 0 && left().bytes == 0 && left().reservations == 0);
}

static gate_t begun = GATE;
static int stored;

static void waits_and_stores(void *at)
{
    int value = 1;
    gate_fn(&begun);
    stored = simcuda_store(*(CUdeviceptr *)at, &value, sizeof(value));
}

void unmapping_waits_for_nothing(void)
{
    CUstream s;
    primary();
    CUdeviceptr p = mapped(1);
    OK(grant_to(0, p, UNIT));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    launches(kernel("k", waits_and_stores), &p, s);
    pthread_mutex_lock(&begun.mu);
    while (!begun.reached) {
        pthread_cond_wait(&begun.cv, &begun.mu);
    }
    pthread_mutex_unlock(&begun.mu);
    CHECK(ms_of(cuMemUnmap, p, UNIT) < 1000); /* it returns while the kernel runs */
    gate_open(&begun);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
    CHECK(stored == -1);
}

/* --- access by devices -------------------------------------------------------------------------*/
void enabled_peers_do_not_reach_mapped_memory(void)
{
    CUcontext first = primary(), second;
    CUstream s;
    CUdeviceptr p = mapped(1);
    OK(grant_to(0, p, UNIT));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuCtxEnablePeerAccess(first, 0));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8Async(p, 1, 16, s));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
}

void each_device_is_granted_access(void)
{
    CUcontext second;
    unsigned long long flags = 0;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    primary();
    CUdeviceptr p = mapped(2);
    OK(grant_to(0, p, 2 * UNIT));
    OK(grant_to(1, p, UNIT));
    OK(cuMemGetAccess(&flags, &device, p));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemGetAccess(&flags, &device, p + UNIT));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemsetD8(p, 1, UNIT));
    OK(cuCtxSynchronize());
    OK(cuMemsetD8(p, 1, UNIT + 1));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* --- queries about pointers --------------------------------------------------------------------*/
#define ATTRIBUTE(type, what, at)                                                                  \
    ({                                                                                             \
        type answer_ = (type)-1;                                                                   \
        OK(cuPointerGetAttribute(&answer_, CU_POINTER_ATTRIBUTE_##what, at));                      \
        answer_;                                                                                   \
    })

void mapped_memory_has_its_attributes(void)
{
    CUmemAllocationProp prop = for_rdma();
    CUmemGenericAllocationHandle h;
    CUipcMemHandle ipc;
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned on = 1;
    primary();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUdeviceptr p = mapped(2), q = reserve(UNIT);
    OK(grant_to(0, p, UNIT));
    OK(cuMemCreate(&h, UNIT, &prop, 0));
    OK(cuMemMap(q, UNIT, 0, h, 0));
    CUdeviceptr at = p + UNIT + 100;
    CHECK(ATTRIBUTE(unsigned, IS_LEGACY_CUDA_IPC_CAPABLE, at) == 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, p));
    CHECK(ATTRIBUTE(CUdeviceptr, RANGE_START_ADDR, at) == p);
    CHECK(ATTRIBUTE(size_t, RANGE_SIZE, at) == 2 * UNIT);
    CHECK(ATTRIBUTE(CUdeviceptr, MAPPING_BASE_ADDR, at) == p + UNIT);
    CHECK(ATTRIBUTE(size_t, MAPPING_SIZE, at) == UNIT);
    OK(cuMemGetAddressRange(&base, &size, at));
    CHECK(base == p + UNIT && size == UNIT);
    IS(CUDA_ERROR_NOT_SUPPORTED, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at));
    CHECK(ATTRIBUTE(unsigned, SYNC_MEMOPS, at) == 0);
    CHECK(ATTRIBUTE(unsigned long long, ALLOWED_HANDLE_TYPES, p) == 0);
    CHECK(ATTRIBUTE(unsigned long long, ALLOWED_HANDLE_TYPES, q) == prop.requestedHandleTypes);
    CHECK(ATTRIBUTE(unsigned, IS_GPU_DIRECT_RDMA_CAPABLE, p) == 0);
    CHECK(ATTRIBUTE(unsigned, IS_GPU_DIRECT_RDMA_CAPABLE, q) == 1);
    CHECK(ATTRIBUTE(unsigned, ACCESS_FLAGS, p) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    CHECK(ATTRIBUTE(unsigned, ACCESS_FLAGS, q) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    CHECK(ATTRIBUTE(unsigned, MAPPED, p) == 1);
}

/* Each end is accessed by its own device. */
void a_peer_copy_needs_no_access(void)
{
    CUcontext first = primary(), second;
    unsigned char seen = 0;
    CUdeviceptr p = mapped(1), q;
    OK(grant_to(0, p, UNIT));
    OK(cuMemsetD8(p, 9, UNIT));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&q, UNIT));
    OK(cuMemcpyPeer(q, second, p, first, UNIT));
    OK(cuMemcpyDtoH(&seen, q + UNIT - 1, 1));
    CHECK(seen == 9);
    OK(cuMemcpyDtoDAsync(q, p, UNIT, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
}

/* --- another device ----------------------------------------------------------------------------*/
static int dma_buf(CUdeviceptr p, size_t bytes)
{
    int fd = -1;
    OK(cuMemGetHandleForAddressRange(&fd, p, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    return fd;
}

void a_dma_buf_reaches_what_was_there(void)
{
    uint32_t seen = 0, value = 77;
    int fd = -1;
    primary();
    CHECK(attribute_of_device(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 1);
    CUdeviceptr p = mapped(3), plain_memory;
    OK(grant_to(0, p, 3 * UNIT));
    int over = dma_buf(p + UNIT, 2 * UNIT); /* two handles */
    CHECK(simcuda_dma(over, UNIT - 2, &value, sizeof(value), 1) == 0);
    OK(cuMemcpyDtoH(&seen, p + 2 * UNIT - 2, sizeof(seen)));
    CHECK(seen == 77);
    OK(cuMemsetD32(p + UNIT, 5, 1));
    OK(cuCtxSynchronize());
    CHECK(simcuda_dma(over, 0, &seen, sizeof(seen), 0) == 0 && seen == 5);
    CHECK(simcuda_dma(over, 2 * UNIT - 2, &seen, sizeof(seen), 0) == -1);
    OK(cuMemUnmap(p, UNIT));
    CHECK(simcuda_dma(over, 0, &seen, sizeof(seen), 0) == 0);
    OK(cuMemUnmap(p + UNIT, UNIT));
    CHECK(simcuda_dma(over, UNIT, &seen, sizeof(seen), 0) == -1);
    CUmemGenericAllocationHandle h = create(UNIT); /* as long, and something else */
    OK(cuMemMap(p + UNIT, UNIT, 0, h, 0));
    CHECK(simcuda_dma(over, UNIT, &seen, sizeof(seen), 0) == -1);
    IS(CUDA_ERROR_INVALID_VALUE,
       cuMemGetHandleForAddressRange(&fd, p, 3 * UNIT, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    OK(cuMemAlloc(&plain_memory, UNIT));
    int of_plain = dma_buf(plain_memory, UNIT);
    CHECK(simcuda_dma(of_plain, 8, &value, sizeof(value), 1) == 0);
    OK(cuMemcpyDtoH(&seen, plain_memory + 8, sizeof(seen)));
    CHECK(seen == 77);
    OK(cuMemFree(plain_memory));
    CHECK(simcuda_dma(of_plain, 8, &value, sizeof(value), 1) == -1);
}

/* --- what lasts --------------------------------------------------------------------------------*/
void what_is_mapped_outlives_contexts_and_is_counted(void)
{
    unsigned char seen = 0;
    primary();
    CUdeviceptr p = mapped(3);
    CUmemGenericAllocationHandle h = create(4 * UNIT);
    OK(grant_to(0, p, 3 * UNIT));
    OK(cuMemsetD8(p, 7, 3 * UNIT));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxReset(0));
    CHECK(left().handles == 1 && left().mappings == 3 && left().reservations == 1);
    CHECK(left().bytes == 7 * UNIT && left().mapped_bytes == 3 * UNIT);
    primary();
    OK(cuMemcpyDtoH(&seen, p + 3 * UNIT - 1, 1));
    CHECK(seen == 7);
    OK(cuCtxSetCurrent(NULL)); /* no call of these needs a context */
    OK(cuMemUnmap(p, 3 * UNIT));
    OK(cuMemAddressFree(p, 3 * UNIT));
    OK(cuMemRelease(h));
    CHECK(left().handles == 0 && left().mappings == 0 && left().reservations == 0);
    CHECK(left().bytes == 0 && left().mapped_bytes == 0 && left().reserved_bytes == 0);
    CHECK(left().peak_mappings == 3);
}

/* --- captures ----------------------------------------------------------------------------------*/
static bool refused(CUstream s, CUstreamCaptureMode mode, int call, CUdeviceptr p,
                    CUmemGenericAllocationHandle h)
{
    CUgraph graph;
    CUdeviceptr q = 0;
    CUmemGenericAllocationHandle more = 0;
    CUresult rc = CUDA_SUCCESS;
    OK(cuStreamBeginCapture(s, mode));
    switch (call) {
    case 0:
        rc = cuMemCreate(&more, UNIT, &plain, 0);
        break;
    case 1:
        rc = cuMemAddressReserve(&q, UNIT, 0, 0, 0);
        break;
    case 2:
        rc = cuMemMap(p, UNIT, 0, h, 0);
        break;
    case 3:
        rc = grant_to(0, p + UNIT, UNIT);
        break;
    case 4:
        rc = cuMemUnmap(p + UNIT, UNIT);
        break;
    case 5:
        rc = cuMemAddressFree(p + 2 * UNIT, UNIT);
        break;
    default:
        rc = cuMemRelease(h);
    }
    bool no = rc == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CHECK(no || rc == CUDA_SUCCESS || (call == 5 && rc == CUDA_ERROR_INVALID_VALUE));
    IS(no ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS, cuStreamEndCapture(s, &graph));
    return no;
}

void captures_forbid_it_by_their_mode(void)
{
    CUstream s;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CUdeviceptr p = reserve(2 * UNIT);
    CUmemGenericAllocationHandle h = create(UNIT);
    OK(cuMemMap(p + UNIT, UNIT, 0, h, 0));
    for (int call = 0; call < 7; call++) {
        CHECK(refused(s, CU_STREAM_CAPTURE_MODE_GLOBAL, call, p, h));
        CHECK(refused(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, call, p, h));
        CHECK(!refused(s, CU_STREAM_CAPTURE_MODE_RELAXED, call, p, h));
    }
}

void captures_may_allow_it(void)
{
    CUstream s;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CUdeviceptr p = reserve(2 * UNIT);
    CUmemGenericAllocationHandle h = create(UNIT);
    OK(cuMemMap(p + UNIT, UNIT, 0, h, 0));
    for (int call = 0; call < 7; call++) {
        CHECK(!refused(s, CU_STREAM_CAPTURE_MODE_GLOBAL, call, p, h));
    }
}

/* --- what devices cannot do --------------------------------------------------------------------*/
void a_device_has_virtual_memory(void)
{
    size_t unit = 0;
    primary();
    CHECK(attribute_of_device(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 1);
    CHECK(attribute_of_device(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) ==
          1);
    OK(cuMemGetAllocationGranularity(&unit, &plain, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(unit == UNIT);
    OK(cuMemGetAllocationGranularity(&unit, &plain, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CHECK(unit == UNIT);
}

void a_device_without_virtual_memory(void)
{
    CUmemGenericAllocationHandle h = 0;
    CUdeviceptr p = 0;
    size_t unit = 0;
    primary();
    CHECK(attribute_of_device(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0);
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemAddressReserve(&p, UNIT, 0, 0, 0));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&h, UNIT, &plain, 0));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(UNIT, UNIT, 0, 1, 0));
    IS(CUDA_ERROR_NOT_SUPPORTED, grant_to(0, UNIT, UNIT));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemUnmap(UNIT, UNIT));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemRelease(1));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemAddressFree(UNIT, UNIT));
    IS(CUDA_ERROR_NOT_SUPPORTED,
       cuMemGetAllocationGranularity(&unit, &plain, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemAlloc(&p, UNIT));
}

void memory_for_rdma_cannot_be_accessed(void)
{
    CUmemAllocationProp prop = for_rdma();
    CUmemGenericAllocationHandle h;
    primary();
    CUdeviceptr p = mapped(1), q = reserve(UNIT);
    OK(cuMemCreate(&h, UNIT, &prop, 0));
    OK(cuMemMap(q, UNIT, 0, h, 0));
    IS(CUDA_ERROR_UNKNOWN, grant_to(0, q, UNIT));
    OK(grant_to(0, p, UNIT));
}

void there_is_no_physical_memory(void)
{
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    primary();
    (void)reserve(UNIT);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, UNIT, &plain, 0));
    OK(cuMemAlloc(&p, UNIT));
}

void handles_are_no_file_descriptors(void)
{
    CUmemAllocationProp prop = plain;
    CUmemGenericAllocationHandle h;
    primary();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CHECK(attribute_of_device(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) ==
          0);
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemCreate(&h, UNIT, &prop, 0));
    (void)mapped(1);
}

void addresses_and_mappings_run_out(void)
{
    CUdeviceptr p;
    primary();
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAddressReserve(&p, 66 * MIB, 0, 0, 0));
    (void)reserve(64 * MIB);
    p = mapped(4);
    OK(grant_to(0, p, 2 * UNIT));
    IS(CUDA_ERROR_OUT_OF_MEMORY, grant_to(0, p, 4 * UNIT));
    OK(grant_to(0, p + 2 * UNIT, UNIT));
    OK(grant_to(0, p, 3 * UNIT)); /* again */
    IS(CUDA_ERROR_OUT_OF_MEMORY, grant_to(0, p + 3 * UNIT, UNIT));
    OK(cuMemUnmap(p, UNIT));
    OK(grant_to(0, p + 3 * UNIT, UNIT));
}

void each_call_can_fail(void)
{
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    primary();
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAddressReserve(&p, UNIT, 0, 0, 0));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, UNIT, &plain, 0));
    p = reserve(UNIT);
    h = create(UNIT);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemMap(p, UNIT, 0, h, 0));
    OK(cuMemMap(p, UNIT, 0, h, 0));
    IS(CUDA_ERROR_OUT_OF_MEMORY, grant_to(0, p, UNIT));
    OK(grant_to(0, p, UNIT));
    IS(CUDA_ERROR_UNKNOWN, cuMemUnmap(p, UNIT));
    OK(cuMemUnmap(p, UNIT));
    IS(CUDA_ERROR_UNKNOWN, cuMemRelease(h));
    OK(cuMemRelease(h));
    IS(CUDA_ERROR_UNKNOWN, cuMemAddressFree(p, UNIT));
    OK(cuMemAddressFree(p, UNIT));
}

/* --- what calls cost ---------------------------------------------------------------------------*/
static CUresult grants(CUdeviceptr p, size_t bytes)
{
    return grant_to(0, p, bytes);
}

void access_and_unmapping_cost_by_the_handle(void)
{
    primary();
    CUdeviceptr p = mapped(5), q = reserve(8 * UNIT);
    CUmemGenericAllocationHandle h = create(8 * UNIT);
    OK(cuMemMap(q, 8 * UNIT, 0, h, 0));
    CHECK(ms_of(grants, p, 5 * UNIT) >= 100); /* 20 ms each */
    CHECK(ms_of(cuMemUnmap, p, 5 * UNIT) >= 100);
    CHECK(ms_of(grants, q, 8 * UNIT) < 95);
}
