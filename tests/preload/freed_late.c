/* An address is freed whose context died, and the driver takes so long that it gives the address to
 * another thread meanwhile: what that thread has stays. (SIMCUDA=latency:cuMemFree_v2=NS holds the
 * free up. The plain program loses that memory; with the library it would be the segment that all
 * else is served from.) */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <time.h>
#include "check.h"

#define BYTES 4096
#define MORE 8

static void *free_late(void *pointer)
{
    (void)cudaFree(pointer); /* what it answers depends on who has the address by then */
    (void)cudaGetLastError();
    return NULL;
}

int main(void)
{
    const struct timespec moment = {.tv_nsec = 30000000};
    void *old, *pointers[MORE];
    pthread_t thread;
    OK(cudaMalloc(&old, BYTES));
    OK(cudaDeviceReset());
    OK(cudaFree(NULL)); /* the context is there, and no segment in it */
    OK(pthread_create(&thread, NULL, free_late, old));
    nanosleep(&moment, NULL); /* it is in the driver, most likely: later, there is nothing to see */
    for (int i = 0; i < MORE; i++)
        OK(cudaMalloc(&pointers[i], BYTES));
    printf("the address came again: %d\n", pointers[0] == old);
    OK(pthread_join(thread, NULL));
    for (int i = 0; i < MORE; i++)
        OK(cudaMemset(pointers[i], i, BYTES));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < MORE; i++) {
        unsigned char last = 0xFF;
        OK(cudaMemcpy(&last, (char *)pointers[i] + BYTES - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(last == i);
        OK(cudaFree(pointers[i]));
    }
    return 0;
}
