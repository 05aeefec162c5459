/* Contexts, entry points and the SIMCUDA keys. See selftest.c. */
#include "selftest.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void codes_before_init_and_without_context(void)
{
    CUdeviceptr p;
    CUcontext c = (CUcontext)1;
    size_t a, b;
    IS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc(&p, 1));
    IS(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&c));
    IS(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(1)); /* a free needs none */
    IS(CUDA_ERROR_INVALID_CONTEXT, cuMemGetInfo(&a, &b));
    OK(cuCtxGetCurrent(&c));
    CHECK(c == NULL);
}

void bad_arguments_have_their_codes(void)
{
    CUdeviceptr p;
    CUdevice d;
    primary();
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(NULL, 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL));
    IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&d, 99));
    OK(cuMemFree(0));
    OK(cuMemAlloc(&p, 4096));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 512));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree((CUdeviceptr)(uintptr_t)&p));
    OK(cuMemFree(p));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
}

void no_bytes_of_host_or_stream_ordered_memory_are_null(void)
{
    CUdeviceptr p = 1;
    void *h = &p;
    primary();
    OK(cuMemAllocHost(&h, 0));
    CHECK(h == NULL);
    h = &p;
    OK(cuMemHostAlloc(&h, 0, 0));
    CHECK(h == NULL);
    OK(cuMemAllocAsync(&p, 0, NULL));
    CHECK(p == 0);
    OK(cuMemFreeAsync(0, NULL));
}

void an_allocation_that_fails_leaves_null(void)
{
    CUdeviceptr p = 1;
    void *h = &p;
    size_t pitch;
    primary();
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, (size_t)1 << 46));
    CHECK(p == 0);
    p = 1;
    IS(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch(&p, &pitch, 0, 4, 4));
    CHECK(p == 0);
    p = 1;
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&p, (size_t)1 << 46, NULL));
    CHECK(p == 0);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocHost(&h, (size_t)1 << 46));
    CHECK(h == NULL);
    p = 1;
    OK(cuCtxSetCurrent(NULL));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 64));
    CHECK(p == 0);
}

void handles_come_back_and_ids_do_not(void)
{
    CUstream s;
    CUcontext c;
    CUevent e;
    unsigned long long id, last = 0, ctx_id, ctx_last = 0;
    primary();
    for (int i = 0; i < 5; i++) {
        OK(cuStreamCreate(&s, 0));
        OK(cuStreamGetId(s, &id));
        CHECK(id > last);
        last = id;
        OK(cuStreamDestroy(s));
        OK(cuCtxCreate(&c, NULL, 0, 0));
        OK(cuCtxGetId(c, &ctx_id));
        CHECK(ctx_id > ctx_last);
        ctx_last = ctx_id;
        OK(cuCtxDestroy(c));
        OK(cuEventCreate(&e, 0));
        OK(cuEventDestroy(e));
    }
}

void handle_addresses_are_recycled(void) /* SIM */
{
    CUstream s, t;
    CUcontext c, d;
    primary();
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamDestroy(s));
    OK(cuStreamCreate(&t, 0));
    CHECK(s == t);
    OK(cuCtxCreate(&c, NULL, 0, 0));
    OK(cuCtxDestroy(c));
    OK(cuCtxCreate(&d, NULL, 0, 0));
    CHECK(c == d);
}

void primary_context_counts_and_resets(void)
{
    CUcontext a, b;
    CUdeviceptr p;
    unsigned flags;
    int active = 1;
    size_t f, t;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(!active);
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    CHECK(a == b);
    OK(cuCtxSetCurrent(a));
    OK(cuMemAlloc(&p, 4 << 20));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active);
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, 4 << 20));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(!active);
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree(p));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    CHECK(a == b);
    OK(cuMemGetInfo(&f, &t));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
}

void context_stack_and_destroyed_contexts(void)
{
    CUcontext a = primary(), b, c;
    CUdeviceptr p;
    OK(cuCtxCreate(&b, NULL, 0, 0));
    OK(cuCtxGetCurrent(&c));
    CHECK(c == b);
    OK(cuMemAlloc(&p, 1 << 20));
    OK(cuCtxPopCurrent(&c));
    CHECK(c == b);
    OK(cuCtxGetCurrent(&c));
    CHECK(c == a);
    OK(cuCtxPushCurrent(b));
    OK(cuCtxPushCurrent(a));
    OK(cuCtxDestroy(b));
    OK(cuCtxPopCurrent(&c));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree(p));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(b));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(a)); /* a primary context */
}

