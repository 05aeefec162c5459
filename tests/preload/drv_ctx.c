/* Contexts that come and go: memory belongs to the context that was current, is freed from another
 * one, and dies with its own. */
#include <cuda.h>
#include "check.h"

#define BUFFERS 50

int main(void)
{
    CUcontext primary, mine;
    CUdeviceptr buffers[BUFFERS], pointer;
    CUdevice device;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));

    /* No context: nothing can be allocated. */
    ANSWERS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&pointer, 1000));

    OK(cuDevicePrimaryCtxRetain(&primary, device));
    for (int round = 0; round < 20; round++) {
        OK(cuCtxCreate(&mine, NULL, 0, device));
        for (int i = 0; i < BUFFERS; i++) {
            OK(cuMemAlloc(&buffers[i], (size_t)4096 * (unsigned)(i + 1)));
            OK(cuMemsetD8(buffers[i], (unsigned char)i, (size_t)4096 * (unsigned)(i + 1)));
        }
        /* Half of them are freed while another context is current ... */
        OK(cuCtxPushCurrent(primary));
        for (int i = 0; i < BUFFERS; i += 2)
            OK(cuMemFree(buffers[i]));
        /* ... which must not be given memory of the first. */
        OK(cuMemAlloc(&pointer, 4096));
        CUcontext owner = NULL;
        OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, pointer));
        CHECK(owner == primary);
        OK(cuCtxPopCurrent(&owner));
        CHECK(owner == primary);
        /* The other half goes with its context. */
        OK(cuCtxDestroy(mine));
        OK(cuCtxSetCurrent(primary));
        OK(cuMemsetD8(pointer, 1, 4096));
        OK(cuMemFree(pointer));
        ANSWERS(CUDA_ERROR_INVALID_VALUE, cuMemFree(buffers[1]));
        OK(cuCtxSetCurrent(NULL));
    }

    /* The primary context lives until its last user releases it. */
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc(&pointer, 4096));
    OK(cuDevicePrimaryCtxRelease(device));
    OK(cuMemsetD8(pointer, 1, 4096));
    OK(cuMemFree(pointer));
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
