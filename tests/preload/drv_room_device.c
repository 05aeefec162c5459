/* Stream-ordered memory of another device than the current one's, when all of that was just freed.
 * drv_room_device WAY: `pool`, from a pool of that device in the order of a stream of this one;
 * `stream`, from that device's own pool, which the program has tuned, in the order of a stream
 * there. */
#include <cuda.h>
#include <string.h>
#include "check.h"

#define BYTES ((size_t)80 << 20)

int main(int argc, char **argv)
{
    CUcontext here, there;
    CUstream stream;
    CUdeviceptr memory[2];
    CUmemoryPool pool;
    int devices;
    CHECK(argc == 2);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&devices));
    if (devices < 2)
        return 77;
    OK(cuDevicePrimaryCtxRetain(&here, 0));
    OK(cuDevicePrimaryCtxRetain(&there, 1));
    OK(cuCtxSetCurrent(there));
    for (int i = 0; i < 2; i++)
        OK(cuMemAlloc(&memory[i], BYTES));
    for (int i = 0; i < 2; i++)
        OK(cuMemFree(memory[i]));
    if (strcmp(argv[1], "pool") == 0) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
        OK(cuMemPoolCreate(&pool, &props));
        OK(cuCtxSetCurrent(here));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuMemAllocFromPoolAsync(&memory[0], 2 * BYTES, pool, stream));
        OK(cuMemFreeAsync(memory[0], stream));
        OK(cuStreamSynchronize(stream));
        OK(cuMemPoolDestroy(pool));
    } else {
        cuuint64_t kept = 1 << 20;
        OK(cuDeviceGetDefaultMemPool(&pool, 1));
        OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuCtxSetCurrent(here));
        OK(cuMemAllocAsync(&memory[0], 2 * BYTES, stream));
        OK(cuMemFreeAsync(memory[0], stream));
        OK(cuStreamSynchronize(stream));
    }
    return 0;
}
