/* Stream-ordered memory whose context, a created one, is destroyed. Prints whether it is alive.
 * drv_async_context [left]: it is not freed. */
#include <cuda.h>
#include "check.h"

int main(int argc, char **argv)
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
    if (argc > 1 && strcmp(argv[1], "left") == 0)
        return 0;
    int code = (int)cuMemFree(memory);
    CHECK(code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_VALUE);
    puts(code == CUDA_SUCCESS ? "alive" : "gone");
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
