/* Submissions of rarer sorts: values that streams wait for, many copies in one call, attributes of
 * streams, older launches. See selftest.c. */
#include "selftest.h"

#include <stdatomic.h>
#include <string.h>

static CUstream a, b;
static CUdeviceptr p;
static _Atomic int order;

static void start(void)
{
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, 4096));
    OK(cuMemsetD8(p, 0, 4096));
    OK(cuCtxSynchronize());
}

static void notes(void *arg)
{
    *(int *)arg = atomic_fetch_add(&order, 1) + 1;
}

/* The second of the two is not reached before the value is written. */
static void waits(unsigned flags, unsigned wanted, unsigned other, unsigned written)
{
    int before = 0, behind = 0;
    atomic_store(&order, 0);
    OK(cuMemsetD32(p, other, 1));
    OK(cuCtxSynchronize());
    OK(cuStreamWaitValue32(a, p, wanted, flags));
    OK(cuLaunchHostFunc(a, notes, &behind));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    OK(cuLaunchHostFunc(b, notes, &before));
    OK(cuStreamWriteValue32(b, p, written, 0));
    OK(cuStreamSynchronize(a));
    OK(cuStreamSynchronize(b));
    CHECK(before == 1 && behind == 2);
}

void streams_wait_for_values(void)
{
    static _Atomic unsigned *flag; /* pinned: the host writes it */
    unsigned long long seen = 0;
    start();
    waits(CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6);
    waits(CU_STREAM_WAIT_VALUE_GEQ, 2, 0xfffffff0, 3); /* "cyclic" */
    waits(CU_STREAM_WAIT_VALUE_EQ, 7, 8, 7);
    waits(CU_STREAM_WAIT_VALUE_AND, 6, 1, 2);
    OK(cuMemAllocHost((void **)&flag, 64));
    atomic_store(flag, 0);
    OK(cuStreamWaitValue32(a, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue64(a, p + 8, 1ull << 40, 0));
    OK(cuStreamWaitValue64(b, p + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_EQ));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    atomic_store(flag, 1);
    OK(cuStreamSynchronize(b));
    OK(cuMemcpyDtoH(&seen, p + 8, 8));
    CHECK(seen == 1ull << 40);
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, p + 2, 0, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(a, p, 0, 8));
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(a, p + 4, 0, 0));
}

void values_are_written_and_waited_for_in_batches(void)
{
    CUstreamBatchMemOpParams ops[3];
    unsigned seen[2] = {0, 0};
    start();
    memset(ops, 0, sizeof(ops));
    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].writeValue.address = p;
    ops[0].writeValue.value = 3;
    ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].waitValue.address = p;
    ops[1].waitValue.value = 3;
    ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    ops[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[2].writeValue.address = p + 4;
    ops[2].writeValue.value = 4;
    OK(cuStreamBatchMemOp(a, 3, ops, 0));
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoH(seen, p, 8));
    CHECK(seen[0] == 3 && seen[1] == 4);
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 3, ops, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 257, ops, 0));
    ops[0].operation = (CUstreamBatchMemOpType)77;
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(a, 1, ops, 0));
}

