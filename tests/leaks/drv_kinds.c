/* Memory from the driver's own interface.
 *
 * expect: 5000 bytes in 1, device: forget@device < main@main
 * expect: 4000 bytes in 1, pinned: forget@pinned < main@main
 * expect: 3000 bytes in 1, managed: forget@managed < main@main
 * expect: 2000 bytes in 1, async: forget@async < main@main
 */
#include <cuda.h>
#include "tests/leaks/leak.h"

FRAME static int forget(void)
{
    CUdeviceptr pointer;
    void *host;
    OK(cuMemAlloc(&pointer, 5000));                              /* @device */
    OK(cuMemAllocHost(&host, 4000));                             /* @pinned */
    OK(cuMemAllocManaged(&pointer, 3000, CU_MEM_ATTACH_GLOBAL)); /* @managed */
    OK(cuMemAllocAsync(&pointer, 2000, NULL));                   /* @async */
    return 1;
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    CHECK(forget() == 1); /* @main */
    return 0;
}
