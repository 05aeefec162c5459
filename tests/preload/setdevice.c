/* The current device of the thread decides where memory comes from, call by call, also when the
 * cache could serve the size from elsewhere. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

static int devices;

static void check_on(int device, size_t bytes)
{
    void *pointer;
    int current = -1;
    struct cudaPointerAttributes attributes;
    OK(cudaSetDevice(device));
    OK(cudaMalloc(&pointer, bytes));
    OK(cudaPointerGetAttributes(&attributes, pointer));
    CHECK(attributes.device == device);
    OK(cudaGetDevice(&current));
    CHECK(current == device);
    OK(cudaMemset(pointer, 1, bytes));
    OK(cudaFree(pointer));
}

/* A new thread starts on device 0, whatever the others do. */
static void *new_thread(void *unused)
{
    void *pointer;
    struct cudaPointerAttributes attributes;
    OK(cudaMalloc(&pointer, 1000));
    OK(cudaPointerGetAttributes(&attributes, pointer));
    CHECK(attributes.device == 0);
    OK(cudaFree(pointer));
    return unused;
}

int main(void)
{
    OK(cudaGetDeviceCount(&devices));
    for (int i = 0; i < 300; i++)
        check_on((i / 3) % devices, (size_t)1 << (i % 24));
    OK(cudaSetDevice(devices - 1));
    pthread_t thread;
    OK(pthread_create(&thread, NULL, new_thread, NULL));
    OK(pthread_join(thread, NULL));
    ANSWERS(cudaErrorInvalidDevice, cudaSetDevice(devices));
    ANSWERS(cudaErrorInvalidDevice, cudaGetLastError());
    check_on(devices - 1, 1000);
    return 0;
}
