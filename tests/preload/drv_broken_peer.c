/* One context of two on a device is broken, and the other one works on: what is freed there serves
 * again, and with free_sync:true a free waits for its work.
 *
 * drv_broken_peer ROUNDS [waits]   waits: the work ends by itself; otherwise once the free is back
 */
#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include "check.h"

#define WORK_NS 100000000

static bool waits;
static atomic_bool freed, done;

static void CUDA_CB work(void *unused)
{
    struct timespec time = {0, WORK_NS};
    (void)unused;
    do
        nanosleep(&time, NULL);
    while (!waits && !atomic_load(&freed));
    atomic_store(&done, true);
}

static void break_current(void)
{
    CUdeviceptr memory;
    OK(cuMemAlloc(&memory, 1 << 20));
    (void)cuMemsetD8Async(memory + ((size_t)1 << 38), 1, 64, NULL);
    if (cuCtxSynchronize() != CUDA_ERROR_ILLEGAL_ADDRESS) {
        puts("needs a fill of an illegal address to be submitted");
        exit(77);
    }
}

int main(int argc, char **argv)
{
    CUcontext healthy, broken;
    CUdeviceptr memory;
    CUstream stream;
    CHECK(argc == 2 || argc == 3);
    waits = argc == 3;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&healthy, 0));
    OK(cuCtxCreate(&broken, NULL, 0, 0)); /* and is current now */
    break_current();

    OK(cuCtxSetCurrent(healthy));
    for (long rounds = atol(argv[1]); rounds > 0; rounds--) {
        OK(cuMemAlloc(&memory, 8 << 20));
        OK(cuMemsetD8(memory, 1, 8 << 20));
        OK(cuCtxSynchronize());
        OK(cuMemFree(memory));
    }
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&memory, 1 << 20));
    OK(cuLaunchHostFunc(stream, work, NULL));
    OK(cuMemFree(memory));
    puts(atomic_load(&done) ? "waited" : "did not wait");
    atomic_store(&freed, true);
    OK(cuCtxSynchronize());
    return 0;
}
