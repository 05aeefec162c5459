/* Several devices: a buffer is freed by a thread whose current device is another one; contents stay
 * right; a device is reset while memory on it is live, and is usable again afterwards.
 * With one device, that one plays both parts. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

#define BUFFERS 100

static void *buffers[BUFFERS];
static int devices;

/* Bytes from 1000 to 3 MiB */
static size_t size_of(int i)
{
    return (size_t)1000 + (size_t)i * 31457;
}

static void *allocate_on_first(void *unused)
{
    OK(cudaSetDevice(0));
    for (int i = 0; i < BUFFERS; i++) {
        OK(cudaMalloc(&buffers[i], size_of(i)));
        OK(cudaMemset(buffers[i], i, size_of(i)));
    }
    OK(cudaDeviceSynchronize()); /* copies on another device wait for nothing here */
    return unused;
}

static void *free_from_last(void *unused)
{
    OK(cudaSetDevice(devices - 1));
    for (int i = 0; i < BUFFERS; i++) {
        unsigned char last = 0;
        void *mine;
        OK(cudaMemcpy(&last, (char *)buffers[i] + size_of(i) - 1, 1, cudaMemcpyDeviceToHost));
        CHECK(last == i);
        OK(cudaFree(buffers[i]));
        /* What was freed belongs to the first device: it must not come back on this one. */
        struct cudaPointerAttributes attributes;
        OK(cudaMalloc(&mine, size_of(i)));
        OK(cudaPointerGetAttributes(&attributes, mine));
        CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == devices - 1);
        OK(cudaFree(mine));
    }
    return unused;
}

static void in_thread(void *(*work)(void *))
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, work, NULL));
    OK(pthread_join(thread, NULL));
}

int main(void)
{
    OK(cudaGetDeviceCount(&devices));
    CHECK(devices >= 1);
    for (int round = 0; round < 3; round++) {
        in_thread(allocate_on_first);
        in_thread(free_from_last);
    }

    /* A reset takes the device's memory along: old pointers are unknown, new memory works. */
    in_thread(allocate_on_first);
    OK(cudaSetDevice(0));
    OK(cudaDeviceReset());
    for (int i = 0; i < BUFFERS; i++)
        ANSWERS(cudaErrorInvalidValue, cudaFree(buffers[i]));
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
    in_thread(allocate_on_first);
    in_thread(free_from_last);
    return 0;
}
