/* Contexts come and go, with memory of every kind in each. The first of them take memory to be
 * known by; the rest take none: not of the host, and no addresses. In the end what was freed serves
 * again without a call of the driver.
 *
 * drv_ctx_many CONTEXTS [streams|bare|threads]: streams too in each, with memory in their order; or
 * nothing but the context itself; or in four threads, each with contexts of its own. Prints by how
 * many bytes of addresses and of memory the process grew. */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define KEPT 1024  /* shim/cuda/contexts.h: CA_CONTEXTS_PARKED */
#define FIRST 1500 /* more than that */
#define LIVE 8
#define THREADS 4

static CUdevice device;
static CUcontext other; /* its fences cover the others, and theirs cover it */
static bool streams, bare, threads;

typedef struct held {
    size_t addresses, resident; /* bytes */
} held_t;

static held_t held(void)
{
    unsigned long pages[2] = {0};
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu %lu", &pages[0], &pages[1]) == 2);
    fclose(file);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (held_t){pages[0] * page, pages[1] * page};
}

static void use_memory(void)
{
    CUdeviceptr pointers[LIVE], behind;
    CUstream stream;
    void *pinned;
    for (size_t i = 0; i < LIVE; i++)
        OK(cuMemAlloc(&pointers[i], (size_t)4096 << i));
    OK(cuMemAllocHost(&pinned, 4096));
    if (streams) {
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuMemAllocAsync(&behind, 4096, stream));
        OK(cuMemFreeAsync(behind, stream));
        OK(cuMemAllocAsync(&behind, 4096, CU_STREAM_PER_THREAD));
        OK(cuMemFreeAsync(behind, CU_STREAM_PER_THREAD));
        OK(cuStreamDestroy(stream));
    }
    OK(cuMemFreeHost(pinned));
    for (size_t i = 1; i < LIVE; i++) /* the first dies with its context */
        OK(cuMemFree(pointers[i]));
}

static void use_other(void)
{
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent(other));
    OK(cuMemAlloc(&pointer, 4096));
    OK(cuMemFree(pointer));
}

/* Segments are had once, whatever comes and goes. */
static void check_served(void)
{
    cachealloc_stats_t before, after;
    if (!shim_stats(&before))
        return;
    for (size_t i = 0; i < 100; i++) {
        CUdeviceptr pointer;
        OK(cuMemAlloc(&pointer, (size_t)8 << 20));
        OK(cuMemFree(pointer));
        OK(cuCtxSynchronize());
    }
    CHECK(shim_stats(&after));
    CHECK(after.upstream_allocs - before.upstream_allocs <= 2);
}

static void *come_and_go(void *count)
{
    CUcontext context;
    for (uint64_t i = 0; i < (uint64_t)(uintptr_t)count; i++) {
        if (!bare)
            use_other();
        OK(cuCtxCreate(&context, NULL, 0, device));
        if (!bare)
            use_memory();
        OK(cuCtxDestroy(context));
    }
    return NULL;
}

/* What a thread remembers of its stream in a context is not true of the one that comes so long
 * after that it has what was kept of that, though the thread has used no stream in between. */
static void remember_streams(void)
{
    come_and_go((void *)(uintptr_t)1);
    streams = false;
    come_and_go((void *)(uintptr_t)KEPT);
    streams = true;
    come_and_go((void *)(uintptr_t)1);
}

static void in_threads(uint64_t count)
{
    pthread_t all[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_create(&all[i], NULL, come_and_go, (void *)(uintptr_t)(count / THREADS)));
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_join(all[i], NULL));
}

int main(int argc, char **argv)
{
    uint64_t contexts = number_argument(argc, argv, 1, 2 * FIRST);
    streams = argc > 2 && strcmp(argv[2], "streams") == 0;
    bare = argc > 2 && strcmp(argv[2], "bare") == 0;
    threads = argc > 2 && strcmp(argv[2], "threads") == 0;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate(&other, NULL, 0, device));
    if (streams)
        remember_streams();
    if (threads)
        in_threads(FIRST);
    else
        come_and_go((void *)(uintptr_t)FIRST);
    held_t first = held();
    if (threads)
        in_threads(contexts - FIRST);
    else
        come_and_go((void *)(uintptr_t)(contexts - FIRST));
    held_t last = held();
    printf("%zd %zd\n", (ssize_t)(last.addresses - first.addresses),
           (ssize_t)(last.resident - first.resident));
    OK(cuCtxSetCurrent(other));
    check_served();
    OK(cuCtxCreate(&context, NULL, 0, device));
    check_served();
    OK(cuCtxDestroy(context));
    return 0;
}
