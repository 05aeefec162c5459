/* Stream-ordered memory whose context is destroyed: under the shim it goes with its context, as all
 * pooled memory does. Prints which it was. */
#include <cuda.h>
#include "check.h"

int main(void)
{
    CUdevice device;
    CUcontext primary, second;
    CUstream stream;
    CUdeviceptr memory;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxSetCurrent(primary));
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&second, NULL, 0, device));
#else
    OK(cuCtxCreate(&second, 0, device));
#endif
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocAsync(&memory, 1000, stream));
    OK(cuMemsetD8Async(memory, 1, 1000, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(primary));
    int code = (int)cuMemFree(memory);
    CHECK(code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_VALUE);
    puts(code == CUDA_SUCCESS ? "alive" : "gone");
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
