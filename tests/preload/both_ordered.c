/* cachealloc_alloc on a thread that has no context, while the program has one of its own: the
 * memory is of the primary context, which is not there before: both_ordered [LIBRARY] */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include "check.h"
#include "include/cachealloc.h"

#define MIB ((size_t)1 << 20)

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

static CUcontext context_of(const void *memory)
{
    CUcontext context;
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT,
                             (CUdeviceptr)(uintptr_t)memory));
    return context;
}

int main(int argc, char **argv)
{
    CUcontext primary, now;
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : RTLD_DEFAULT;
    __typeof__(cachealloc_alloc) *take = (__typeof__(take))dlsym(library, "cachealloc_alloc");
    __typeof__(cachealloc_free) *give = (__typeof__(give))dlsym(library, "cachealloc_free");
    CHECK(take && give);
    OK(cuInit(0));
    CUcontext own = make_own();
    void *mine = take(MIB, 0, -1, NULL);
    CHECK(mine && context_of(mine) == own);
    OK(cuCtxPopCurrent(&now));

    void *memory[] = {take(MIB, 0, -1, NULL), take(MIB, 0, 0, NULL)};

    OK(cuCtxGetCurrent(&now));
    CHECK(memory[0] && memory[1] && !now);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    CHECK(context_of(memory[0]) == primary && context_of(memory[1]) == primary);
    OK(give(mine, 0, -1, NULL));
    OK(cuCtxDestroy(own));
    OK(cuCtxSetCurrent(primary));
    for (int i = 0; i < 2; i++) {
        OK(cudaMemset(memory[i], i, MIB));
        OK(give(memory[i], 0, -1, NULL));
    }
    OK(cudaDeviceSynchronize());
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
