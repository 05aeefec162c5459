/* Code is loaded when all memory was just freed with work in flight: the plain free waits for that
 * work, so the load succeeds. */
#include <cuda.h>
#include <pthread.h>
#include <time.h>
#include "check.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int open_now;

static void CUDA_CB gate(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!open_now)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* Lets time pass first: nothing tells that the main thread is waiting. */
static void *open_later(void *unused)
{
    struct timespec pause = {.tv_nsec = 50000000};
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&lock);
    open_now = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return unused;
}

int main(void)
{
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr memory[3];
    CUmodule module;
    pthread_t opener;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 3; i++)
        OK(cuMemAlloc(&memory[i], (size_t)80 << 20));
    OK(cuLaunchHostFunc(stream, gate, NULL));
    OK(pthread_create(&opener, NULL, open_later, NULL));
    for (int i = 0; i < 3; i++) {
        OK(cuMemsetD8Async(memory[i], i, (size_t)80 << 20, stream));
        OK(cuMemFree(memory[i]));
    }
    OK(cuModuleLoadData(&module, "image"));
    OK(pthread_join(opener, NULL));
    OK(cuModuleUnload(module));
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(device));
    return 0;
}
