/*
 * The runtime API as programs use it: errors, memory, copies, streams, events, devices, reset.
 * Valid on real hardware as on the simulated CUDA; needs the runtime library alone.
 *
 * Prints the name of every check that fails, and leaves 0 when none did. SIMCUDA=runtime:11 is
 * known to it by cudaRuntimeGetVersion.
 */
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(int ok, const char *what, int line)
{
    if (!ok) {
        printf("line %d: %s\n", line, what);
        failures++;
    }
}

static void expect_code(cudaError_t got, cudaError_t wanted, const char *what, int line)
{
    if (got != wanted) {
        printf("line %d: %s gave %s, not %s\n", line, what, cudaGetErrorName(got),
               cudaGetErrorName(wanted));
        failures++;
    }
}

#define IS(cond) expect((cond) != 0, #cond, __LINE__)
#define OK(call) expect_code((call), cudaSuccess, #call, __LINE__)
/* Fails with `code`, and that is the last error until it is read. */
#define FAILS(call, code)                                                                          \
    do {                                                                                           \
        (void)cudaGetLastError();                                                                  \
        expect_code((call), (code), #call, __LINE__);                                              \
        expect_code(cudaPeekAtLastError(), (code), "last error of " #call, __LINE__);              \
        expect_code(cudaGetLastError(), (code), "last error of " #call, __LINE__);                 \
        expect_code(cudaGetLastError(), cudaSuccess, "cleared after " #call, __LINE__);            \
    } while (0)

static void test_error_names(void)
{
    IS(strcmp(cudaGetErrorName(cudaSuccess), "cudaSuccess") == 0);
    IS(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    IS(strcmp(cudaGetErrorString(cudaSuccess), "no error") == 0);
    IS(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    IS(strcmp(cudaGetErrorString((cudaError_t)123456), "unrecognized error code") == 0);
}

static void test_versions(void)
{
    int driver = 0, runtime = 0;
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    IS(driver >= 11000 && runtime >= 11000);
    FAILS(cudaDriverGetVersion(NULL), cudaErrorInvalidValue);
    FAILS(cudaRuntimeGetVersion(NULL), cudaErrorInvalidValue);
}

static void test_bad_arguments(void)
{
    FAILS(cudaMalloc(NULL, 16), cudaErrorInvalidValue);
    FAILS(cudaMallocHost(NULL, 16), cudaErrorInvalidValue);
    FAILS(cudaGetDevice(NULL), cudaErrorInvalidValue);
    FAILS(cudaGetDeviceCount(NULL), cudaErrorInvalidValue);
    FAILS(cudaSetDevice(-1), cudaErrorInvalidDevice);
    FAILS(cudaSetDevice(10000), cudaErrorInvalidDevice);
    FAILS(cudaFree((void *)0x1234567), cudaErrorInvalidValue);
    FAILS(cudaStreamCreate(NULL), cudaErrorInvalidValue);
    FAILS(cudaEventCreate(NULL), cudaErrorInvalidValue);
    int x = 0;
    FAILS(cudaMemcpy(&x, &x, sizeof x, (enum cudaMemcpyKind)77), cudaErrorInvalidMemcpyDirection);
    void *address = NULL;
    FAILS(cudaGetSymbolAddress(&address, &x), cudaErrorInvalidSymbol);
    FAILS(cudaLaunchKernel(&x, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, NULL),
          cudaErrorInvalidDeviceFunction);
}

static void test_last_error_outlives_success(void)
{
    void *p = NULL;
    (void)cudaGetLastError();
    (void)cudaSetDevice(-1);
    OK(cudaMalloc(&p, 256));
    expect_code(cudaPeekAtLastError(), cudaErrorInvalidDevice, "after a success", __LINE__);
    expect_code(cudaGetLastError(), cudaErrorInvalidDevice, "after a success", __LINE__);
    OK(cudaFree(p));
}

static void *other_thread(void *arg)
{
    (void)cudaSetDevice(-1);
    *(cudaError_t *)arg = cudaPeekAtLastError();
    return NULL;
}

static void test_last_error_is_the_threads_own(void)
{
    pthread_t t;
    cudaError_t there = cudaSuccess;
    (void)cudaGetLastError();
    IS(pthread_create(&t, NULL, other_thread, &there) == 0);
    pthread_join(t, NULL);
    IS(there == cudaErrorInvalidDevice);
    OK(cudaGetLastError());
}

static void test_device(void)
{
    int count = 0, device = -1, value = -1;
    struct cudaDeviceProp p;
    char id[32] = "";
    OK(cudaGetDeviceCount(&count));
    IS(count >= 1);
    OK(cudaGetDevice(&device));
    IS(device == 0);
    OK(cudaGetDeviceProperties(&p, 0));
    IS(p.name[0] != '\0' && p.totalGlobalMem > 0 && p.warpSize == 32 && p.multiProcessorCount > 0);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    IS(value == p.major);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxThreadsPerBlock, 0));
    IS(value == p.maxThreadsPerBlock && value >= 1024);
    OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    OK(cudaDeviceGetByPCIBusId(&device, id));
    IS(device == 0);
    FAILS(cudaGetDeviceProperties(&p, count), cudaErrorInvalidDevice);
    FAILS(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, count), cudaErrorInvalidDevice);
    OK(cudaInitDevice(0, 0, 0));
    OK(cudaDeviceSynchronize());
    unsigned flags = 0;
    OK(cudaGetDeviceFlags(&flags));
    FAILS(cudaSetDeviceFlags(1u << 20), cudaErrorInvalidValue);
}

static void test_memory(void)
{
    void *p = NULL, *q = NULL;
    size_t pitch = 0, free_bytes = 0, total = 0;
    OK(cudaFree(NULL));
    OK(cudaFreeHost(NULL));
    OK(cudaMalloc(&p, 0));
    IS(p == NULL);
    OK(cudaMalloc(&p, 1000));
    IS(p != NULL && (size_t)p % 256 == 0);
    OK(cudaFree(p));
    FAILS(cudaFree(p), cudaErrorInvalidValue);
    OK(cudaMallocPitch(&p, &pitch, 100, 7));
    IS(pitch >= 100);
    OK(cudaFree(p));
    OK(cudaMemGetInfo(&free_bytes, &total));
    IS(free_bytes > 0 && free_bytes <= total);
    FAILS(cudaMalloc(&q, (size_t)1 << 60), cudaErrorMemoryAllocation);
    struct cudaPitchedPtr pp;
    OK(cudaMalloc3D(&pp, (struct cudaExtent){64, 4, 4}));
    IS(pp.ptr != NULL && pp.pitch >= 64 && pp.ysize == 4);
    OK(cudaFree(pp.ptr));
}

static void test_pointer_attributes(void)
{
    void *d = NULL, *h = NULL;
    int local = 0;
    struct cudaPointerAttributes a;
    OK(cudaMalloc(&d, 4096));
    OK(cudaHostAlloc(&h, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
    OK(cudaPointerGetAttributes(&a, (char *)d + 100));
    IS(a.type == cudaMemoryTypeDevice && a.device == 0 && a.devicePointer == (char *)d + 100);
    OK(cudaPointerGetAttributes(&a, h));
    IS(a.type == cudaMemoryTypeHost && a.hostPointer == h);
    OK(cudaPointerGetAttributes(&a, &local));
    IS(a.type == cudaMemoryTypeUnregistered);
    unsigned flags = 0;
    void *mapped = NULL;
    OK(cudaHostGetFlags(&flags, h));
    IS((flags & cudaHostAllocPortable) != 0);
    OK(cudaHostGetDevicePointer(&mapped, h, 0));
    IS(mapped != NULL);
    OK(cudaFreeHost(h));
    OK(cudaFree(d));
}

static void test_copies(void)
{
    enum { N = 100000 };
    unsigned char *a = malloc(N), *b = calloc(1, N);
    void *d = NULL, *e = NULL;
    for (int i = 0; i < N; i++)
        a[i] = (unsigned char)(i * 7);
    OK(cudaMalloc(&d, N));
    OK(cudaMalloc(&e, N));
    OK(cudaMemcpy(d, a, N, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(e, d, N, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(b, e, N, cudaMemcpyDeviceToHost));
    IS(memcmp(a, b, N) == 0);
    OK(cudaMemset((char *)e + 10, 0xab, 100));
    OK(cudaMemcpy(b, e, N, cudaMemcpyDefault));
    IS(b[9] == a[9] && b[10] == 0xab && b[109] == 0xab && b[110] == a[110]);
    OK(cudaMemcpy(b, a, N, cudaMemcpyHostToHost));
    IS(memcmp(a, b, N) == 0);
    OK(cudaMemcpy(NULL, NULL, 0, cudaMemcpyDefault));

    OK(cudaMemset2D(d, 100, 1, 10, 5));
    memset(b, 0, N);
    OK(cudaMemcpy2D(b, 20, d, 100, 10, 5, cudaMemcpyDeviceToHost));
    IS(b[0] == 1 && b[9] == 1 && b[10] == 0 && b[89] == 1 && b[90] == 0);
    FAILS(cudaMemcpy2D(b, 5, d, 100, 10, 5, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);

    struct cudaMemcpy3DParms p;
    memset(&p, 0, sizeof p);
    p.srcPtr = (struct cudaPitchedPtr){a, 10, 10, 10};
    p.dstPtr = (struct cudaPitchedPtr){d, 50, 50, 10};
    p.extent = (struct cudaExtent){10, 10, 3};
    p.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&p));
    OK(cudaMemcpy(b, d, N, cudaMemcpyDeviceToHost));
    IS(memcmp(b + 2 * 500 + 9 * 50, a + 2 * 100 + 9 * 10, 10) == 0);
    OK(cudaFree(d));
    OK(cudaFree(e));
    free(a);
    free(b);
}

static void add_one(void *data)
{
    ++*(int *)data;
}

static void add_ten(cudaStream_t stream, cudaError_t status, void *data)
{
    (void)stream;
    *(int *)data += status == cudaSuccess ? 10 : 1000;
}

static void test_streams_and_events(void)
{
    enum { N = 1 << 16 };
    cudaStream_t s = NULL, t = NULL;
    cudaEvent_t e = NULL, f = NULL;
    void *h = NULL, *d = NULL, *x = NULL;
    int called = 0, least = -1, greatest = 1, priority = 99;
    float ms = -1;
    unsigned flags = 99;
    unsigned long long id = 0, id2 = 0;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    IS(greatest <= least);
    OK(cudaStreamCreate(&s));
    OK(cudaStreamCreateWithPriority(&t, cudaStreamNonBlocking, greatest));
    OK(cudaStreamGetPriority(t, &priority));
    IS(priority == greatest);
    OK(cudaStreamGetFlags(t, &flags));
    IS(flags == cudaStreamNonBlocking);
    OK(cudaStreamGetId(s, &id));
    OK(cudaStreamGetId(t, &id2));
    IS(id != id2);
    OK(cudaEventCreate(&e));
    OK(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
    OK(cudaMallocHost(&h, N));
    OK(cudaMalloc(&d, N));
    memset(h, 3, N);
    OK(cudaEventRecord(e, s));
    OK(cudaMemcpyAsync(d, h, N, cudaMemcpyHostToDevice, s));
    OK(cudaMemsetAsync(d, 4, N / 2, s));
    OK(cudaEventRecord(f, s));
    OK(cudaStreamWaitEvent(t, f, 0));
    OK(cudaMemcpyAsync(h, d, N, cudaMemcpyDeviceToHost, t));
    OK(cudaLaunchHostFunc(t, add_one, &called));
    OK(cudaStreamAddCallback(t, add_ten, &called, 0));
    OK(cudaStreamSynchronize(t));
    IS(called == 11 && ((char *)h)[0] == 4 && ((char *)h)[N - 1] == 3);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamQuery(s));
    OK(cudaEventQuery(f));
    FAILS(cudaEventElapsedTime(&ms, e, f), cudaErrorInvalidResourceHandle);
    OK(cudaMallocAsync(&x, N, s));
    OK(cudaMemsetAsync(x, 0, N, s));
    OK(cudaFreeAsync(x, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(d));
    OK(cudaFreeHost(h));
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(f));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
}

/* A graph that sets 256 bytes to 5; then it is destroyed. */
static void launches(cudaGraphExec_t x, cudaStream_t s, void *d)
{
    unsigned char h[256];
    for (int i = 0; i < 2; i++) {
        OK(cudaMemset(d, 0, 256));
        OK(cudaDeviceSynchronize());
        OK(cudaGraphLaunch(x, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaMemcpy(h, d, 256, cudaMemcpyDeviceToHost));
        IS(h[0] == 5 && h[255] == 5);
    }
    OK(cudaGraphExecDestroy(x));
}

static void test_capture(void)
{
    cudaStream_t s = NULL;
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    void *d = NULL;
    size_t nodes = 0;
    OK(cudaMalloc(&d, 256));
    OK(cudaMemset(d, 0, 256));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaStreamIsCapturing(s, &status));
    IS(status == cudaStreamCaptureStatusActive);
    OK(cudaMemsetAsync(d, 5, 256, s));
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaStreamIsCapturing(s, &status));
    IS(status == cudaStreamCaptureStatusNone);
    OK(cudaGraphInstantiate(&x, g, 0));
    launches(x, s, d);
    OK(cudaGraphInstantiateWithFlags(&x, g, 0));
    launches(x, s, d);
    cudaGraphInstantiateParams params = {0};
    OK(cudaGraphInstantiateWithParams(&x, g, &params));
    IS(params.result_out == cudaGraphInstantiateSuccess);
    launches(x, s, d);
    OK(cudaGraphGetNodes(g, NULL, &nodes));
    IS(nodes == 1);
    OK(cudaGraphDestroy(g));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(d));
}

static void test_pools(void)
{
    cudaMemPool_t standard = NULL, current = NULL, own = NULL;
    struct cudaMemPoolProps props;
    void *p = NULL;
    unsigned long long keep = 1 << 20, got = 0;
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    OK(cudaDeviceGetMemPool(&current, 0));
    IS(standard == current);
    memset(&props, 0, sizeof props);
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    OK(cudaMemPoolCreate(&own, &props));
    OK(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &keep));
    OK(cudaMemPoolGetAttribute(own, cudaMemPoolAttrReleaseThreshold, &got));
    IS(got == keep);
    OK(cudaMallocFromPoolAsync(&p, 1000, own, NULL));
    OK(cudaFreeAsync(p, NULL));
    OK(cudaDeviceSynchronize());
    OK(cudaMemPoolTrimTo(own, 0));
    OK(cudaMemPoolDestroy(own));
}

static void test_driver_entry_point(void)
{
    void *fn = NULL;
    enum cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &fn, 11000, cudaEnableDefault, &found));
    IS(fn != NULL && found == cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &fn, 11000, cudaEnableDefault, &found));
    IS(found == cudaDriverEntryPointSymbolNotFound);
}

