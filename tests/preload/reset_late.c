/* A device is reset while another thread makes its context: memory that is given afterwards is
 * there. (SIMCUDA=latency:cuDevicePrimaryCtxReset_v2=NS holds the reset up until it is made.)
 *
 * reset_late [before]: with a context that is reset before, too. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include "check.h"

#define PAIRS 300 /* enough for the cache to serve them */

static atomic_bool begun;

static void *reset(void *unused)
{
    atomic_store(&begun, true);
    OK(cudaDeviceReset());
    return unused;
}

/* Whatever the calls answer: the reset may come between any two. */
static void storm(void)
{
    void *pointer;
    for (int i = 0; i < PAIRS; i++)
        if (cudaMalloc(&pointer, 4096) == cudaSuccess)
            (void)cudaFree(pointer);
    (void)cudaGetLastError();
}

/* The thread's context died; what it is answered now depends on the driver. */
static void check_given(void)
{
    void *pointer;
    for (int i = 0; i < PAIRS; i++) {
        if (cudaMalloc(&pointer, 4096) != cudaSuccess)
            continue;
        OK(cudaMemset(pointer, 1, 4096));
        OK(cudaDeviceSynchronize());
        OK(cudaFree(pointer));
    }
}

int main(int argc, char **argv)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    pthread_t thread;
    int devices;
    OK(cudaGetDeviceCount(&devices));
    if (argc > 1) {
        CHECK(strcmp(argv[1], "before") == 0);
        storm();
        OK(cudaDeviceReset());
    }
    OK(pthread_create(&thread, NULL, reset, NULL));
    while (!atomic_load(&begun))
        nanosleep(&moment, NULL);
    nanosleep(&moment, NULL); /* it is in the driver, most likely: later, there is nothing to see */
    storm();
    OK(pthread_join(thread, NULL));
    check_given();
    return 0;
}
