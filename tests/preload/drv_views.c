/* What the driver tells of a pointer: the intended differences of a pooled one. Prints for a live
 * pointer whether it is the base of its address range and whether it lies in it, and for a freed
 * one whether it still looks like device memory. */
#include <cuda.h>
#include "check.h"

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr first, second, base;
    size_t bytes;
    CUmemorytype type = 0;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&first, 4096));
    OK(cuMemAlloc(&second, 4096));
    OK(cuMemGetAddressRange(&base, &bytes, second));
    CHECK(base <= second && second + 4096 <= base + bytes);
    printf("base of both: %s\n", base == second ? "own" : "shared");
    OK(cuMemFree(second));
    printf("freed: %s\n",
           cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, second) == CUDA_SUCCESS &&
                   type == CU_MEMORYTYPE_DEVICE
               ? "device memory"
               : "unknown");
    OK(cuMemFree(first));
    return 0;
}
