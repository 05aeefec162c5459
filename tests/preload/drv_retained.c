/* The last reference to the primary context is released while another thread retains it: it ends
 * and is made anew, perhaps with the same handle, before the release has returned (with
 * SIMCUDA=latency:cuDevicePrimaryCtxGetState=200000000, which we ask then). What is allocated
 * afterwards is there. */
#include <cuda.h>
#include <pthread.h>
#include <time.h>
#include "check.h"

#define BUFFERS 20
#define BYTES ((size_t)1 << 20)

static CUcontext again;

static void *retain(void *unused)
{
    const struct timespec moment = {.tv_nsec = 50000000};
    nanosleep(&moment, NULL);
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    return unused;
}

static void use(void)
{
    CUdeviceptr p[BUFFERS];
    for (size_t i = 0; i < BUFFERS; i++) {
        unsigned char last = 0;
        OK(cuMemAlloc(&p[i], BYTES));
        OK(cuMemsetD8(p[i], (unsigned char)i, BYTES));
        OK(cuMemcpyDtoH(&last, p[i] + BYTES - 1, 1));
        CHECK(last == i);
    }
    for (size_t i = 0; i < BUFFERS; i++)
        OK(cuMemFree(p[i]));
    OK(cuCtxSynchronize());
}

int main(void)
{
    pthread_t thread;
    CUcontext first;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuCtxSetCurrent(first));
    use();
    OK(cuCtxSetCurrent(NULL));
    OK(pthread_create(&thread, NULL, retain, NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(pthread_join(thread, NULL));
    OK(cuCtxSetCurrent(again));
    use();
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