void failures_are_injected_by_count(void) /* SIM */
{
    CUdeviceptr p, q;
    primary();
    OK(cuMemAlloc(&p, 512));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&q, 512));
    OK(cuMemAlloc(&q, 512));
    IS(CUDA_ERROR_LAUNCH_FAILED, cuMemFree(p));
    OK(cuMemFree(p));
    IS((CUresult)719, cuMemFree(q));
    OK(cuMemFree(q));
}

void functions_can_be_absent(void) /* SIM: without:cuCtxRecordEvent */
{
    void *f = &f;
    CUdriverProcAddressQueryResult st = CU_GET_PROC_ADDRESS_SUCCESS;
    CUevent e;
    CUcontext c = primary();
    OK(cuGetProcAddress("cuCtxRecordEvent", &f, 13000, 0, &st));
    CHECK(f == NULL && st == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuEventCreate(&e, 0));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuCtxRecordEvent(c, e));
}

static void *address(const char *name, int version, cuuint64_t flags)
{
    void *f = NULL;
    OK(cuGetProcAddress(name, &f, version, flags, NULL));
    return f;
}

void proc_address_picks_version_and_variant(void)
{
    void *h = dlopen("libcuda.so.1", RTLD_NOW), *f = &f;
    const cuuint64_t pt = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    CUdriverProcAddressQueryResult st;
    CHECK(address("cuMemAlloc", 13000, 0) == dlsym(h, "cuMemAlloc_v2"));
    CHECK(address("cuMemAlloc", 3010, 0) == dlsym(h, "cuMemAlloc"));
    CHECK(address("cuCtxSynchronize", 12000, 0) == dlsym(h, "cuCtxSynchronize"));
    CHECK(address("cuCtxSynchronize", 13000, 0) == dlsym(h, "cuCtxSynchronize_v2"));
    CHECK(address("cuStreamGetCaptureInfo", 11030, 0) == dlsym(h, "cuStreamGetCaptureInfo_v2"));
    CHECK(address("cuMemAllocAsync", 13000, 0) == dlsym(h, "cuMemAllocAsync"));
    CHECK(address("cuMemAllocAsync", 13000, pt) == dlsym(h, "cuMemAllocAsync_ptsz"));
    CHECK(address("cuMemcpyHtoD", 13000, pt) == dlsym(h, "cuMemcpyHtoD_v2_ptds"));
    CHECK(address("cuMemAlloc", 13000, pt) == dlsym(h, "cuMemAlloc_v2"));
    CHECK(address("cuGetProcAddress", 12000, 0) == dlsym(h, "cuGetProcAddress_v2"));
    OK(cuGetProcAddress("cuMemAllocAsync", &f, 11010, 0, &st));
    CHECK(f == NULL && st == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    f = &f;
    OK(cuGetProcAddress("", &f, 13000, 0, NULL));
    CHECK(f == NULL);
    OK(cuGetProcAddress("cuNoSuchThing", &f, 13000, 0, &st));
    CHECK(f == NULL && st == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress(NULL, &f, 13000, 0, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &f, 99000, 0, NULL));
}

void peers_enable_once(void) /* SIM: devices:2 */
{
    CUcontext a = primary(), b;
    CUdeviceptr p, q;
    int can = 0, v = 5, got = 0;
    OK(cuDevicePrimaryCtxRetain(&b, 1));
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can);
    OK(cuCtxEnablePeerAccess(b, 0));
    IS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(b, 0));
    OK(cuMemAlloc(&p, 4));
    OK(cuMemcpyHtoD(p, &v, 4));
    OK(cuCtxSetCurrent(b));
    OK(cuMemAlloc(&q, 4));
    OK(cuMemcpyPeer(q, b, p, a, 4));
    OK(cuMemcpyDtoH(&got, q, 4));
    CHECK(got == 5);
    OK(cuMemFree(p));
    OK(cuMemFree(q));
    OK(cuCtxSetCurrent(a));
    OK(cuCtxDisablePeerAccess(b));
    IS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(b));
}