void many_copies_are_one_call(void)
{
    unsigned char in[2][16], out[16];
    CUdeviceptr dst[2] = {0, 0}, src[2];
    size_t bytes[2] = {16, 8}, at[2] = {0, 1};
    CUmemcpyAttributes how[2];
    start();
    memset(in[0], 5, 16);
    memset(in[1], 6, 16);
    memset(how, 0, sizeof(how));
    how[0].srcAccessOrder = how[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    dst[0] = p;
    dst[1] = p + 4;
    src[0] = (CUdeviceptr)(uintptr_t)in[0];
    src[1] = (CUdeviceptr)(uintptr_t)in[1];
    dst[1] = p + 16;
    OK(cuMemcpyBatchAsync(dst, src, bytes, 2, how, at, 2, a));
    memset(in, 0, sizeof(in));
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoH(out, p + 8, 16));
    CHECK(out[0] == 5 && out[7] == 5 && out[8] == 6 && out[15] == 6);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dst, src, bytes, 2, how, at, 2, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dst, src, bytes, 2, how, at, 0, a));
    at[1] = 2;
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dst, src, bytes, 2, how, at, 2, a));
    at[1] = 1;
    how[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(dst, src, bytes, 2, how, at, 2, a));

    CUarray flat;
    CUDA_ARRAY_DESCRIPTOR d = {4, 4, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUDA_MEMCPY3D_BATCH_OP c[2];
    OK(cuArrayCreate(&flat, &d));
    memset(c, 0, sizeof(c));
    c[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    c[0].src.op.ptr.ptr = p;
    c[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    c[0].dst.op.array.array = flat;
    c[0].dst.op.array.offset.x = 1;
    c[0].dst.op.array.offset.y = 2;
    c[0].extent = (CUextent3D){2, 1, 1};
    c[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    c[1] = c[0];
    c[1].src = c[0].dst;
    memset(&c[1].dst, 0, sizeof(c[1].dst));
    c[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    c[1].dst.op.ptr.ptr = p + 64;
    OK(cuMemcpy3DBatchAsync(1, &c[0], 0, a));
    OK(cuMemcpy3DBatchAsync(1, &c[1], 0, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoH(out, p + 64, 16));
    CHECK(out[0] == 5 && out[7] == 5 && out[8] == 0);
    c[0].extent.width = 4;
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, &c[0], 0, a));
    OK(cuArrayDestroy(flat));
}

void many_prefetches_are_one_call(void)
{
    CUdeviceptr m;
    CUmemLocation where[2];
    int value = 77;
    start();
    OK(cuMemAllocManaged(&m, 2 * 4096, CU_MEM_ATTACH_GLOBAL));
    CUdeviceptr at[2] = {m, m + 4096};
    size_t bytes[2] = {4096, 4096}, index[2] = {0, 1};
    memset(where, 0, sizeof(where));
    where[0].type = CU_MEM_LOCATION_TYPE_DEVICE;
    where[1].type = CU_MEM_LOCATION_TYPE_HOST;
    OK(cuMemPrefetchBatchAsync(at, bytes, 2, where, index, 2, 0, a));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m, 4096));
    CHECK(value == 0);
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m + 4096,
                              1));
    CHECK(value == CU_DEVICE_CPU);
    OK(cuMemDiscardBatchAsync(at, bytes, 2, 0, a));
    OK(cuMemDiscardAndPrefetchBatchAsync(at, bytes, 2, where, index, 1, 0, a));
    OK(cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, m, 8192));
    CHECK(value == 0);
    OK(cuStreamSynchronize(a));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(at, bytes, 2, where, index, 2, 1, a));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(&p, bytes, 1, 0, a)); /* not managed */
    OK(cuMemFree(m));
}

void streams_keep_attributes(void)
{
    CUstreamAttrValue v;
    int priority = 0;
    start();
    memset(&v, 0, sizeof(v));
    v.syncPolicy = CU_SYNC_POLICY_YIELD;
    OK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
    OK(cuStreamCopyAttributes(b, a));
    memset(&v, 0, sizeof(v));
    OK(cuStreamGetAttribute(b, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
    CHECK(v.syncPolicy == CU_SYNC_POLICY_YIELD);
    OK(cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
    OK(cuStreamGetPriority(a, &priority));
    CHECK(v.priority == priority);
    IS(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &v));
}

/* --- launches ----------------------------------------------------------------------------------*/
static CUfunction function(void)
{
    CUmodule module;
    CUfunction f;
    OK(cuModuleLoadData(&module, "any image"));
    OK(cuModuleGetFunction(&f, module, "f"));
    return f;
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

void older_launches_launch(void) /* SIM: kernel_ns:2000000 */
{
    start();
    CUfunction f = function();
    OK(cuFuncSetBlockShape(f, 32, 1, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(f, 2048, 1, 1));
    OK(cuLaunchGridAsync(f, 2, 2, a));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    OK(cuStreamSynchronize(a));
    OK(cuLaunch(f));
    OK(cuLaunchGrid(f, 4, 1));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(f, 0, 1));
}

static void launch_on_both(CUfunction f, CUstream there, unsigned flags)
{
    CUDA_LAUNCH_PARAMS both[2];
    memset(both, 0, sizeof(both));
    for (int i = 0; i < 2; i++) {
        both[i].function = f;
        both[i].gridDimX = both[i].gridDimY = both[i].gridDimZ = 1;
        both[i].blockDimX = both[i].blockDimY = both[i].blockDimZ = 1;
        both[i].hStream = i ? there : a;
    }
    OK(cuLaunchCooperativeKernelMultiDevice(both, 2, flags));
    both[1].hStream = b; /* the same device */
    IS(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(both, 2, flags));
}

void a_launch_on_two_devices_waits_for_both(void) /* SIM: devices:2 */
{
    static gate_t g = GATE;
    CUcontext first, second;
    CUstream there;
    start();
    CUfunction f = function();
    OK(cuCtxGetCurrent(&first));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuStreamCreate(&there, CU_STREAM_NON_BLOCKING));
    OK(cuCtxSetCurrent(first));
    gate_hold(&g, there);
    launch_on_both(f, there,
                   CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                       CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC);
    OK(cuStreamSynchronize(a));
    launch_on_both(f, there, 0);
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    gate_open(&g);
    OK(cuStreamSynchronize(a));
    OK(cuStreamSynchronize(there));
}
