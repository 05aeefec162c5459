/* Memory of device 1, asked for with device 0 current. Device 1 holds 40 MiB.
 *
 * both_elsewhere async | pool | vmm    50 MiB more of it, which a device of 64 MiB has not; prints
 *                                      which device the function for that was told
 * both_elsewhere tracked               1 MiB on a stream there, and 2 MiB of its pool, are left */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include "check.h"
#include "shim_stats.h"

#define MIB ((size_t)1 << 20)

static int told = -1;

static int tell(size_t bytes, int device, int pinned, void *arg)
{
    (void)bytes, (void)pinned, (void)arg;
    told = device;
    return 0;
}

static CUresult create(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
    return cuMemCreate(&handle, 50 * MIB, &what, 0);
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "async";
    void *held;
    CUdeviceptr memory;
    CUmemoryPool pool;
    cudaStream_t here, there;
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&held, 40 * MIB));
    OK(cudaStreamCreate(&there));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreate(&here));
    OK(cuDeviceGetDefaultMemPool(&pool, 1));
    if (cachealloc_on_oom)
        OK(cachealloc_on_oom(tell, NULL));
    if (strcmp(way, "async") == 0) {
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&memory, 50 * MIB, there));
    } else if (strcmp(way, "pool") == 0) {
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&memory, 50 * MIB, pool, here));
    } else if (strcmp(way, "vmm") == 0) {
        ANSWERS(CUDA_ERROR_OUT_OF_MEMORY, create());
    } else {
        OK(cuMemAllocAsync(&memory, 1 * MIB, there));
        OK(cuMemAllocFromPoolAsync(&memory, 2 * MIB, pool, here));
    }
    if (told >= 0)
        printf("device %d\n", told);
    OK(cudaFree(held));
    return 0;
}
