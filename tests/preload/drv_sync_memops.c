/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which the driver keeps for a whole allocation of its own,
 * belongs to the block that it was set on, wherever in it: not to the next one there, not to none
 * because a neighbour's was unset, and not to what a reset took away.
 *
 * drv_sync_memops [RESETS] */
#include <cuda.h>
#include "check.h"

static const unsigned on = 1, off = 0;

static unsigned of(CUdeviceptr memory)
{
    unsigned value = 7;
    OK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    return value;
}

static void set(CUdeviceptr memory, const unsigned *value)
{
    OK(cuPointerSetAttribute(value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUdeviceptr one, other;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));

    for (unsigned i = 0; i < 2000; i++) { /* more than there are marks */
        OK(cuMemAlloc(&one, 64 << 10));
        CHECK(of(one) == 0);
        set(one + 256 + i % 200 * 256, &on); /* inside it */
        CHECK(of(one) == 1);
        OK(cuMemFree(one));
    }

    OK(cuMemAlloc(&one, 4096));
    OK(cuMemAlloc(&other, 4096));
    set(one, &on);
    set(other, &on);
    set(one + 512, &off);
    CHECK(of(other) == 1);
    set(other, &off);
    CHECK(of(other) == 0);
    set(other, &on);
    OK(cuMemFree(other));
    CHECK(of(one) == 0);

    for (long resets = argc > 1 ? atol(argv[1]) : 3; resets > 0; resets--) {
        OK(cuMemAlloc(&one, 4096));
        set(one, &on);
        OK(cuDevicePrimaryCtxReset(0));
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
    }
    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc(&one, 4096));
        CHECK(of(one) == 0);
        set(one, &on);
        OK(cuMemFree(one));
    }
    return 0;
}
