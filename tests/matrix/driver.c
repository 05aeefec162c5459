/* A program that knows the driver alone. */
#include <cuda.h>
#include "tests/matrix/pattern.h"

int main(void)
{
    static pattern_t p;
    CUcontext context;
    CUdevice device;
    long long sum = 0;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr memory;
        pattern_fill(&p, round);
        OK(cuMemAlloc(&memory, p.bytes));
        OK(cuMemcpyHtoD(memory, p.in, p.bytes));
        OK(cuMemcpyDtoH(p.out, memory, p.bytes));
        OK(cuMemFree(memory));
        sum += pattern_sum(&p);
    }
    OK(cuDevicePrimaryCtxRelease(device));
    printf("%lld\n", sum);
    return 0;
}