/* Runtimes from 12 on bind a device in cudaSetDevice itself, older ones with the next call. */
static void *set_device_in_fresh_thread(void *arg)
{
    int (*current)(void **) = NULL;
    enum cudaDriverEntryPointQueryResult found;
    void *ctx = NULL;
    int runtime = 0, device = -1;
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", (void **)&current, 11000,
                                        cudaEnableDefault, &found));
    IS(current(&ctx) == 0 && ctx == NULL);
    OK(cudaInitDevice(0, 0, 0));
    IS(current(&ctx) == 0 && ctx == NULL);
    OK(cudaSetDevice(0));
    IS(current(&ctx) == 0 && (ctx != NULL) == (runtime >= 12000));
    OK(cudaGetDevice(&device));
    IS(device == 0);
    OK(cudaFree(NULL));
    IS(current(&ctx) == 0 && ctx != NULL);
    return arg;
}

static void test_set_device_binds(void)
{
    pthread_t t;
    IS(pthread_create(&t, NULL, set_device_in_fresh_thread, NULL) == 0);
    pthread_join(t, NULL);
}

/* A thread with work behind it, across a reset made by another. */
static pthread_barrier_t before, after;

static void *bystander(void *arg)
{
    void *p = NULL;
    OK(cudaMalloc(&p, 4096));
    OK(cudaFree(p));
    pthread_barrier_wait(&before);
    pthread_barrier_wait(&after);
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 1, 4096));
    OK(cudaFree(p));
    OK(cudaDeviceReset());
    return arg;
}

