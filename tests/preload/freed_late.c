/* An address is freed whose context died, and the driver takes so long that it gives the address to
 * another thread meanwhile: what that thread has stays. (SIMCUDA=latency:cuMemFree_v2=NS holds the
 * free up. The plain program loses that memory; with the library it would be the segment that all
 * else is served from.) */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "check.h"

#define BYTES 4096
#define MORE 8

static atomic_bool freed;

static void *free_late(void *pointer)
{
    (void)cudaFree(pointer); /* what it answers depends on who has the address by then */
    (void)cudaGetLastError();
    atomic_store(&freed, true);
    return NULL;
}

/* Until the thread is in the driver: what is allocated before it is may be what it frees. */
static void wait_for_the_free(uint64_t (*calls)(const char *))
{
    while (!atomic_load(&freed) && !(calls && calls("cuMemFree_v2")))
        sched_yield();
}

int main(void)
{
    void *old, *pointers[MORE], *library = dlopen("libcuda.so.1", RTLD_LAZY);
    pthread_t thread;
    CHECK(library);
    uint64_t (*calls)(const char *) = (uint64_t(*)(const char *))dlsym(library, "simcuda_calls");
    int (*fail)(const char *, const char *, uint64_t, int) =
        (int (*)(const char *, const char *, uint64_t, int))dlsym(library, "simcuda_fail");
    OK(cudaMalloc(&old, BYTES));
    OK(cudaDeviceReset());
    OK(cudaFree(NULL)); /* the context is there, and no segment in it */
    if (fail)           /* none: counts from here on */
        OK(fail("cuMemFree_v2", NULL, 0, 0));
    OK(pthread_create(&thread, NULL, free_late, old));
    wait_for_the_free(calls);
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
