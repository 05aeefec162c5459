/* SIM: green contexts, by what the comments in cuda.h promise. */
#include "selftest.h"

#include <stdatomic.h>
#include <unistd.h>

static CUgreenCtx make(CUcontext *ctx)
{
    CUdevResource all, part[2];
    CUdevResourceDesc desc;
    CUgreenCtx green = NULL;
    unsigned groups = 2;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, NULL, 0, 4));
    CHECK(groups == 2);
    OK(cuDevResourceGenerateDesc(&desc, part, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&green, desc, 0, 0));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(ctx, green));
    return green;
}

void multiprocessors_are_split_into_alike_parts(void)
{
    CUdevResource all, part[3], rest;
    unsigned groups = 0;
    OK(cuInit(0));
    IS(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDeviceGetDevResource(0, &all, 0));
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(all.sm.smCount % all.sm.smCoscheduledAlignment == 0);
    OK(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, 5));
    CHECK(groups == all.sm.smCount / 6); /* a multiple of 2 */
    groups = 3;
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, 0, 5));
    CHECK(groups == 3 && part[2].sm.smCount == 6);
    CHECK(rest.sm.smCount == all.sm.smCount - 18);
    IS(CUDA_ERROR_INVALID_VALUE,
       cuDevSmResourceSplitByCount(part, &groups, &all, NULL, 0, all.sm.smCount + 1));
}

void a_green_context_has_the_primarys_memory(void)
{
    CUcontext home = primary(), ctx = NULL, of = NULL, current;
    CUgreenCtx green = make(&ctx);
    CUdeviceptr p;
    unsigned long long id, green_id;
    CHECK(ctx != home);
    OK(cuCtxSetCurrent(ctx));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == ctx);
    OK(cuCtxGetId(ctx, &id));
    OK(cuGreenCtxGetId(green, &green_id));
    CHECK(id == green_id);
    OK(cuMemAlloc(&p, 4096));
    OK(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CHECK(of == home);
    OK(cuCtxSetCurrent(home));
    OK(cuGreenCtxDestroy(green));
    OK(cuMemsetD8(p, 1, 4096));
    OK(cuMemFree(p));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxFromGreenCtx(&ctx, green));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGreenCtxDestroy(green));
}

void a_green_context_keeps_its_primary(void)
{
    CUcontext ctx;
    unsigned flags;
    int active = -1;
    primary();
    CUgreenCtx green = make(&ctx);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1);
    OK(cuGreenCtxDestroy(green));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0);
}

void a_green_context_ends_with_the_reset_of_its_primary(void)
{
    CUcontext ctx;
    primary();
    CUgreenCtx green = make(&ctx);
    OK(cuDevicePrimaryCtxReset(0));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxFromGreenCtx(&ctx, green));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGreenCtxDestroy(green));
}

void streams_of_a_green_context_end_with_it(void)
{
    CUcontext home = primary(), ctx, of;
    CUgreenCtx green = make(&ctx), answer;
    CUstream s, plain;
    IS(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&s, green, CU_STREAM_DEFAULT, 0));
    OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamCreate(&plain, 0));
    OK(cuStreamGetCtx(s, &of));
    CHECK(of == home || of == ctx); /* the form without _v2, or with it, by the header */
    OK(cuStreamGetGreenCtx(s, &answer));
    CHECK(answer == green);
    OK(cuStreamGetGreenCtx(plain, &answer));
    CHECK(answer == NULL);
    OK(cuGreenCtxDestroy(green));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamQuery(s));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamDestroy(s));
    OK(cuStreamQuery(plain));
}