void forked_child_is_not_initialized(void)
{
    CUdeviceptr p;
    primary();
    OK(cuMemAlloc(&p, 512));
    pid_t pid = fork();
    if (pid == 0) {
        _exit(cuMemAlloc(&p, 512) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = 1;
    waitpid(pid, &status, 0);
    CHECK(status == 0);
    OK(cuMemFree(p));
}

void what_is_not_modelled_says_its_name(void) /* SIM */
{
    int fd[2], saved = dup(2);
    char text[256] = {0};
    CHECK(pipe(fd) == 0);
    OK(cuInit(0));
    dup2(fd[1], 2);
    CUresult rc = cuGraphExecUpdate(NULL, NULL, NULL);
    dup2(saved, 2);
    CHECK(read(fd[0], text, sizeof(text) - 1) > 0);
    IS(CUDA_ERROR_NOT_SUPPORTED, rc);
    CHECK(strcmp(text, "simcuda: cuGraphExecUpdate_v2 is not modelled\n") == 0);
}

void latency_is_added(void) /* SIM: latency:cuMemAlloc_v2=5000000 */
{
    struct timespec a, b;
    CUdeviceptr p;
    primary();
    clock_gettime(CLOCK_MONOTONIC, &a);
    OK(cuMemAlloc(&p, 512));
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 5000000);
}

void latencies_come_in_a_set(void) /* SIM: latencies:h100 */
{
    struct timespec a, b;
    CUdeviceptr p;
    primary();
    clock_gettime(CLOCK_MONOTONIC, &a);
    OK(cuMemAlloc(&p, 512));
    OK(cuMemFree(p));
    clock_gettime(CLOCK_MONOTONIC, &b);
    CHECK((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec >= 80000);
}

void counts_for_the_statistics(void) /* SIM: the runner reads the file */
{
    CUdeviceptr p;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    primary();
    for (int i = 0; i < 7; i++) {
        OK(cuMemAlloc(&p, 3 << 20));
    }
    OK(cuMemFree(p));
    OK(cuMemAddressReserve(&p, 4 << 20, 0, 0, 0));
    OK(cuMemCreate(&h, 2 << 20, &prop, 0));
    OK(cuMemMap(p, 2 << 20, 0, h, 0));
    OK(cuMemMap(p + (2 << 20), 2 << 20, 0, h, 0));
    OK(cuMemUnmap(p, 2 << 20));
}

/* What a driver of 12.4 and one of 11.4 do not have: cudaTypedefs.h, PFN_cuCtxRecordEvent_v12050,
 * PFN_cuCtxGetId_v12000, PFN_cuStreamGetId_v12000, PFN_cuGetProcAddress_v12000. */
void driver_12_4_has_no_context_events(void) /* SIM: driver:12040 */
{
    CUcontext c = primary();
    CUevent e;
    unsigned long long id;
    CUdriverProcAddressQueryResult st = CU_GET_PROC_ADDRESS_SUCCESS;
    void *fn = NULL;
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuGetProcAddress("cuCtxRecordEvent", &fn, 12040, CU_GET_PROC_ADDRESS_DEFAULT, &st));
    CHECK(!fn && st == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(!address("cuCtxWaitEvent", 12040, 0) && address("cuCtxGetId", 12040, 0));
    IS(CUDA_ERROR_INVALID_VALUE,
       cuGetProcAddress("cuCtxRecordEvent", &fn, 12050, CU_GET_PROC_ADDRESS_DEFAULT, &st));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuCtxRecordEvent(c, e));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuCtxWaitEvent(c, e));
    OK(cuCtxGetId(c, &id));
}

void driver_11_4_has_no_ids(void) /* SIM: driver:11040 */
{
    typedef CUresult (*get_t)(const char *, void **, int, cuuint64_t);
    CUcontext c = primary();
    CUstream s;
    CUevent e;
    unsigned long long id;
    void *fn = NULL;
    /* by name it still is the form with four arguments */
    get_t get = (get_t)dlsym(RTLD_DEFAULT, "cuGetProcAddress");
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(get("cuMemAlloc", &fn, 11040, CU_GET_PROC_ADDRESS_DEFAULT));
    CHECK(fn != NULL);
    OK(get("cuGetProcAddress", &fn, 11040, CU_GET_PROC_ADDRESS_DEFAULT));
    CHECK(fn == (void *)get);
    const char *absent[] = {"cuCtxGetId", "cuStreamGetId", "cuCtxRecordEvent", "cuCtxWaitEvent"};
    for (int i = 0; i < 4; i++) {
        OK(get(absent[i], &fn, 11040, CU_GET_PROC_ADDRESS_DEFAULT));
        CHECK(fn == NULL);
    }
    IS(CUDA_ERROR_NOT_SUPPORTED, cuCtxGetId(c, &id));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuStreamGetId(s, &id));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuCtxRecordEvent(c, e));
    IS(CUDA_ERROR_NOT_SUPPORTED,
       cuGetProcAddress_v2("cuMemAlloc", &fn, 11040, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
}
