/* A context is made when all memory was just freed: it takes some for itself. drv_room_context WAY,
 * which is `own`, or `primary` of a device that another context used, or `green` beside which that
 * is made. */
#include <cuda.h>
#include <stdbool.h>
#include <string.h>
#include "check.h"
#include "green.h"

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext user, made;
    CUdeviceptr memory[2];
    CHECK(argc == 2);
    bool green = strcmp(argv[1], "green") == 0, primary = strcmp(argv[1], "primary") == 0;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuCtxCreate(&user, NULL, 0, device));
    for (int i = 0; i < 2; i++)
        OK(cuMemAlloc(&memory[i], (size_t)80 << 20));
    for (int i = 0; i < 2; i++)
        OK(cuMemFree(memory[i]));
    if (green) {
        OK(cuGreenCtxDestroy(green_handle()));
    } else if (primary) {
        OK(cuDevicePrimaryCtxRetain(&made, device));
        OK(cuDevicePrimaryCtxRelease(device));
    } else {
        OK(cuCtxCreate(&made, NULL, 0, device));
        OK(cuCtxDestroy(made));
    }
    OK(cuCtxDestroy(user));
    return 0;
}
