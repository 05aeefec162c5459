/* SIM: the race check against programs that allocate, free and reuse memory, also the host's, or of
 * two devices; selftest_race.c runs them. */
#include <unistd.h>
#include "selftest_race.h"
#include "simcuda.h"

#define ORDERED(name, keys) void name(void);
#define RACY(name, keys) void name(void);
#include "selftest_race_memory.def"
#undef ORDERED
#undef RACY

/* --- frees -------------------------------------------------------------------------------------*/
void new_memory_after_a_free(void)
{
    start();
    CUdeviceptr was = p;
    writes(a);
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, BYTES));
    CHECK(p == was);
    writes(b);
}

/* A plain free waits for the context of the memory; h200-580.json, free_waits. */
void a_free_beside_work_of_another_context(void)
{
    CUcontext other;
    CUstream there;
    start();
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    writes(there);
    OK(cuMemFree(p));
}

static CUgreenCtx green_context(CUstream *there)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    unsigned groups = 1;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 8));
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuGreenCtxStreamCreate(there, green, CU_STREAM_NON_BLOCKING, 0));
    return green;
}

void a_free_after_work_of_a_green_context(void)
{
    CUstream there;
    start();
    green_context(&there);
    writes(there);
    OK(cuMemFree(p));
}

static void after_the_end_of_a_green_context(bool recorded)
{
    CUstream there;
    CUcontext of_green;
    CUdeviceptr own;
    start();
    CUgreenCtx green = green_context(&there);
    OK(cuMemAlloc(&own, BYTES));
    writes(there);
    OK(cuCtxFromGreenCtx(&of_green, green));
    OK(cuCtxSetCurrent(of_green));
    OK(cuMemsetD8Async(own, 1, BYTES, NULL));
    OK(cuCtxSetCurrent(ctx));
    OK(cuGreenCtxDestroy(green));
    if (recorded) {
        OK(cuCtxRecordEvent(ctx, e));
        OK(cuStreamWaitEvent(b, e, 0));
    }
    writes(b);
    OK(cuMemsetD8Async(own, 1, BYTES, b));
}

void a_context_record_of_a_destroyed_green_context(void)
{
    after_the_end_of_a_green_context(true);
}

void the_end_of_a_green_context(void)
{
    after_the_end_of_a_green_context(false);
}

void a_free_that_does_not_wait(void)
{
    start();
    writes(a);
    OK(cuMemFree(p));
}

void a_free_that_does_not_wait_but_the_program_does(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    OK(cuMemFree(p));
}

/* --- bytes -------------------------------------------------------------------------------------*/
void neighbours(void)
{
    start();
    OK(cuMemsetD8Async(p, 1, 100, a));
    OK(cuMemsetD8Async(p + 100, 1, 100, b));
    OK(cuMemsetD8Async(p + 200, 1, BYTES - 200, c));
}

void one_byte_in_common(void)
{
    start();
    OK(cuMemsetD8Async(p, 1, 101, a));
    OK(cuMemsetD8Async(p + 100, 1, 100, b));
}

void columns_side_by_side(void)
{
    start();
    OK(cuMemsetD2D8Async(p, 64, 1, 32, 16, a));
    OK(cuMemsetD2D8Async(p + 32, 64, 1, 32, 16, b));
}

void columns_that_overlap(void)
{
    start();
    OK(cuMemsetD2D8Async(p, 64, 1, 32, 16, a));
    OK(cuMemsetD2D8Async(p + 31, 64, 1, 32, 16, b));
}

/* --- host memory -------------------------------------------------------------------------------*/
static void two_copies_to(void *host)
{
    CUdeviceptr q;
    OK(cuMemAlloc(&q, BYTES));
    OK(cuMemcpyDtoHAsync(host, p, BYTES, a));
    OK(cuMemcpyDtoHAsync(host, q, BYTES, b));
}

void pinned_memory(void)
{
    void *host;
    start();
    OK(cuMemAllocHost(&host, BYTES));
    two_copies_to(host);
}

void managed_memory(void)
{
    CUdeviceptr host;
    start();
    OK(cuMemAllocManaged(&host, BYTES, CU_MEM_ATTACH_GLOBAL));
    two_copies_to((void *)host);
}

static char registered[2 * BYTES];
void registered_memory(void)
{
    start();
    OK(cuMemHostRegister(registered, sizeof(registered), 0));
    two_copies_to(registered + 100);
}

void pinned_memory_freed_and_new(void)
{
    void *host;
    start();
    for (int i = 0; i < 4; i++) {
        OK(cuMemAllocHost(&host, BYTES));
        OK(cuMemcpyDtoHAsync(host, p, BYTES, i % 2 ? a : b));
        OK(cuMemFreeHost(host));
    }
}

/* --- host functions and threads ----------------------------------------------------------------*/
static gate_t reported = GATE;
static void reports(void *arg)
{
    if (arg) {
        SIMCUDA_RELEASE(arg);
    }
    gate_open(&reported);
}

