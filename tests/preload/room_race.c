/* Threads ask the driver for memory at once while all of the device lies idle in the cache: there
 * is room for each of them, so none may be out of memory.
 *
 * room_race HOW [ROUNDS]: `pool` by a memory pool of the program's, `array`, or `malloc` of a size
 * that no idle memory of another's fits. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include "check.h"

#define THREADS 4
#define MIB ((size_t)1 << 20)
#define ALL (240 * MIB)
#define EACH (32 * MIB)

static pthread_barrier_t all_here;
static const char *how;
static cudaMemPool_t pool;

static void take_and_return(cudaStream_t stream)
{
    if (strcmp(how, "array") == 0) {
        cudaArray_t array;
        struct cudaChannelFormatDesc floats = {
            .x = 32, .y = 0, .z = 0, .w = 0, .f = cudaChannelFormatKindFloat};
        OK(cudaMallocArray(&array, &floats, 4096, EACH / 4 / 4096, 0));
        pthread_barrier_wait(&all_here);
        OK(cudaFreeArray(array));
        return;
    }
    void *memory;
    bool plain = strcmp(how, "malloc") == 0;
    OK(plain ? cudaMalloc(&memory, EACH) : cudaMallocFromPoolAsync(&memory, EACH, pool, stream));
    pthread_barrier_wait(&all_here);
    OK(plain ? cudaFree(memory) : cudaFreeAsync(memory, stream));
}

static void *work(void *unused)
{
    cudaStream_t stream;
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    pthread_barrier_wait(&all_here);
    take_and_return(stream);
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return unused;
}

int main(int argc, char **argv)
{
    how = argc > 1 ? argv[1] : "pool";
    pthread_barrier_init(&all_here, NULL, THREADS);
    for (uint64_t round = number_argument(argc, argv, 2, 5); round > 0; round--) {
        struct cudaMemPoolProps properties = {
            .allocType = cudaMemAllocationTypePinned,
            .location = {.type = cudaMemLocationTypeDevice, .id = 0},
        };
        pthread_t threads[THREADS];
        void *memory;
        OK(cudaMalloc(&memory, ALL));
        OK(cudaFree(memory));
        OK(cudaMemPoolCreate(&pool, &properties));
        for (int i = 0; i < THREADS; i++)
            OK(pthread_create(&threads[i], NULL, work, NULL));
        for (int i = 0; i < THREADS; i++)
            OK(pthread_join(threads[i], NULL));
        OK(cudaMemPoolDestroy(pool));
        OK(cudaDeviceSynchronize());
    }
    return 0;
}
