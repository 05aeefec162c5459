/* Threads on several devices exchange buffers: most are verified and freed by a thread whose
 * current device is another one. Every buffer must lie on the device it was asked on.
 * cross_free [THREADS [ROUNDS]] */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

#define SLOTS 32
#define THREADS_MOST 16

typedef struct buffer {
    char *pointer;
    size_t bytes;
    unsigned char value;
} buffer_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static buffer_t slots[SLOTS];
static uint64_t rounds;
static int devices;

static buffer_t exchange(size_t slot, buffer_t mine)
{
    pthread_mutex_lock(&lock);
    buffer_t theirs = slots[slot];
    slots[slot] = mine;
    pthread_mutex_unlock(&lock);
    return theirs;
}

static buffer_t birth(uint64_t *random)
{
    struct cudaPointerAttributes attributes;
    buffer_t buffer = {.value = (unsigned char)next_random(random)};
    int device = (int)(next_random(random) % (unsigned)devices);
    buffer.bytes = 16 + next_random(random) % ((size_t)16 << (next_random(random) % 18));
    OK(cudaSetDevice(device));
    OK(cudaMalloc((void **)&buffer.pointer, buffer.bytes));
    OK(cudaPointerGetAttributes(&attributes, buffer.pointer));
    CHECK(attributes.device == device);
    OK(cudaMemset(buffer.pointer, buffer.value, buffer.bytes));
    OK(cudaDeviceSynchronize()); /* the reader's device waits for nothing here */
    return buffer;
}

static void death(buffer_t buffer, uint64_t *random)
{
    unsigned char ends[2];
    if (!buffer.pointer)
        return;
    OK(cudaSetDevice((int)(next_random(random) % (unsigned)devices)));
    OK(cudaMemcpy(&ends[0], buffer.pointer, 1, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&ends[1], buffer.pointer + buffer.bytes - 1, 1, cudaMemcpyDeviceToHost));
    CHECK(ends[0] == buffer.value && ends[1] == buffer.value);
    OK(cudaFree(buffer.pointer));
}

static void *work(void *number)
{
    uint64_t random = (uint64_t)(uintptr_t)number;
    for (uint64_t i = 0; i < rounds; i++)
        death(exchange(next_random(&random) % SLOTS, birth(&random)), &random);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MOST];
    uint64_t count = number_argument(argc, argv, 1, 4), random = 1;
    rounds = number_argument(argc, argv, 2, 1000);
    CHECK(count >= 1 && count <= THREADS_MOST);
    OK(cudaGetDeviceCount(&devices));
    for (int device = 0; device < devices; device++) {
        OK(cudaSetDevice(device));
        OK(cudaFree(NULL)); /* threads that make a context together release all but one of theirs */
    }
    for (uint64_t i = 0; i < count; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)));
    for (uint64_t i = 0; i < count; i++)
        OK(pthread_join(threads[i], NULL));
    for (size_t i = 0; i < SLOTS; i++)
        death(slots[i], &random);
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
