/* Threads allocate, exchange and free buffers: most are freed by a thread that did not allocate
 * them. Contents are verified just before the free. threads [THREADS [ROUNDS]] */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

#define SLOTS 32
#define THREADS_MOST 16

typedef struct buffer {
    void *pointer;
    size_t bytes;
    uint64_t tag;
} buffer_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static buffer_t slots[SLOTS];
static uint64_t rounds;

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
    buffer_t buffer = {.tag = next_random(random)};
    buffer.bytes = 16 + next_random(random) % ((size_t)16 << (next_random(random) % 18));
    OK(cudaMalloc(&buffer.pointer, buffer.bytes));
    char *end = (char *)buffer.pointer + buffer.bytes - sizeof(buffer.tag);
    OK(cudaMemcpy(buffer.pointer, &buffer.tag, sizeof(buffer.tag), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(end, &buffer.tag, sizeof(buffer.tag), cudaMemcpyHostToDevice));
    return buffer;
}

static void death(buffer_t buffer)
{
    uint64_t first, last;
    if (!buffer.pointer)
        return;
    char *end = (char *)buffer.pointer + buffer.bytes - sizeof(last);
    OK(cudaMemcpy(&first, buffer.pointer, sizeof(first), cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&last, end, sizeof(last), cudaMemcpyDeviceToHost));
    CHECK(first == buffer.tag && last == buffer.tag);
    OK(cudaFree(buffer.pointer));
}

static void *work(void *seed)
{
    uint64_t random = (uint64_t)(uintptr_t)seed;
    for (uint64_t i = 0; i < rounds; i++)
        death(exchange(next_random(&random) % SLOTS, birth(&random)));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MOST];
    uint64_t count = number_argument(argc, argv, 1, 8);
    rounds = number_argument(argc, argv, 2, 2000);
    CHECK(count >= 1 && count <= THREADS_MOST);
    for (uint64_t i = 0; i < count; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)));
    for (uint64_t i = 0; i < count; i++)
        OK(pthread_join(threads[i], NULL));
    for (size_t i = 0; i < SLOTS; i++)
        death(slots[i]);
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
