/* A thread whose context is taken off it through the driver gets the primary one by the runtime's
 * next call, a free included: both_no_context pop|set|destroy */
#include <cuda.h>
#include <cuda_runtime_api.h>
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

int main(int argc, char **argv)
{
    CUcontext mine;
    CHECK(argc == 2);
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
#if CUDA_VERSION >= 13000
            OK(cuCtxCreate(&mine, NULL, 0, 0));
#else
            OK(cuCtxCreate(&mine, 0, 0));
#endif
            void *other = used();
            OK(cudaFree(other));
            OK(cuCtxDestroy(mine));
        }
        check_back(pointer);
    }
    return 0;
}
