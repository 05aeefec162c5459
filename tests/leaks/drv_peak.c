/* What made the peak is no plain allocation, and is freed by the call of its own kind.
 *
 * also: mipmap created pinned external
 * conf: peak:always
 * arguments: array
 * arguments[mipmap]: mipmap
 * arguments[created]: created
 * arguments[pinned]: pinned
 * arguments[external]: external
 * expect peak: 4194304 bytes in 1, array: take@array < main@main
 * expect peak[mipmap]: 4194304 bytes in 1, mipmap: take@mipmap < main@main
 * expect peak[created]: 4194304 bytes in 1, vmm: take@created < main@main
 * expect peak[pinned]: 4194304 bytes in 1, registered: take@pinned < main@main
 * expect peak[external]: 4194304 bytes in 1, external: take@external < main@main
 */
#include <cuda.h>
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"
#include "tests/leaks/leak.h"

#define BYTES ((size_t)4 << 20)

static char host[BYTES];
static CUdeviceptr small;

FRAME static int take(const char *kind)
{
    const CUDA_ARRAY3D_DESCRIPTOR what = {
        .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUarray array;
    CUmipmappedArray mipmap;
    CUmemGenericAllocationHandle created;
    if (strcmp(kind, "array") == 0) {
        OK(cuArray3DCreate(&array, &what)); /* @array */
        OK(cuArrayDestroy(array));
    } else if (strcmp(kind, "mipmap") == 0) {
        OK(cuMipmappedArrayCreate(&mipmap, &what, 1)); /* @mipmap */
        OK(cuMipmappedArrayDestroy(mipmap));
    } else if (strcmp(kind, "created") == 0) {
        OK(cuMemCreate(&created, BYTES, &prop, 0)); /* @created */
        OK(cuMemRelease(created));
    } else if (strcmp(kind, "pinned") == 0) {
        OK(cuMemHostRegister(host, BYTES, 0)); /* @pinned */
        OK(cuMemHostUnregister(host));
    } else {
        CHECK(strcmp(kind, "external") == 0 && cachealloc_register);
        OK(cachealloc_register(host, BYTES, NULL, NULL)); /* @external */
        OK(cachealloc_unregister(host));
    }
    return 1;
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CHECK(argc == 2);
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    CHECK(take(argv[1]) == 1); /* @main */
    OK(cuMemAlloc(&small, 1000));
    OK(cuMemFree(small));
    return 0;
}