static void *resets_nothing(void *arg)
{
    OK(cudaDeviceReset()); /* no context is current */
    return arg;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* copies without a height */
static void test_array_copies(void)
{
    enum { WIDE = 10, HIGH = 4 };
    const struct cudaChannelFormatDesc bytes = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
    unsigned char in[WIDE * HIGH], out[WIDE * HIGH] = {0};
    cudaArray_t a = NULL, b = NULL;
    for (int i = 0; i < WIDE * HIGH; i++)
        in[i] = (unsigned char)(i + 1);
    OK(cudaMallocArray(&a, &bytes, WIDE, HIGH, 0));
    OK(cudaMallocArray(&b, &bytes, WIDE, HIGH, 0));
    OK(cudaMemcpy2DToArray(a, 0, 0, in, WIDE, WIDE, HIGH, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArray(out, WIDE, a, 0, 0, WIDE, HIGH, cudaMemcpyDeviceToHost));
    IS(memcmp(in, out, sizeof in) == 0);
    memset(out, 0, sizeof out);
    /* deprecated: from the middle of a row over a whole one into the next */
    OK(cudaMemcpyFromArray(out, a, 7, 0, 18, cudaMemcpyDeviceToHost));
    IS(memcmp(in + 7, out, 18) == 0 && out[18] == 0);
    OK(cudaMemcpyToArray(a, 7, 1, in, 18, cudaMemcpyHostToDevice));
    OK(cudaMemcpyArrayToArray(b, 2, 0, a, 7, 1, 18, cudaMemcpyDeviceToDevice));
    memset(out, 0, sizeof out);
    OK(cudaMemcpyFromArrayAsync(out, b, 2, 0, 18, cudaMemcpyDeviceToHost, NULL));
    OK(cudaStreamSynchronize(NULL));
    IS(memcmp(in, out, 18) == 0 && out[18] == 0);
    FAILS(cudaMemcpyToArray(a, 0, 3, in, 11, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemcpyToArray(a, 10, 0, in, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    OK(cudaFreeArray(a));
    OK(cudaFreeArray(b));
}
#pragma GCC diagnostic pop

static void count_fn(void *arg)
{
    ++*(int *)arg;
}

static void test_graph_by_hand(void)
{
    struct cudaMemAllocNodeParams alloc, answer;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphNode_t n[5];
    unsigned char *seen = NULL;
    void *freed = NULL;
    int calls = 0;
    OK(cudaMallocHost((void **)&seen, 256));
    memset(&alloc, 0, sizeof alloc);
    alloc.poolProps.allocType = cudaMemAllocationTypePinned;
    alloc.poolProps.location.type = cudaMemLocationTypeDevice;
    alloc.bytesize = 256;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemAllocNode(&n[0], graph, NULL, 0, &alloc));
    IS(alloc.dptr != NULL);
    OK(cudaGraphMemAllocNodeGetParams(n[0], &answer));
    IS(answer.dptr == alloc.dptr && answer.bytesize == 256);
    const struct cudaMemsetParams set = {
        .dst = alloc.dptr, .value = 6, .elementSize = 1, .width = 256, .height = 1};
    OK(cudaGraphAddMemsetNode(&n[1], graph, &n[0], 1, &set));
    OK(cudaGraphAddMemcpyNode1D(&n[2], graph, &n[1], 1, seen, alloc.dptr, 256,
                                cudaMemcpyDeviceToHost));
    const struct cudaHostNodeParams host = {count_fn, &calls};
    OK(cudaGraphAddHostNode(&n[3], graph, &n[2], 1, &host));
    OK(cudaGraphAddMemFreeNode(&n[4], graph, &n[3], 1, alloc.dptr));
    OK(cudaGraphMemFreeNodeGetParams(n[4], &freed));
    IS(freed == alloc.dptr);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 1; i <= 2; i++) {
        memset(seen, 0, 256);
        OK(cudaGraphLaunch(exec, NULL));
        OK(cudaStreamSynchronize(NULL));
        IS(calls == i && seen[0] == 6 && seen[255] == 6);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFreeHost(seen));
}

/* tests/gpu/results/h200-580.json, after_reset */
static void test_reset_elsewhere(void)
{
    pthread_t t;
    void *p = NULL;
    OK(cudaMalloc(&p, 4096));
    IS(pthread_create(&t, NULL, resets_nothing, NULL) == 0);
    pthread_join(t, NULL);
    OK(cudaFree(p));
    OK(cudaMalloc(&p, 4096));
    OK(cudaDeviceReset());
    FAILS(cudaFree(p), cudaErrorInvalidValue);
}

static void test_reset(void)
{
    pthread_t t;
    void *p = NULL;
    IS(pthread_barrier_init(&before, NULL, 2) == 0 && pthread_barrier_init(&after, NULL, 2) == 0);
    IS(pthread_create(&t, NULL, bystander, NULL) == 0);
    pthread_barrier_wait(&before);
    OK(cudaMalloc(&p, 4096));
    OK(cudaDeviceReset());
    pthread_barrier_wait(&after);
    pthread_join(t, NULL);
    p = NULL;
    OK(cudaMalloc(&p, 4096));
    OK(cudaMemset(p, 1, 4096));
    OK(cudaDeviceSynchronize());
    OK(cudaFree(p));
    OK(cudaDeviceReset());
    OK(cudaDeviceReset());
    OK(cudaFree(NULL));
}

static void *worker(void *arg)
{
    cudaStream_t s = NULL;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < 200; i++) {
        void *p = NULL;
        OK(cudaMalloc(&p, 1000 + (size_t)i * 64));
        OK(cudaMemsetAsync(p, i, 1000, s));
        OK(cudaStreamSynchronize(s));
        OK(cudaFree(p));
    }
    OK(cudaStreamDestroy(s));
    return arg;
}

static void test_threads(void)
{
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        IS(pthread_create(&t[i], NULL, worker, NULL) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
}

int main(void)
{
    test_error_names();
    test_versions();
    test_threads();
    test_bad_arguments();
    test_last_error_outlives_success();
    test_last_error_is_the_threads_own();
    test_device();
    test_memory();
    test_pointer_attributes();
    test_copies();
    test_array_copies();
    test_graph_by_hand();
    test_streams_and_events();
    test_capture();
    test_pools();
    test_driver_entry_point();
    test_set_device_binds();
    test_reset();
    test_reset_elsewhere();
    printf(failures == 0 ? "ok\n" : "%d checks failed\n", failures);
    return failures != 0;
}
