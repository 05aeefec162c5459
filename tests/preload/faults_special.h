/* The special operations of tests/preload/faults.c: what a program does now and then, each of which
 * brings other calls of the driver. */
#ifndef CA_TESTS_PRELOAD_FAULTS_SPECIAL_H
#define CA_TESTS_PRELOAD_FAULTS_SPECIAL_H

#include "faults_buffers.h"

/* --- the special operations ------------------------------------------------------------------- */
static void sleeps(void *unused)
{
    struct timespec pause = {.tv_nsec = 50000};
    (void)unused;
    nanosleep(&pause, NULL);
}

/* More than there is: the retry ladder, to its end, with work under way. */
static void too_much(void)
{
    void *pointer = NULL;
    buffer_t late = {.kind = LARGE};
    (void)WORKED(cudaLaunchHostFunc(streams[1], sleeps, NULL));
    if (WORKED(allocate(&late, 5)))
        (void)RETRIED(release(&late));
    int code = (int)cudaMalloc(&pointer, (size_t)1 << 40);
    HOLDS(code == (int)cudaErrorMemoryAllocation || legal(code));
    (void)cudaGetLastError();
    code = (int)cudaMallocHost(&pointer, (size_t)1 << 47);
    HOLDS(code == (int)cudaErrorMemoryAllocation || legal(code));
    (void)cudaGetLastError();
    size_t pitch; /* too much of a width that the pool knows: the driver's to refuse */
    code = (int)cudaMallocPitch(&pointer, &pitch, 500, (size_t)1 << 31);
    HOLDS(code == (int)cudaErrorMemoryAllocation || legal(code));
    (void)cudaGetLastError();
}

static void tell_memory(void)
{
    size_t free, total;
    struct cudaPointerAttributes of;
    if (WORKED(cudaMemGetInfo(&free, &total)))
        HOLDS(free <= total);
    (void)WORKED(cudaPointerGetAttributes(&of, &free));
}

/* Of the thread, which has none while a green context is current. */
static CUstream default_stream;

static void driver_free(CUdeviceptr pointer, bool async)
{
    (void)(async ? RETRIED(drv.cuMemFreeAsync_ptsz(pointer, default_stream))
                 : RETRIED(drv.cuMemFree_v2(pointer)));
}

/* What a captured stream is told never happens; others go on meanwhile. */
static void in_capture(void)
{
    buffer_t other = {.kind = LARGE}, async = {.kind = ASYNC};
    CUdeviceptr p;
    if (WORKED(allocate(&other, 77)))
        (void)RETRIED(release(&other));
    if (WORKED(allocate(&async, 78)))
        (void)RETRIED(release(&async));
    if (WORKED(drv.cuMemAllocAsync_ptsz(&p, 70000, CU_STREAM_PER_THREAD)))
        driver_free(p, true);
}

static bool begin(unsigned form, CUgraph target)
{
    CUstream stream = streams[2];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    switch (form) {
    case 0:
        return WORKED(drv.cuStreamBeginCapture(stream));
    case 1:
        return WORKED(drv.cuStreamBeginCapture_ptsz(stream));
    case 2:
        return WORKED(drv.cuStreamBeginCapture_v2(stream, mode));
    case 3:
        return WORKED(drv.cuStreamBeginCapture_v2_ptsz(stream, mode));
    case 4:
        return WORKED(drv.cuStreamBeginCaptureToGraph(stream, target, NULL, NULL, 0, mode));
    default:
        return WORKED(drv.cuStreamBeginCaptureToGraph_ptsz(stream, target, NULL, NULL, 0, mode));
    }
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    OK(cudaThreadExchangeStreamCaptureMode((enum cudaStreamCaptureMode *)&mode));
    return mode;
}

static void capture(unsigned form)
{
    CUgraph graph = NULL, target = NULL;
    bool allowed = form >= 2; /* the first two capture in the global mode */
    CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (form >= 4)
        OK(drv.cuGraphCreate(&target, 0));
    if (begin(form, target)) {
        if (!allowed)
            exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
        in_capture();
        HOLDS(exchange(global) == (allowed ? global : CU_STREAM_CAPTURE_MODE_RELAXED));
        (void)(form % 2 ? RETRIED(drv.cuStreamEndCapture_ptsz(streams[2], &graph))
                        : RETRIED(drv.cuStreamEndCapture(streams[2], &graph)));
    }
    if (graph && graph != target)
        (void)RETRIED(drv.cuGraphDestroy(graph));
    if (target)
        (void)RETRIED(drv.cuGraphDestroy(target));
}

