/* A thread whose context is taken off it through the driver gets the primary one by the runtime's
 * next call, a free included: both_no_context pop|set|destroy. So does one that has none
 * while the program has a context of its own, which memory is not from then: beside */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

#define PAIRS 300 /* enough for the cache to serve them */

static CUcontext primary;

static void *used(void)
{
    void *pointer;
    for (int i = 0; i < PAIRS; i++) {
        OK(cudaMalloc(&pointer, 1000));
        OK(cudaFree(pointer));
    }
    OK(cudaMalloc(&pointer, 1000));
    return pointer;
}

static void check_back(void *pointer)
{
    CUcontext now = NULL;
    OK(cuCtxGetCurrent(&now));
    CHECK(!now);
    OK(cudaFree(pointer));
    OK(cuCtxGetCurrent(&now));
    CHECK(now == primary);
}

static CUcontext make_own(void)
{
    CUcontext own;
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&own, NULL, 0, 0));
#else
    OK(cuCtxCreate(&own, 0, 0));
#endif
    return own;
}

static void *pitched(void)
{
    void *pointer;
    size_t pitch;
    OK(cudaMallocPitch(&pointer, &pitch, 100, 10));
    return pointer;
}

static void *in_order(void)
{
    void *pointer;
    OK(cudaMallocAsync(&pointer, 1000, NULL));
    return pointer;
}

static void *pinned(void)
{
    void *pointer;
    OK(cudaMallocHost(&pointer, 1000));
    return pointer;
}

enum { ORDERED = 2, PINNED };
static void *(*const ways[])(void) = {used, pitched, in_order, pinned};

static void *without_context(void *way)
{
    CUcontext now, context;
    OK(cuCtxGetCurrent(&now));
    CHECK(!now);
    void *pointer = (*(void *(*const *)(void))way)();
    OK(cuCtxGetCurrent(&now));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(now == primary);
    if (way != &ways[ORDERED]) { /* memory of the device's pool has none */
        OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT,
                                 (CUdeviceptr)(uintptr_t)pointer));
        CHECK(context == primary);
    }
    OK(cuDevicePrimaryCtxRelease(0));
    if (way == &ways[PINNED])
        OK(cudaFreeHost(pointer));
    else
        OK(cudaFree(pointer));
    return NULL;
}

/* `early`: the primary context is not there before. */
static void beside(int early)
{
    pthread_t thread;
    OK(early ? cuInit(0) : (CUresult)cudaFree(NULL));
    CUcontext own = make_own();
    OK(cudaFree(used()));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        OK(pthread_create(&thread, NULL, without_context, (void *)&ways[i]));
        OK(pthread_join(thread, NULL));
    }
    OK(cuCtxDestroy(own));
}

int main(int argc, char **argv)
{
    CUcontext mine;
    CHECK(argc == 2);
    if (strcmp(argv[1], "beside") == 0 || strcmp(argv[1], "beside_early") == 0) {
        beside(strcmp(argv[1], "beside_early") == 0);
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        void *pointer = used();
        OK(cuCtxGetCurrent(&primary));
        if (strcmp(argv[1], "set") == 0) {
            OK(cuCtxSetCurrent(NULL));
        } else if (strcmp(argv[1], "pop") == 0) {
            OK(cuCtxPopCurrent(&mine));
            CHECK(mine == primary);
        } else {
            OK(cuCtxSetCurrent(NULL));
            mine = make_own();
            void *other = used();
            OK(cudaFree(other));
            OK(cuCtxDestroy(mine));
        }
        check_back(pointer);
    }
    return 0;
}
