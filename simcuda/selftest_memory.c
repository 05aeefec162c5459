/* Device memory: limits, bytes, faults, queries about pointers. See selftest.c. */
#include "selftest.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void memory_runs_out_and_comes_back(void) /* memory:64M */
{
    CUdeviceptr p[64], q, big;
    size_t free0, total, now;
    int n = 0;
    primary();
    OK(cuMemGetInfo(&free0, &total));
    CHECK(total == (size_t)64 << 20 && free0 == total);
    while (n < 64 && cuMemAlloc(&p[n], 3 << 20) == CUDA_SUCCESS) {
        CHECK(p[n] % (2 << 20) == 0);
        n++;
    }
    CHECK(n == 16);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&q, 1));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&big, (size_t)1 << 50));
    OK(cuMemGetInfo(&now, &total));
    CHECK(now == 0);
    for (int i = 0; i < n; i++) {
        OK(cuMemFree(p[i]));
    }
    OK(cuMemGetInfo(&now, &total));
    CHECK(now == free0);
    OK(cuMemAlloc(&big, free0));
    OK(cuMemFree(big));
}

/* Random sizes; every allocation keeps what was written to its two ends. */
void live_allocations_do_not_overlap(void)
{
    enum { N = 400, ROUNDS = 6000 };
    static CUdeviceptr p[N];
    static size_t size[N];
    static unsigned tag[N];
    unsigned seed = 1, got, wrong = 0;
    size_t free0, free1, total;
    primary();
    OK(cuMemGetInfo(&free0, &total));
    for (unsigned r = 0; r < ROUNDS; r++) {
        seed = seed * 1103515245u + 12345u;
        unsigned i = (seed >> 8) % N;
        if (p[i]) {
            cuMemcpyDtoH(&got, p[i], 4);
            wrong += got != tag[i];
            cuMemcpyDtoH(&got, p[i] + (size[i] - 4) / 4 * 4, 4);
            wrong += got != tag[i];
            OK(cuMemFree(p[i]));
            p[i] = 0;
        } else {
            size[i] = 8 + ((size_t)seed >> 4) % ((size_t)1 << (4 + seed % 19));
            tag[i] = r;
            OK(cuMemAlloc(&p[i], size[i]));
            CHECK(p[i] % 512 == 0);
            cuMemcpyHtoD(p[i], &r, 4);
            cuMemcpyHtoD(p[i] + (size[i] - 4) / 4 * 4, &r, 4);
        }
    }
    for (unsigned i = 0; i < N; i++) {
        OK(cuMemFree(p[i]));
    }
    CHECK(wrong == 0);
    OK(cuMemGetInfo(&free1, &total));
    CHECK(free0 == free1);
}

void host_access_to_device_memory_faults(void) /* SIM: hardware with HMM differs */
{
    CUdeviceptr p;
    primary();
    OK(cuMemAlloc(&p, 1 << 20));
    OK(cuMemFree(p));
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)(uintptr_t)p = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* SIM, sticky_reset:heals. Hardware notices less surely. The error sticks until the reset. */
void device_access_to_freed_memory_is_a_sticky_error(void)
{
    CUdeviceptr p, q;
    CUcontext c = primary(), again;
    char buf[64] = {0};
    size_t a, b;
    OK(cuMemAlloc(&p, 1024));
    OK(cuMemAlloc(&q, 1024));
    OK(cuMemcpyHtoD(p, buf, 64));
    OK(cuMemFree(p));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, buf, 64)); /* breaks nothing */
    OK(cuMemsetD8Async(p, 1, 64, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&p, 1));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree(q));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    OK(cuDevicePrimaryCtxReset(0));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemGetInfo(&a, &b));
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    CHECK(again == c);
    OK(cuMemGetInfo(&a, &b));
    CHECK(a == b);
}