/* In the current context. */
static void driver_buffers(CUdevice device)
{
    CUdeviceptr p;
    CUmemoryPool pool;
    for (size_t i = 0; i < 4; i++) {
        unsigned on = 1;
        if (!WORKED(drv.cuMemAlloc_v2(&p, (size_t)5000 << (3 * i))))
            continue;
        (void)WORKED(drv.cuMemsetD8_v2(p, 1, 5000));
        (void)WORKED(drv.cuMemGetAddressRange_v2(NULL, NULL, p));
        (void)WORKED(drv.cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
        driver_free(p, i % 2);
    }
    if (WORKED(drv.cuMemAllocAsync_ptsz(&p, 70000, default_stream)))
        driver_free(p, true);
    if (!WORKED(drv.cuDeviceGetDefaultMemPool(&pool, device)))
        return;
    if (WORKED(drv.cuMemAllocFromPoolAsync(&p, 70000, pool, NULL)))
        driver_free(p, false);
    if (WORKED(drv.cuMemAllocFromPoolAsync_ptsz(&p, 70000, pool, default_stream)))
        driver_free(p, true);
}

/* A context of its own, which sees another's memory. */
static void second_context(void)
{
    CUcontext context, peer;
    if (!WORKED(drv.cuCtxCreate_v2(&context, 0, 0)))
        return;
    if (WORKED(drv.cuDevicePrimaryCtxRetain(&peer, 1))) {
        (void)WORKED(drv.cuCtxEnablePeerAccess(peer, 0));
        (void)RETRIED(drv.cuDevicePrimaryCtxRelease_v2(1));
    }
    driver_buffers(0);
    (void)RETRIED(drv.cuCtxDestroy_v2(context));
}

/* A context by the older forms, in which another user of it allocates. */
static void old_context(bool detach)
{
    CUcontext context, same;
    if (!WORKED(drv.cuCtxCreate_v2(&context, 0, 0)))
        return;
    if (detach) {
        OK(drv.cuCtxAttach(&same, 0));
        (void)RETRIED(drv.cuCtxDetach(context));
    }
    driver_buffers(0);
    (void)(detach ? RETRIED(drv.cuCtxDetach(context)) : RETRIED(drv.cuCtxDestroy(context)));
}

/* Memory of a green context outlives it. */
static void green_context(void)
{
    CUdevResource all;
    CUdevResourceDesc resources;
    CUgreenCtx green;
    CUcontext context, popped;
    CUdeviceptr p = 0;
    OK(drv.cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(drv.cuDevResourceGenerateDesc(&resources, &all, 1));
    if (!WORKED(drv.cuGreenCtxCreate(&green, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM)))
        return;
    if (RETRIED(drv.cuCtxFromGreenCtx(&context, green)) &&
        WORKED(drv.cuCtxPushCurrent_v2(context))) {
        default_stream = CU_STREAM_LEGACY;
        driver_buffers(0);
        default_stream = NULL;
        if (!WORKED(drv.cuMemAlloc_v2(&p, 70000)))
            p = 0;
        (void)RETRIED(drv.cuCtxPopCurrent_v2(&popped));
    }
    (void)RETRIED(drv.cuGreenCtxDestroy(green));
    if (p)
        driver_free(p, false);
}

/* The last release of a primary context, which takes memory along. */
static void third_device(bool old)
{
    CUcontext context, popped;
    CUdeviceptr lost;
    if (!WORKED(drv.cuDevicePrimaryCtxRetain(&context, 2)))
        return;
    if (WORKED(drv.cuCtxPushCurrent_v2(context))) {
        driver_buffers(2);
        (void)WORKED(drv.cuMemAlloc_v2(&lost, 4096));
        (void)RETRIED(drv.cuCtxPopCurrent_v2(&popped));
    }
    (void)(old ? RETRIED(drv.cuDevicePrimaryCtxRelease(2))
               : RETRIED(drv.cuDevicePrimaryCtxRelease_v2(2)));
}

static void ask_addresses(void)
{
    void *address;
    (void)WORKED(drv.cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, NULL));
    (void)WORKED(drv.cuGetProcAddress("cuMemFree", &address, 13000, 0));
}

/* The driver refuses it, and the memory stays. */
static void free_as_another_kind(void)
{
    buffer_t managed = {.kind = MANAGED};
    if (!WORKED(allocate(&managed, 4)))
        return;
    int code = (int)cudaFreeHost(managed.pointer);
    HOLDS(code == (int)cudaErrorInvalidValue || legal(code));
    (void)cudaGetLastError();
    (void)RETRIED(release(&managed));
}

static void special(unsigned number)
{
    if (number % 2)
        capture(number / 2 % 6);
    switch (number % 5) {
    case 0:
        too_much();
        break;
    case 1:
        second_context();
        break;
    case 2:
        third_device(number > 5);
        break;
    case 3:
        ask_addresses();
        break;
    default:
        tell_memory();
        free_as_another_kind();
    }
    if (number % 4 == 0)
        green_context();
    if (number % 6 == 0)
        old_context(number % 12 == 0);
}

#endif
