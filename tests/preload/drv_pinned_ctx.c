/* Pinned memory and contexts that come and go: it belongs to the context that was current, is used
 * and freed from another one, and dies with its own. */
#include <cuda.h>
#include "check.h"

#define BUFFERS 30

static CUcontext owner_of(const void *host)
{
    CUcontext owner = NULL;
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, (CUdeviceptr)(uintptr_t)host));
    return owner;
}

int main(void)
{
    CUcontext primary, mine, popped;
    unsigned char *buffers[BUFFERS], *other;
    CUdeviceptr device;
    CUdevice ordinal;
    OK(cuInit(0));
    OK(cuDeviceGet(&ordinal, 0));
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAllocHost((void **)&other, 1000));
    OK(cuDevicePrimaryCtxRetain(&primary, ordinal));
    for (int round = 0; round < 20; round++) {
        OK(cuCtxCreate(&mine, NULL, 0, ordinal));
        for (int i = 0; i < BUFFERS; i++) {
            unsigned flags = i % 2 ? CU_MEMHOSTALLOC_PORTABLE
                                   : CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
            OK(cuMemHostAlloc((void **)&buffers[i], (size_t)3000 * (unsigned)(i + 1), flags));
            CHECK(owner_of(buffers[i]) == mine);
            memset(buffers[i], i + 1, (size_t)3000 * (unsigned)(i + 1));
        }
        /* Used in another context, and half of them freed there ... */
        OK(cuCtxPushCurrent(primary));
        OK(cuMemAlloc(&device, 3000));
        for (int i = 0; i < BUFFERS; i++) {
            unsigned char seen = 0;
            OK(cuMemcpyHtoD(device, buffers[i], 3000));
            OK(cuMemcpyDtoH(&seen, device + 2999, 1));
            CHECK(seen == i + 1);
        }
        for (int i = 0; i < BUFFERS; i += 2)
            OK(cuMemFreeHost(buffers[i]));
        /* ... which must not be given memory of the first. */
        OK(cuMemHostAlloc((void **)&other, 3000, CU_MEMHOSTALLOC_PORTABLE));
        CHECK(owner_of(other) == primary);
        OK(cuCtxPopCurrent(&popped));
        /* The other half goes with its context. */
        OK(cuCtxDestroy(mine));
        OK(cuCtxSetCurrent(primary));
        memset(other, 1, 3000);
        OK(cuMemcpyHtoD(device, other, 3000));
        OK(cuMemFree(device));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(buffers[1]));
        OK(cuCtxSetCurrent(NULL));
        OK(cuMemFreeHost(other)); /* which needs no context */
    }
    OK(cuDevicePrimaryCtxRelease(ordinal));
    return 0;
}