void a_reset_with_a_sticky_error_loses_the_device(void) /* SIM */
{
    CUdeviceptr p;
    CUcontext c;
    primary();
    OK(cuMemAlloc(&p, 1024));
    OK(cuMemFree(p));
    OK(cuMemsetD8Async(p, 1, 64, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    OK(cuDevicePrimaryCtxReset(0));
    IS(CUDA_ERROR_DEVICE_UNAVAILABLE, cuDevicePrimaryCtxRetain(&c, 0));
}

void overrun_by_one_byte_is_caught(void) /* SIM */
{
    CUdeviceptr p;
    char buf[1025] = {0};
    primary();
    OK(cuMemAlloc(&p, 1024));
    OK(cuMemcpyHtoD(p, buf, 1024));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemcpyHtoD(p, buf, 1025));
}

void stream_ordered_frees_happen_in_stream_order(void)
{
    CUstream s;
    CUdeviceptr p, q;
    static gate_t g = GATE;
    CUmemoryPool pool, same;
    cuuint64_t used = 1;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuDeviceGetMemPool(&same, 0));
    CHECK(pool == same);
    OK(cuMemAllocAsync(&p, 1 << 20, s));
    gate_hold(&g, s);
    OK(cuMemsetD8Async(p, 7, 1 << 20, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    OK(cuMemAllocAsync(&q, 1 << 20, CU_STREAM_PER_THREAD));
    CHECK(q != p); /* the free has not happened yet */
    gate_open(&g);
    OK(cuStreamSynchronize(s));
    OK(cuMemFree(q)); /* a plain free takes it too */
    OK(cuMemAlloc(&q, 512));
    OK(cuMemFreeAsync(q, s));
    OK(cuStreamSynchronize(s));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(q));
}

void pageable_copies_may_reuse_their_buffer(void)
{
    CUstream s;
    CUdeviceptr p;
    static gate_t g = GATE;
    int v = 1, got = 0;
    void *pinned;
    primary();
    OK(cuMemAlloc(&p, 4));
    OK(cuMemAllocHost(&pinned, 4));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    gate_hold(&g, s);
    OK(cuMemcpyHtoDAsync(p, &v, 4, s));
    v = 2;
    OK(cuMemcpyDtoHAsync(pinned, p, 4, s));
    gate_open(&g);
    OK(cuStreamSynchronize(s));
    CHECK(*(int *)pinned == 1);
    OK(cuMemcpyDtoH(&got, p, 4));
    CHECK(got == 1);
    OK(cuMemFreeHost(pinned));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
    OK(cuMemFree(p));
}

void copies_of_two_dimensions_and_sets(void)
{
    CUdeviceptr p;
    size_t pitch;
    unsigned char host[8][16], back[8][16];
    primary();
    OK(cuMemAllocPitch(&p, &pitch, 16, 8, 4));
    CHECK(pitch >= 16);
    memset(back, 0, sizeof(back));
    for (int i = 0; i < 128; i++) {
        host[i / 16][i % 16] = (unsigned char)i;
    }
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .srcHost = host,
                       .srcPitch = 16,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = p,
                       .dstPitch = pitch,
                       .WidthInBytes = 16,
                       .Height = 8};
    OK(cuMemcpy2D(&c));
    CUDA_MEMCPY2D d = {.dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = back,
                       .dstPitch = 16,
                       .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = p,
                       .srcPitch = pitch,
                       .WidthInBytes = 16,
                       .Height = 8};
    OK(cuMemcpy2D(&d));
    CHECK(memcmp(host, back, sizeof(host)) == 0);
    OK(cuMemsetD2D32(p, pitch, 0x01020304, 4, 8));
    OK(cuMemcpy2D(&d));
    CHECK(back[0][0] == 4 && back[7][15] == 1);
    OK(cuMemFree(p));
}

