/* Many threads ask about, name and free memory at the same time; nothing is lost or freed twice.
 *
 * api_threads THREADS ROUNDS */
#include <pthread.h>
#include <stdatomic.h>
#include "api.h"

#define THREADS_MOST 16
#define OWN 200

static pthread_barrier_t together;
static size_t threads, rounds;
static char *_Atomic shared[THREADS_MOST];
static atomic_size_t deleted;

static size_t size_of(size_t thread, size_t i)
{
    return 1 + (thread * OWN + i) * 37 % 9000;
}

/* Every thread's pointers are found, with what belongs to them, while all others change theirs. */
static void find_own(size_t self, uint64_t *seed)
{
    char *own[OWN];
    for (size_t i = 0; i < OWN; i++)
        OK(cudaMalloc((void **)&own[i], size_of(self, i)));
    for (size_t n = 0; n < OWN; n++) {
        size_t i = next_random(seed) % OWN;
        cachealloc_info_t info = api_info(own[i]);
        CHECK(info.base == own[i] && info.bytes == size_of(self, i) && info.names == 1);
        CHECK(info.block_bytes == 0 || api_info(own[i] + info.bytes - 1).base == own[i]);
    }
    for (size_t i = 0; i < OWN; i++)
        OK(cudaFree(own[i]));
}

/* The names of one buffer are freed by all threads at once: one of them frees the memory. */
static void free_names_together(size_t self)
{
    size_t neighbour = (self + 1) % threads;
    char *pointer;
    OK(cudaMalloc((void **)&pointer, 1000));
    for (size_t n = 1; n < threads; n++)
        OK(cachealloc_alias(pointer, pointer + n));
    shared[self] = pointer;
    pthread_barrier_wait(&together);
    for (size_t n = 0; n < threads; n++) {
        size_t owner = (neighbour + n) % threads;
        char *name = shared[owner] + (self + threads - owner) % threads;
        CHECK(api_info(name).base == shared[owner]);
        OK(cudaFree(name));
    }
    pthread_barrier_wait(&together);
    api_unknown(pointer);
}

/* Whoever names memory while its owner frees it either has it, or is told that it is gone. */
static void name_while_freed(size_t self)
{
    char *pointer, *theirs;
    OK(cudaMalloc((void **)&pointer, 1000));
    shared[self] = pointer;
    pthread_barrier_wait(&together);
    theirs = shared[(self + 1) % threads];
    if (self % 2)
        OK(cudaFree(pointer));
    int result = cachealloc_alias(theirs, theirs + 1);
    CHECK(result == 0 || result == ENOENT);
    if (result == 0) {
        CHECK(api_info(theirs + 1).base == theirs);
        OK(cudaFree(theirs + 1));
    }
    if (self % 2 == 0)
        OK(cudaFree(pointer));
    pthread_barrier_wait(&together);
    api_unknown(pointer);
    pthread_barrier_wait(&together);
}

static void count_deleted(void *pointer, size_t bytes, void *argument)
{
    CHECK(bytes == 64 && argument == pointer);
    atomic_fetch_add(&deleted, 1);
}

/* All free the same registered memory: one of them calls its deleter, the others are refused. */
static void free_one_together(size_t self)
{
    static char memory[64];
    if (self == 0)
        OK(cachealloc_register(memory, sizeof(memory), count_deleted, memory));
    pthread_barrier_wait(&together);
    cudaError_t code = cudaFree(memory);
    CHECK(code == cudaSuccess || code == cudaErrorInvalidValue);
    cudaGetLastError();
    pthread_barrier_wait(&together);
    CHECK(!cachealloc_is_registered(memory));
}

static void *work(void *argument)
{
    size_t self = (size_t)(uintptr_t)argument;
    uint64_t seed = self + 1;
    for (size_t round = 0; round < rounds; round++) {
        if (round % 10 == 0)
            find_own(self, &seed);
        free_names_together(self);
        free_one_together(self);
        for (int i = 0; i < 20; i++)
            name_while_freed(self);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t workers[THREADS_MOST];
    threads = number_argument(argc, argv, 1, 4);
    rounds = number_argument(argc, argv, 2, 100);
    CHECK(threads >= 1 && threads <= THREADS_MOST);
    if (!api_there())
        return 0;
    OK(cudaFree(NULL));
    OK(pthread_barrier_init(&together, NULL, (unsigned)threads));
    for (size_t i = 0; i < threads; i++)
        OK(pthread_create(&workers[i], NULL, work, (void *)(uintptr_t)i));
    for (size_t i = 0; i < threads; i++)
        OK(pthread_join(workers[i], NULL));
    cachealloc_stats_t stats = api_stats();
    CHECK(stats.live_allocations == 0 && stats.live_bytes == 0 && stats.block_bytes == 0);
    CHECK(deleted == rounds);
    return 0;
}
