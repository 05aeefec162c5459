/* Copies for which the driver is told both contexts. drv_peer_copies NAME: calls the function of
 * that name once and prints what it answers. */
#include <cuda.h>
#include <dlfcn.h>
#include "check.h"

#define BYTES 4096

typedef CUresult copy_t(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                        CUcontext from_context, size_t bytes, CUstream stream);
typedef CUresult copy_3d_t(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);

int main(int argc, char **argv)
{
    CUcontext contexts[2];
    CUdeviceptr memory[2];
    int devices;
    CHECK(argc == 2);
    void *function = dlsym(RTLD_DEFAULT, argv[1]);
    CHECK(function);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&devices));
    if (devices < 2) {
        puts("needs two devices");
        return 77;
    }
    for (int i = 0; i < 2; i++) {
        OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
        OK(cuCtxSetCurrent(contexts[i]));
        OK(cuMemAlloc(&memory[i], BYTES));
    }
    CUDA_MEMCPY3D_PEER copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                               .srcDevice = memory[0],
                               .srcContext = contexts[0],
                               .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                               .dstDevice = memory[1],
                               .dstContext = contexts[1],
                               .WidthInBytes = BYTES,
                               .Height = 1,
                               .Depth = 1};
    /* Those that take no stream do not look at the argument. */
    CUresult code =
        strncmp(argv[1], "cuMemcpy3D", 10) == 0
            ? ((copy_3d_t *)function)(&copy, NULL)
            : ((copy_t *)function)(memory[1], contexts[1], memory[0], contexts[0], BYTES, NULL);
    printf("%d\n", (int)code);
    OK(cuCtxSynchronize()); /* the copy's: a free waits for the memory's own context alone */
    for (int i = 0; i < 2; i++)
        OK(cuMemFree(memory[i]));
    return 0;
}
