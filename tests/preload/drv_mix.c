/* The main job through the driver alone: drv_mix [CALLS [LIVE [SEED]]]. Prints what mix prints. */
#include <cuda.h>
#include "mix.h"

static CUstream stream;

static int allocate(uint64_t *address, size_t bytes)
{
    CUdeviceptr pointer = 0;
    CUresult code = cuMemAlloc(&pointer, bytes);
    *address = pointer;
    return (int)code;
}

static int release(uint64_t address)
{
    return (int)cuMemFree(address);
}

static int fill(uint64_t address, unsigned char value, size_t bytes)
{
    return (int)cuMemsetD8Async(address, value, bytes, stream);
}

static int write_async(uint64_t address, const void *from, size_t bytes)
{
    return (int)cuMemcpyHtoDAsync(address, from, bytes, stream);
}

static int read_async(void *to, uint64_t address, size_t bytes)
{
    return (int)cuMemcpyDtoHAsync(to, address, bytes, stream);
}

static int wait_all(void)
{
    return (int)cuStreamSynchronize(stream);
}

int main(int argc, char **argv)
{
    mix_calls_t calls = {allocate, release, fill, write_async, read_async, wait_all, NULL};
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocHost((void **)&calls.pinned, MIX_PROBE * MIX_PROBES_MOST));
    mix_run(&calls, number_argument(argc, argv, 1, 100000), number_argument(argc, argv, 2, 1000),
            number_argument(argc, argv, 3, 1));
    OK(cuMemFreeHost(calls.pinned));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
