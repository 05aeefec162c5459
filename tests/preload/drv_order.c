/* What may not be taken for the order of a stream, or for nobody's work. For the race check.
 *
 * drv_order legacy     two blocking streams use memory of the legacy stream in turns: its calls
 *                      stand between them
 * drv_order green      default streams of a green context and of its primary are two
 * drv_order unseen     a context that never allocates works on pinned memory of another
 * drv_order current    cuMemSetMemPool chooses a pool for stream-ordered memory
 * drv_order destroyed  calls in one context while another is destroyed, which takes long */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include "check.h"
#include "green.h"

#define BYTES ((size_t)8 << 20)
#define ROUNDS 20

static CUcontext primary;

static void legacy(void)
{
    CUstream streams[2];
    CUdeviceptr memory;
    for (int i = 0; i < 2; i++)
        OK(cuStreamCreate(&streams[i], CU_STREAM_DEFAULT));
    for (int i = 0; i < ROUNDS; i++) {
        OK(cuMemAllocAsync(&memory, BYTES, NULL));
        OK(cuMemsetD8Async(memory, (unsigned char)i, BYTES, streams[i % 2]));
        OK(cuMemFreeAsync(memory, NULL));
    }
    OK(cuCtxSynchronize());
}

static void use_default_stream(CUcontext context, unsigned char value)
{
    CUdeviceptr memory;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync(&memory, BYTES, NULL));
    OK(cuMemsetD8Async(memory, value, BYTES, NULL));
    OK(cuMemFreeAsync(memory, NULL));
}

static void green(void)
{
    CUcontext context = green_context();
    for (int i = 0; i < ROUNDS; i++) {
        use_default_stream(context, 1);
        use_default_stream(primary, 2);
    }
    OK(cuCtxSynchronize());
}

static void unseen(void)
{
    CUcontext owner, other;
    CUstream stream;
    void *memory;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuCtxCreate(&owner, NULL, 0, 0));
    for (int i = 0; i < ROUNDS; i++) {
        OK(cuCtxSetCurrent(owner));
        OK(cuMemHostAlloc(&memory, BYTES, CU_MEMHOSTALLOC_PORTABLE));
        OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, 9, BYTES, NULL));
        OK(cuStreamSynchronize(NULL));
        OK(cuCtxSetCurrent(other));
        OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)memory, (unsigned char)i, BYTES, stream));
        OK(cuCtxSetCurrent(owner));
        OK(cuMemFreeHost(memory));
    }
    OK(cuCtxSetCurrent(other));
    OK(cuCtxSynchronize());
}

static void current(void)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemoryPool pool, usual;
    CUstream stream;
    CUdeviceptr memory;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuDeviceGetDefaultMemPool(&usual, 0));
    OK(cuMemPoolCreate(&pool, &properties));
    for (int i = 0; i < 2; i++) { /* the second is the default one again */
        OK(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, i == 0 ? pool : usual));
        OK(cuMemAllocAsync(&memory, BYTES, stream));
        OK(cuMemFreeAsync(memory, stream));
    }
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolDestroy(pool));
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static _Atomic int destroying; /* 1: about to be, 2: is */

static void *destroy_thread(void *context)
{
    atomic_store(&destroying, 1);
    OK(cuCtxDestroy(context));
    atomic_store(&destroying, 2);
    return NULL;
}

static void destroyed(void)
{
    CUcontext other;
    pthread_t thread;
    CUdeviceptr memory;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuMemAlloc(&memory, BYTES));
    OK(cuMemFree(memory));
    OK(cuCtxSetCurrent(primary));
    OK(pthread_create(&thread, NULL, destroy_thread, other));
    while (atomic_load(&destroying) == 0) {
    }
    double start = seconds();
    for (int i = 0; i<ROUNDS; i += seconds()> start + 0.2) { /* by then it is */
        OK(cuMemAlloc(&memory, BYTES));
        OK(cuMemFree(memory));
    }
    CHECK(atomic_load(&destroying) == 1);
    OK(pthread_join(thread, NULL));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"legacy", legacy},
                 {"green", green},
                 {"unseen", unseen},
                 {"current", current},
                 {"destroyed", destroyed}};
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (argc > 1 && strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("unknown case");
}
