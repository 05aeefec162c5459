/* Four threads allocate and free in a context that is destroyed under them. They may see only codes
 * that CUDA has for that; afterwards a new context serves as ever, and of the old one's memory
 * nothing is left: not in the statistics, not in the report at exit.
 *
 * drv_ctx_storm destroy|release [ROUNDS [SEED]]: a created context is destroyed, or the primary
 * context, which the threads have retained, is released for the last time. */
#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include "check.h"
#include "shim_stats.h"

#define THREADS 4
#define LIVE 16
#define ENOUGH 400 /* operations of all threads before the context goes */

static pthread_barrier_t start, end;
static CUcontext victim;
static CUdevice device, other;
static _Atomic uint64_t operations;
static atomic_bool over, done;
static uint64_t seed;

/* cuda.h on CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_CONTEXT_IS_DESTROYED; a pointer into memory
 * that went away is no valid value. */
static bool legal(CUresult code)
{
    return code == CUDA_SUCCESS || code == CUDA_ERROR_INVALID_CONTEXT ||
           code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_INVALID_VALUE;
}

static size_t random_bytes(uint64_t *random)
{
    size_t power = (size_t)256 << (next_random(random) % 15);
    return power + next_random(random) % power;
}

static void nothing(void *unused)
{
    (void)unused;
}

/* Until the context is gone, as this thread sees it, or everybody is told to stop. */
static void storm(uint64_t *random)
{
    CUdeviceptr pointers[LIVE] = {0};
    CUresult code = CUDA_SUCCESS;
    while (code == CUDA_SUCCESS && !atomic_load(&over)) {
        CUdeviceptr *slot = &pointers[next_random(random) % LIVE];
        bool used = *slot != 0;
        code = used ? cuMemFree(*slot) : cuMemAlloc(slot, random_bytes(random));
        if (code == CUDA_SUCCESS && used)
            *slot = 0;
        if (code == CUDA_SUCCESS && next_random(random) % 4 == 0)
            code = cuLaunchHostFunc(NULL, nothing, NULL); /* so that there is something to fence */
        if (!legal(code))
            FAIL("a thread was answered %d", (int)code);
        if (code == CUDA_SUCCESS)
            atomic_fetch_add(&operations, 1);
    }
}

static void *thread_body(void *number)
{
    uint64_t random = seed + 1 + (uint64_t)(uintptr_t)number;
    for (;;) {
        pthread_barrier_wait(&start);
        if (atomic_load(&done))
            return NULL;
        OK(cuCtxSetCurrent(victim));
        pthread_barrier_wait(&start);
        storm(&random);
        pthread_barrier_wait(&end);
        OK(cuCtxSetCurrent(NULL));
    }
}

/* In a context of its own, which lives on: contents hold, and all of it can be freed. */
static void check_calm(void)
{
    CUdeviceptr pointers[LIVE];
    for (size_t i = 0; i < LIVE; i++) {
        OK(cuMemAlloc(&pointers[i], (size_t)4096 << i % 10));
        OK(cuMemsetD8(pointers[i], (unsigned char)i, (size_t)4096 << i % 10));
    }
    for (size_t i = 0; i < LIVE; i++) {
        unsigned char last = 0xFF;
        OK(cuMemcpyDtoH(&last, pointers[i] + ((size_t)4096 << i % 10) - 1, 1));
        CHECK(last == i);
        OK(cuMemFree(pointers[i]));
    }
}

/* While the threads are at it. A free that they began before their context went may come after it,
 * so the calm context must not be given that address: it is on another device, if there is one. */
static void busy(void)
{
    if (other == device)
        sched_yield();
    else
        check_calm();
}

static CUcontext make(bool primary)
{
    CUcontext context;
    if (primary) {
        OK(cuDevicePrimaryCtxRetain(&context, device));
    } else {
        CUcontext popped;
        OK(cuCtxCreate(&context, NULL, 0, device));
        OK(cuCtxPopCurrent(&popped));
    }
    return context;
}

int main(int argc, char **argv)
{
    bool primary = argc > 1 && strcmp(argv[1], "release") == 0;
    uint64_t rounds = number_argument(argc, argv, 2, 50);
    pthread_t threads[THREADS];
    cachealloc_stats_t stats;
    CUcontext calm;
    int count;
    seed = number_argument(argc, argv, 3, 1) * 1000;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDeviceGetCount(&count));
    OK(cuDeviceGet(&other, count - 1));
    OK(cuCtxCreate(&calm, NULL, 0, other));
    pthread_barrier_init(&start, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, thread_body, (void *)(uintptr_t)i));

    for (uint64_t round = 0; round < rounds; round++) {
        victim = make(primary);
        atomic_store(&over, false);
        atomic_store(&operations, 0);
        pthread_barrier_wait(&start);
        pthread_barrier_wait(&start); /* it is current to all of them */
        while (atomic_load(&operations) < ENOUGH)
            busy();
        OK(primary ? cuDevicePrimaryCtxRelease(device) : cuCtxDestroy(victim));
        busy();
        atomic_store(&over, true);
        pthread_barrier_wait(&end);
        check_calm();
    }
    atomic_store(&done, true);
    pthread_barrier_wait(&start);
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));

    check_calm();
    if (shim_stats(&stats)) {
        CHECK(stats.live_bytes == 0);
        CHECK(stats.reserved_bytes <= (size_t)64 << 20); /* the calm context's few */
    }
    OK(cuCtxDestroy(calm));
    if (shim_stats(&stats))
        CHECK(stats.reserved_bytes == 0);
    return 0;
}