static void after_a_host_function(void *token)
{
    start();
    writes(a);
    OK(cuLaunchHostFunc(a, reports, token));
    gate_fn(&reported); /* until it is open */
    if (token) {
        SIMCUDA_ACQUIRE(token);
    }
    writes(b);
}

void a_host_function_that_tells(void)
{
    after_a_host_function(NULL);
}

void a_host_function_that_tells_without_tokens(void)
{
    after_a_host_function(NULL);
}

void a_host_function_that_tells_with_tokens(void)
{
    after_a_host_function(&reported);
}

static void *writes_in_b(void *token)
{
    if (token) {
        SIMCUDA_ACQUIRE(token);
    }
    OK(cuCtxSetCurrent(ctx));
    writes(b);
    return NULL;
}

void threads_that_join(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    in_thread(writes_in_b, NULL);
}

void threads_without_tokens(void)
{
    threads_that_join();
}

void threads_with_tokens(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    SIMCUDA_RELEASE(&reported);
    in_thread(writes_in_b, &reported);
}

/* --- stream-ordered memory ---------------------------------------------------------------------*/
void stream_ordered_memory(void)
{
    start();
    for (int i = 0; i < 4; i++) {
        CUstream s = i % 2 ? a : b;
        OK(cuMemAllocAsync(&p, BYTES, s));
        writes(s);
        OK(cuMemFreeAsync(p, s));
    }
}

/* The driver hands it out again: that is ordered, though nothing else shows it. */
void plain_memory_that_a_stream_has_freed(void)
{
    CUmemoryPool pool;
    CUdeviceptr q;
    cuuint64_t used = 1;
    start();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, BYTES, a));
    writes(a);
    OK(cuMemFreeAsync(p, a));
    while (used) {
        OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    }
    OK(cuMemAlloc(&q, BYTES));
    CHECK(q == p);
    writes(b);
}

void stream_ordered_memory_used_elsewhere(void)
{
    start();
    OK(cuMemAllocAsync(&p, BYTES, a));
    writes(b);
}

void a_stream_ordered_free_elsewhere(void)
{
    start();
    writes(a);
    OK(cuMemFreeAsync(p, b));
}

void a_stream_ordered_free_elsewhere_after_an_event(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemFreeAsync(p, b));
}

/* cuda.h, cuMemFree: "will not perform any implicit synchronization when the pointer was allocated
 * with cuMemAllocAsync". */
void a_plain_free_of_stream_ordered_memory(void)
{
    start();
    OK(cuMemAllocAsync(&p, BYTES, a));
    writes(a);
    OK(cuMemFree(p));
}

/* --- two devices -------------------------------------------------------------------------------*/
static void use_from_the_second_device(CUevent after)
{
    CUcontext other;
    CUstream s;
    CUdeviceptr q;
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    other = second_device();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&q, BYTES));
    if (after) {
        OK(cuStreamWaitEvent(s, e, 0));
    }
    OK(cuMemcpyPeerAsync(q, other, p, ctx, BYTES, s));
}

void another_device(void)
{
    use_from_the_second_device(NULL);
}

void another_device_after_an_event(void)
{
    CUevent any = (CUevent)&any;
    use_from_the_second_device(any);
}

static void peer_copy(bool async)
{
    CUcontext other;
    CUdeviceptr q;
    CUstream there;
    start();
    other = second_device();
    OK(cuMemAlloc(&q, BYTES));
    OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8Async(q, 1, BYTES, there));
    OK(cuCtxSetCurrent(ctx));
    writes(a);
    if (async) {
        OK(cuMemcpyPeerAsync(q, other, p, ctx, BYTES, b));
    } else {
        OK(cuMemcpyPeer(q, other, p, ctx, BYTES));
    }
    writes(b);
    OK(cuMemsetD8Async(q, 1, BYTES, there));
}

void a_peer_copy_in_both_contexts(void)
{
    peer_copy(false);
}

void a_peer_copy_async(void)
{
    peer_copy(true);
}

/* --- what an allocator does --------------------------------------------------------------------*/
static void hand_out(bool fenced)
{
    static gate_t g = GATE;
    CUdeviceptr segment;
    start();
    OK(cuMemAlloc(&segment, 64 << 10));
    p = segment + 8192;
    gate_hold(&g, a);
    writes(a);
    OK(cuCtxRecordEvent(ctx, e)); /* "freed" */
    if (fenced) {
        gate_open(&g);
        while (cuEventQuery(e) != CUDA_SUCCESS) {
        }
    }
    OK(cuMemcpyDtoDAsync(p + 512, segment, 64, b)); /* the next owner */
    gate_open(&g);
}

void a_block_handed_out_early(void)
{
    hand_out(false);
}

void a_block_handed_out_after_its_fence(void)
{
    hand_out(true);
}

