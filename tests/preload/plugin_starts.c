/* A library whose constructor waits for a thread that allocates: the loader's lock is held all the
 * while. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

static void *work(void *arg)
{
    void *pointers[3];
    for (int i = 0; i < 3; i++)
        OK(cudaMalloc(&pointers[i], (size_t)3000 << 10 * i));
    for (int i = 0; i < 3; i++)
        OK(cudaFree(pointers[i]));
    return arg;
}

__attribute__((constructor)) static void at_load(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}
