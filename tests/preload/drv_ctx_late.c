/* A context is destroyed while another thread frees memory of the primary one, once the driver has
 * been told to wait for an event: where that can be told, one of a fence over both contexts.
 *
 * drv_ctx_late [first]: it is the first context there is, otherwise the second. */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "check.h"

static CUcontext primary, other;
static CUdevice device;
static uint64_t (*calls)(const char *);
static atomic_bool freed;

static void make_other(void)
{
    CUcontext popped;
    CUdeviceptr memory;
    OK(cuCtxCreate(&other, NULL, 0, device));
    OK(cuMemAlloc(&memory, 4096));
    OK(cuMemFree(memory));
    OK(cuCtxPopCurrent(&popped));
}

static void *destroy_other(void *unused)
{
    (void)unused;
    while (!atomic_load(&freed) && !(calls && calls("cuStreamWaitEvent")))
        sched_yield();
    OK(cuCtxDestroy(other));
    return NULL;
}

static void use(CUdeviceptr memory)
{
    unsigned char last = 0;
    OK(cuMemsetD8(memory, 7, 4096));
    OK(cuMemcpyDtoH(&last, memory + 4095, 1));
    CHECK(last == 7);
}

int main(int argc, char **argv)
{
    CUdeviceptr memory;
    pthread_t thread;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    bool first = argc > 1 && strcmp(argv[1], "first") == 0;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    if (first)
        make_other();
    OK(cuDevicePrimaryCtxRetain(&primary, device));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc(&memory, 4096));
    use(memory);
    if (!first)
        make_other();

    CHECK(library);
    calls = (uint64_t(*)(const char *))dlsym(library, "simcuda_calls");
    int (*fail)(const char *, const char *, uint64_t, int) =
        (int (*)(const char *, const char *, uint64_t, int))dlsym(library, "simcuda_fail");
    if (fail) /* none: counts from here on */
        OK(fail("cuStreamWaitEvent", NULL, 0, 0));
    OK(pthread_create(&thread, NULL, destroy_other, NULL));
    OK(cuMemFree(memory));
    atomic_store(&freed, true);
    OK(pthread_join(thread, NULL));

    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc(&memory, 4096));
        use(memory);
        OK(cuMemFree(memory));
    }
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