/* "capture all the activities of the primary context and its green contexts", or of one of them. */
void a_record_of_the_primary_covers_its_green_contexts(void)
{
    gate_t gate = GATE;
    CUcontext home = primary(), one, two;
    CUgreenCtx first = make(&one), second = make(&two);
    CUstream s;
    CUevent of_home, of_one, of_two;
    OK(cuGreenCtxStreamCreate(&s, first, CU_STREAM_NON_BLOCKING, 0));
    OK(cuEventCreate(&of_home, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&of_one, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&of_two, CU_EVENT_DISABLE_TIMING));
    gate_hold(&gate, s);
    OK(cuCtxRecordEvent(home, of_home));
    OK(cuCtxRecordEvent(one, of_one));
    OK(cuGreenCtxRecordEvent(second, of_two));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(of_home));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(of_one));
    IS(CUDA_SUCCESS, cuEventQuery(of_two));
    gate_open(&gate);
    OK(cuCtxSynchronize()); /* the primary is current */
    IS(CUDA_SUCCESS, cuEventQuery(of_one));
    IS(CUDA_SUCCESS, cuEventQuery(of_home));
}

/* Its own stream, which the program may have destroyed before, and its default one. */
void the_work_of_a_destroyed_green_context_goes_on(void)
{
    static gate_t gates[3] = {GATE, GATE, GATE};
    CUcontext home = primary(), ctx;
    CUevent record;
    OK(cuEventCreate(&record, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 3; i++) {
        CUgreenCtx green = make(&ctx);
        CUstream s;
        unsigned char *pinned;
        CUdeviceptr p;
        OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
        OK(cuCtxSetCurrent(ctx));
        OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
        OK(cuMemAlloc(&p, 4096));
        gate_hold(&gates[i], i == 2 ? NULL : s);
        OK(cuMemcpyDtoHAsync(pinned, p, 4096, i == 2 ? NULL : s));
        OK(cuCtxSetCurrent(home));
        if (i == 1) {
            OK(cuStreamDestroy(s));
        }
        OK(cuGreenCtxDestroy(green));
        OK(cuCtxRecordEvent(home, record));
        IS(CUDA_ERROR_NOT_READY, cuEventQuery(record));
        gate_open(&gates[i]);
        OK(cuCtxSynchronize());
        OK(cuEventQuery(record));
        OK(cuMemFree(p));
        if (i == 0) {
            IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamQuery(s));
        }
    }
}

static _Atomic bool over;

static void takes_its_time(void *nothing)
{
    (void)nothing;
    usleep(20000);
    atomic_store(&over, true);
}

void a_free_waits_for_a_destroyed_green_context(void)
{
    CUcontext ctx;
    CUstream s;
    CUdeviceptr p;
    primary();
    CUgreenCtx green = make(&ctx);
    OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuMemAlloc(&p, 4096));
    OK(cuLaunchHostFunc(s, takes_its_time, NULL));
    OK(cuGreenCtxDestroy(green));
    OK(cuMemFree(p));
    CHECK(atomic_load(&over));
}

/* tests/gpu/results/h100-580.json, green */
void a_green_context_has_no_per_thread_streams(void)
{
    CUcontext home = primary(), ctx, of;
    CUgreenCtx green = make(&ctx);
    CUdeviceptr p, plain;
    CUevent ev;
    unsigned long long id;
    OK(cuMemAlloc(&plain, 4096));
    OK(cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxSetCurrent(ctx));
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamGetCtx(CU_STREAM_PER_THREAD, &of));
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamGetId(CU_STREAM_PER_THREAD, &id));
    IS(CUDA_ERROR_INVALID_HANDLE, cuMemsetD8Async(plain, 0, 4096, CU_STREAM_PER_THREAD));
    IS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(ev, CU_STREAM_PER_THREAD));
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(CU_STREAM_PER_THREAD, ev, 0));
    IS(CUDA_ERROR_INVALID_HANDLE, cuMemAllocAsync(&p, 4096, CU_STREAM_PER_THREAD));
    IS(CUDA_ERROR_INVALID_HANDLE, cuMemFreeAsync(plain, CU_STREAM_PER_THREAD));
    IS(CUDA_ERROR_INVALID_HANDLE, cuMemFreeAsync(0, CU_STREAM_PER_THREAD));
    IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuCtxSetCurrent(home));
    OK(cuMemFreeAsync(plain, CU_STREAM_PER_THREAD));
    OK(cuGreenCtxDestroy(green));
}
