/* Names and registered memory when contexts go away, where none is current, and in a child. With an
 * argument: what names cost in host memory when contexts go away. */
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>
#include "api.h"

static int deleted;

static void deleter(void *pointer, size_t bytes, void *argument)
{
    (void)pointer, (void)bytes, (void)argument;
    deleted++;
}

static void *at(CUdeviceptr pointer, size_t offset)
{
    return (void *)(uintptr_t)(pointer + offset);
}

/* Whatever was named goes with its context; registered memory stays. */
static void context_goes(CUdevice device)
{
    static char foreign[10];
    CUcontext context;
    CUdeviceptr buffers[10];
    cachealloc_stats_t before = api_stats();
    OK(cuCtxCreate(&context, NULL, 0, device));
    OK(cachealloc_register(foreign, sizeof(foreign), deleter, NULL));
    for (int i = 0; i < 10; i++) {
        OK(cuMemAlloc(&buffers[i], 4096));
        OK(cachealloc_alias(at(buffers[i], 0), at(buffers[i], 16)));
        if (i % 2)
            OK(cuMemFree(buffers[i]));
    }
    OK(cuCtxDestroy(context));
    cachealloc_stats_t after = api_stats();
    CHECK(after.lost_allocations == before.lost_allocations + 10);
    CHECK(after.lost_bytes == before.lost_bytes + 10 * 4096);
    CHECK(after.live_allocations == before.live_allocations + 1 && deleted == 0);
    for (int i = 0; i < 10; i++) {
        api_unknown(at(buffers[i], 16));
        ANSWERS(ENOENT, cachealloc_alias(at(buffers[i], 16), at(buffers[i], 32)));
    }
    /* No context is current, and none is needed. */
    CHECK(cachealloc_is_registered(foreign));
    OK(cuMemFree((CUdeviceptr)(uintptr_t)foreign));
    CHECK(deleted == 1);
    deleted = 0;
}

/* What names cost goes with the context: as many again need no more host memory, but for a slab
 * that takes its next chunk (1 MiB at most, base/mem.c) for what a context itself leaves behind.
 * Lost, the places of a round's names would take ten times that. */
enum { NAMES_EACH = 8, SLAB_CHUNK = 1 << 20 };

static uint64_t host_bytes_of_contexts(CUdevice device, bool named)
{
    uint64_t before = api_stats().host_bytes;
    for (int round = 0; round < 10; round++) {
        CUcontext context;
        CUdeviceptr pointer;
        OK(cuCtxCreate(&context, NULL, 0, device));
        for (int i = 0; i < 2000; i++) {
            OK(cuMemAlloc(&pointer, 512));
            for (int name = 1; named && name <= NAMES_EACH; name++)
                OK(cachealloc_alias(at(pointer, 0), at(pointer, 16 * (size_t)name)));
        }
        OK(cuCtxDestroy(context));
    }
    return api_stats().host_bytes - before;
}

/* A free that the driver would refuse leaves every name as it was. */
static void no_context(CUcontext context)
{
    CUdeviceptr pointer;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&pointer, 1000));
    OK(cachealloc_alias(at(pointer, 0), at(pointer, 8)));
    for (size_t names = 2; names > 0; names--) {
        CUdeviceptr name = names == 2 ? pointer : pointer + 8;
        OK(cuCtxSetCurrent(NULL));
        ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemFreeAsync(name, NULL));
        CHECK(api_info(at(name, 0)).names == names);
        OK(cuCtxSetCurrent(context));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(at(name, 0)));
        CHECK(api_info(at(name, 0)).names == names);
        if (names == 1) /* the plain free needs no context */
            OK(cuCtxSetCurrent(NULL));
        OK(cuMemFree(name));
    }
    OK(cuCtxSetCurrent(context));
    api_unknown(at(pointer, 0));
}

/* A graph's memory alone may be freed on a stream that is being captured. */
static void no_capture(void)
{
    CUstream stream;
    CUgraph graph;
    CUdeviceptr pointer;
    OK(cuMemAlloc(&pointer, 1000));
    OK(cachealloc_alias(at(pointer, 0), at(pointer, 8)));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(pointer + 8, stream));
    CHECK(api_info(at(pointer, 8)).names == 2);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuMemFreeAsync(pointer + 8, stream));
    OK(cuMemFree(pointer));
    OK(cuStreamDestroy(stream));
}

static void in_a_child(void)
{
    static char foreign[10];
    int status = -1;
    CUdeviceptr pointer;
    OK(cuMemAlloc(&pointer, 1000));
    OK(cachealloc_alias(at(pointer, 0), at(pointer, 8)));
    OK(cachealloc_register(foreign, sizeof(foreign), deleter, NULL));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(!cachealloc_is_registered(foreign));
        api_unknown(at(pointer, 0));
        CHECK(api_stats().live_allocations == 0 && cachealloc_trim() == 0);
        ANSWERS(ENOTSUP, cachealloc_alias(at(pointer, 8), at(pointer, 16)));
        ANSWERS(ENOTSUP, cachealloc_register(foreign, 10, deleter, NULL));
        ANSWERS(ENOTSUP, cachealloc_unregister(foreign));
        ANSWERS(ENOTSUP, cachealloc_set_pin_mode(1));
        exit(deleted == 0 ? 5 : 6);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    OK(cachealloc_unregister(foreign));
    OK(cuMemFree(pointer));
    OK(cuMemFree(pointer + 8));
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext primary;
    (void)argv;
    if (!api_there())
        return 0;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    for (int i = 0; i < 5; i++)
        context_goes(device);
    if (argc > 1) {                           /* leaves much behind: apart from the rest */
        host_bytes_of_contexts(device, true); /* tables grow with the first */
        uint64_t without = host_bytes_of_contexts(device, false);
        CHECK(host_bytes_of_contexts(device, true) <= without + SLAB_CHUNK);
        return 0;
    }
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    no_context(primary);
    no_capture();
    in_a_child();
    CHECK(api_stats().live_allocations == 0 && deleted == 0);
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
