/* A device is reset again and again while four threads allocate and free on it: they may see only
 * codes that CUDA has for that, and afterwards everything works and nothing is counted that is not
 * there. With two devices, two of the threads use the last one, which is never reset: they must see
 * success alone, and their contents hold.
 *
 * ctx_storm [RESETS [SEED [LEAKS]]]: LEAKS buffers are left behind at the end. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include "check.h"
#include "shim_stats.h"

#define THREADS 4
#define LIVE 16
#define BETWEEN 200 /* operations of all threads between two resets */

static _Atomic uint64_t operations;
static atomic_bool over;
static int devices;
static uint64_t seed;

static bool legal(cudaError_t code)
{
    return code == cudaSuccess || code == cudaErrorInvalidValue ||
           code == cudaErrorContextIsDestroyed || code == cudaErrorDeviceUninitialized;
}

static size_t random_bytes(uint64_t *random)
{
    size_t power = (size_t)256 << (next_random(random) % 15);
    return power + next_random(random) % power;
}

/* On the device that is reset: whether a pointer is still good nobody knows, so nothing is written;
 * another thread's new buffer may have its address. */
static void *storm(void *number)
{
    uint64_t random = seed + (uint64_t)(uintptr_t)number;
    void *pointers[LIVE] = {0};
    OK(cudaSetDevice(0));
    while (!atomic_load(&over)) {
        void **slot = &pointers[next_random(&random) % LIVE];
        bool used = *slot != NULL;
        cudaError_t code = used ? cudaFree(*slot) : cudaMalloc(slot, random_bytes(&random));
        if (!legal(code))
            FAIL("a thread was answered %d", (int)code);
        if (code != cudaSuccess)
            (void)cudaGetLastError();
        if (used || code != cudaSuccess)
            *slot = NULL; /* freed, or lost in a reset */
        atomic_fetch_add(&operations, 1);
    }
    return NULL;
}

static void *bystander(void *number)
{
    uint64_t random = seed + (uint64_t)(uintptr_t)number;
    OK(cudaSetDevice(devices - 1));
    while (!atomic_load(&over)) {
        unsigned char last = 0, value = (unsigned char)next_random(&random);
        size_t bytes = random_bytes(&random);
        char *pointer;
        OK(cudaMalloc((void **)&pointer, bytes));
        OK(cudaMemset(pointer, value, bytes));
        OK(cudaMemcpy(&last, pointer + bytes - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(last == value);
        OK(cudaFree(pointer));
        atomic_fetch_add(&operations, 1);
    }
    return NULL;
}

static void *reset(void *unused)
{
    OK(cudaSetDevice(0)); /* with no context current a reset does nothing */
    OK(cudaDeviceReset());
    return unused;
}

/* After all the others have ended. */
static void *check_after(void *leaks)
{
    cachealloc_stats_t stats;
    void *pointers[LIVE];
    OK(cudaSetDevice(0));
    OK(cudaDeviceReset());
    if (shim_stats(&stats))
        CHECK(stats.live_bytes == 0);
    for (size_t i = 0; i < LIVE; i++) {
        OK(cudaMalloc(&pointers[i], 1000 * (i + 1)));
        OK(cudaMemset(pointers[i], (int)i, 1000 * (i + 1)));
    }
    if (shim_stats(&stats))
        CHECK(stats.live_bytes == (size_t)1000 * LIVE * (LIVE + 1) / 2);
    for (size_t i = 0; i < LIVE; i++) {
        unsigned char last = 0xFF;
        OK(cudaMemcpy(&last, (char *)pointers[i] + 1000 * (i + 1) - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(last == i);
        if (i >= (uintptr_t)leaks)
            OK(cudaFree(pointers[i]));
    }
    ANSWERS(cudaSuccess, cudaGetLastError());
    return NULL;
}

/* In a thread of its own, which has no context current that died before. */
static void in_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, body, argument));
    OK(pthread_join(thread, NULL));
}

int main(int argc, char **argv)
{
    uint64_t resets = number_argument(argc, argv, 1, 100);
    pthread_t threads[THREADS];
    seed = number_argument(argc, argv, 2, 1) * 1000 + 1;
    OK(cudaGetDeviceCount(&devices));
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, devices > 1 && i % 2 ? bystander : storm,
                          (void *)(uintptr_t)i));
    for (uint64_t i = 1; i <= resets; i++) {
        while (atomic_load(&operations) < i * BETWEEN)
            sched_yield();
        in_thread(reset, NULL);
    }
    atomic_store(&over, true);
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));
    in_thread(check_after, (void *)(uintptr_t)number_argument(argc, argv, 3, 0));
    return 0;
}