void pointers_have_attributes(void)
{
    CUdeviceptr p, m, base;
    void *h;
    size_t size;
    unsigned type, managed;
    unsigned long long id1, id2;
    unsigned on = 1;
    CUcontext c = primary(), owner;
    OK(cuMemAlloc(&p, 10000));
    OK(cuMemAllocHost(&h, 5000));
    OK(cuMemAllocManaged(&m, 100, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemGetAddressRange(&base, &size, p + 5000));
    CHECK(base == p && size == 10000);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 5));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)h + 5));
    CHECK(type == CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, m));
    CHECK(managed);
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    CHECK(owner == c);
    IS(CUDA_ERROR_INVALID_VALUE,
       cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&p));
    OK(cuPointerGetAttribute(&id1, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    OK(cuMemFree(p));
    OK(cuMemAlloc(&p, 10000));
    OK(cuPointerGetAttribute(&id2, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    CHECK(id1 != id2);
    OK(cuMemFree(p));
    OK(cuMemFree(m));
    OK(cuMemFreeHost(h));
}

void arrays_take_memory_and_give_it_back(void)
{
    CUarray a;
    CUmipmappedArray m;
    CUmemGenericAllocationHandle h;
    size_t f0, f1, f2, total;
    CUDA_ARRAY_DESCRIPTOR d = {1024, 4096, CU_AD_FORMAT_FLOAT, 1};
    CUDA_ARRAY3D_DESCRIPTOR d3 = {256, 256, 16, CU_AD_FORMAT_FLOAT, 4, 0};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    primary();
    OK(cuMemGetInfo(&f0, &total));
    OK(cuArrayCreate(&a, &d));
    OK(cuMemGetInfo(&f1, &total));
    CHECK(f1 + ((size_t)16 << 20) <= f0);
    OK(cuArrayDestroy(a));
    OK(cuMipmappedArrayCreate(&m, &d3, 3));
    OK(cuMipmappedArrayGetLevel(&a, m, 1));
    OK(cuArray3DGetDescriptor(&d3, a));
    CHECK(d3.Width == 128 && d3.Depth == 8);
    OK(cuMipmappedArrayDestroy(m));
    OK(cuMemCreate(&h, 4 << 20, &prop, 0));
    OK(cuMemGetInfo(&f1, &total));
    CHECK(f1 + (4 << 20) == f0);
    OK(cuMemRelease(h));
    OK(cuMemGetInfo(&f2, &total));
    CHECK(f2 == f0);
}

static void *stress_main(void *arg)
{
    CUcontext c = arg;
    CUstream s;
    CUevent e;
    CUdeviceptr p[8];
    int v, got;
    OK(cuCtxSetCurrent(c));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    for (int round = 0; round < 60; round++) {
        OK(cuStreamCreate(&s, round % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
        for (int i = 0; i < 8; i++) {
            OK(i % 2 ? cuMemAllocAsync(&p[i], 100u << i, s) : cuMemAlloc(&p[i], 100u << i));
            v = round * 8 + i;
            OK(cuMemcpyHtoDAsync(p[i], &v, 4, s));
        }
        OK(cuCtxRecordEvent(c, e));
        (void)cuEventQuery(e);
        for (int i = 0; i < 8; i++) {
            OK(cuMemcpyDtoHAsync(&got, p[i], 4, s));
            CHECK(got == round * 8 + i);
            OK(i % 3 ? cuMemFreeAsync(p[i], s) : cuMemFree(p[i]));
        }
        OK(cuEventRecord(e, s));
        OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, e, 0));
        OK(cuMemsetD8Async(0, 0, 0, CU_STREAM_LEGACY));
        if (round % 5 == 0) {
            OK(cuStreamSynchronize(CU_STREAM_LEGACY));
            OK(cuCtxSynchronize());
        }
        OK(cuStreamDestroy(s));
    }
    OK(cuEventSynchronize(e));
    OK(cuEventDestroy(e));
    return NULL;
}

void many_threads_agree(void)
{
    pthread_t t[4];
    CUcontext c = primary();
    size_t f, total;
    for (int i = 0; i < 4; i++) {
        pthread_create(&t[i], NULL, stress_main, c);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
    }
    OK(cuCtxSynchronize());
    OK(cuMemGetInfo(&f, &total));
    CHECK(f == total);
}

/* SIM, memory:64M. The programming guide, "Physical Page Caching Behavior", and cuMemPoolTrimTo. */
void a_pool_keeps_memory_up_to_its_threshold(void)
{
    CUdeviceptr p, q;
    CUmemoryPool pool;
    cuuint64_t threshold = 40 << 20, reserved, used;
    size_t available, total;
    primary();
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, 32 << 20, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemGetInfo(&available, &total));
    CHECK(available == total);

    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocAsync(&p, 32 << 20, NULL));
    OK(cuMemAllocAsync(&q, 16 << 20, NULL));
    OK(cuMemFreeAsync(p, NULL)); /* above it */
    OK(cuStreamSynchronize(NULL));
    OK(cuMemGetInfo(&available, &total));
    CHECK(total - available == 16 << 20);
    OK(cuMemFreeAsync(q, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    CHECK(reserved == 16 << 20 && used == 0);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, 64 << 20));
    OK(cuMemAllocAsync(&q, 64 << 20, NULL)); /* with what it has */
    OK(cuMemFreeAsync(q, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemAlloc(&p, 64 << 20));
}