static void recycle(bool synchronized)
{
    CUstream s;
    start();
    writes(a);
    if (synchronized) {
        OK(cuStreamSynchronize(a));
    } else {
        usleep(20000); /* the work is over, without a query */
    }
    OK(cuStreamDestroy(a));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    writes(s);
}

void a_recycled_stream_handle(void)
{
    recycle(false);
}

void a_busy_streams_handle(void)
{
    static gate_t g = GATE;
    CUstream again;
    start();
    gate_hold(&g, a);
    writes(a);
    OK(cuStreamDestroy(a));
    OK(cuStreamCreate(&again, CU_STREAM_NON_BLOCKING));
    CHECK(again == a);
    writes(again);
    gate_open(&g);
}

void a_recycled_stream_handle_after_synchronizing(void)
{
    recycle(true);
}

void a_primary_context_reset(void)
{
    start();
    CUdeviceptr was = p;
    writes(a);
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    start();
    CHECK(p == was);
    writes(b);
}

void a_value_written_by_a_stream(void)
{
    start();
    OK(cuStreamWriteValue32(a, p + 4, 1, 0));
    reads(b);
}

void a_capture(void)
{
    CUgraph graph;
    start();
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    writes(a);
    OK(cuStreamEndCapture(a, &graph));
    writes(b);
}

void a_hundred_times(void)
{
    start();
    for (int i = 0; i < 100; i++) {
        writes(i % 2 ? a : b);
    }
    writes(c); /* one more against b only */
}

/* Bounded memory and actors: streams come and go, small accesses everywhere. */
void many_steps_forget_what_is_over(void)
{
    start();
    OK(cuMemAlloc(&p, 8 << 20));
    for (int i = 0; i < 20000; i++) {
        CUdeviceptr at = p + (unsigned)(i * 7919 % 8000) * 1024;
        if (i % 100 == 0) {
            OK(cuStreamSynchronize(a));
            OK(cuStreamDestroy(a));
            OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
        }
        OK(cuMemsetD8Async(at + i % 3, 1, 200 + (unsigned)i % 100, a));
    }
}

/* --- arrays and mapped memory ------------------------------------------------------------------*/
static CUarray array(void)
{
    CUarray made;
    CUDA_ARRAY_DESCRIPTOR d = {BYTES, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    OK(cuArrayCreate(&made, &d));
    return made;
}

static void fills(CUarray to, CUstream s)
{
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = p,
                          .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                          .dstArray = to,
                          .WidthInBytes = BYTES,
                          .Height = 1};
    OK(cuMemcpy2DAsync(&copy, s));
}

void an_array(void)
{
    start();
    CUarray to = array();
    fills(to, a);
    fills(to, b);
}

void an_array_after_an_event(void)
{
    start();
    CUarray to = array();
    fills(to, a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    fills(to, b);
    OK(cuArrayDestroy(to));
    fills(array(), c); /* the same place again */
}

enum { MAPPED = 2 << 20 };

static void map(CUdeviceptr at)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc all = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemCreate(&handle, MAPPED, &prop, 0));
    OK(cuMemMap(at, MAPPED, 0, handle, 0));
    OK(cuMemRelease(handle));
    OK(cuMemSetAccess(at, MAPPED, &all, 1));
}

static void start_mapped(void)
{
    start();
    OK(cuMemAddressReserve(&p, MAPPED, 0, 0, 0));
    map(p);
    writes(a);
}

void mapped_memory(void)
{
    start_mapped();
    writes(b);
}

void mapped_memory_after_an_event(void)
{
    start_mapped();
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

void unmapping_beside_work(void)
{
    static gate_t g = GATE;
    start();
    gate_hold(&g, a);
    OK(cuMemAddressReserve(&p, MAPPED, 0, 0, 0));
    map(p);
    writes(a);
    OK(cuMemUnmap(p, MAPPED)); /* the gate stays closed: behind it is an illegal address */
}

void unmapping_and_mapping_again_after_synchronizing(void)
{
    start_mapped();
    OK(cuStreamSynchronize(a));
    OK(cuMemUnmap(p, MAPPED));
    map(p);
    writes(b);
}

/* --- values and discards -----------------------------------------------------------------------*/
static void b_waits_for_a_value(size_t at)
{
    CUdeviceptr flags;
    start();
    OK(cuMemAlloc(&flags, 8));
    OK(cuMemsetD32(flags, 1, 2));
    OK(cuCtxSynchronize());
    writes(a);
    OK(cuStreamWriteValue32(a, flags, 1, 0));
    OK(cuStreamWaitValue32(b, flags + at, 1, CU_STREAM_WAIT_VALUE_EQ));
    writes(b);
}

void a_value_waited_for(void)
{
    b_waits_for_a_value(0);
}

void another_value_waited_for(void)
{
    b_waits_for_a_value(4);
}

void managed_memory_discarded(void)
{
    size_t bytes = BYTES;
    start();
    OK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
    writes(a);
    OK(cuMemDiscardBatchAsync(&p, &bytes, 1, 0, b));
}
