/* Many threads allocate, use and free pinned memory of all flags; half of the buffers are freed by
 * another thread. Contents are checked by the host and through the device.
 *
 * pinned_threads THREADS ROUNDS */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include "check.h"

#define THREADS_MOST 32
#define SLOTS 64

typedef struct buffer {
    unsigned char *host;
    size_t bytes;
    unsigned char value;
} buffer_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static buffer_t slots[SLOTS]; /* full ones are anybody's to free */
static uint64_t rounds;

static void check(const buffer_t *b)
{
    for (size_t at = 0; at < b->bytes; at += 509)
        CHECK(b->host[at] == b->value);
    CHECK(b->host[b->bytes - 1] == b->value);
}

static void through_the_device(const buffer_t *b, unsigned char *device, cudaStream_t stream)
{
    size_t bytes = b->bytes < 65536 ? b->bytes : 65536;
    OK(cudaMemcpyAsync(device, b->host, bytes, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyAsync(b->host, device, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
}

static void *work(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument + 1;
    unsigned char *device;
    cudaStream_t stream;
    OK(cudaMalloc((void **)&device, 65536));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint64_t i = 0; i < rounds; i++) {
        buffer_t b = {.bytes = ((size_t)256 << next_random(&random) % 12) + i % 100 + 1,
                      .value = (unsigned char)next_random(&random)},
                 swapped;
        OK(cudaHostAlloc((void **)&b.host, b.bytes, (unsigned)(next_random(&random) % 8)));
        memset(b.host, b.value, b.bytes);
        if (i % 16 == 0)
            through_the_device(&b, device, stream);
        pthread_mutex_lock(&lock);
        buffer_t *slot = &slots[next_random(&random) % SLOTS];
        swapped = *slot;
        *slot = b;
        pthread_mutex_unlock(&lock);
        if (swapped.host) {
            check(&swapped);
            OK(cudaFreeHost(swapped.host));
        }
    }
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MOST];
    uint64_t count = number_argument(argc, argv, 1, 4);
    rounds = number_argument(argc, argv, 2, 1000);
    CHECK(count <= THREADS_MOST);
    for (uint64_t i = 0; i < count; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
    for (uint64_t i = 0; i < count; i++)
        OK(pthread_join(threads[i], NULL));
    for (size_t i = 0; i < SLOTS; i++) {
        if (slots[i].host) {
            check(&slots[i]);
            OK(cudaFreeHost(slots[i].host));
        }
    }
    return 0;
}
