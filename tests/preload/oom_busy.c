/* Requests that are too large, while another thread goes on with work, frees and allocations and
 * the device is never idle: each of them must be refused, and that thread must not be.
 *
 * oom_busy KIND [TIMES [MIB]]: device, or array; MIB: of each that the other thread has */
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>
#include "gate.h"

#define BUFFERS 8

static size_t bytes_each;
static sem_t going;
static atomic_bool done;

static void take_a_while(void *unused)
{
    (void)unused;
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

static void *go_on(void *unused)
{
    void *buffers[BUFFERS];
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < BUFFERS; i++)
        OK(cudaMalloc(&buffers[i], bytes_each));
    for (int i = 0; !atomic_load(&done); i = (i + 1) % BUFFERS) {
        OK(cudaLaunchHostFunc(stream, take_a_while, NULL));
        OK(cudaFree(buffers[i]));
        OK(cudaMalloc(&buffers[i], bytes_each));
        if (i == BUFFERS - 1)
            OK(sem_post(&going));
    }
    for (int i = 0; i < BUFFERS; i++)
        OK(cudaFree(buffers[i]));
    OK(cudaStreamDestroy(stream));
    return unused;
}

int main(int argc, char **argv)
{
    bool array = argc > 1 && strcmp(argv[1], "array") == 0;
    size_t times = number_argument(argc, argv, 2, 5), available, total;
    struct cudaChannelFormatDesc bytes = {8, 8, 8, 8, cudaChannelFormatKindUnsigned};
    pthread_t other;
    bytes_each = number_argument(argc, argv, 3, 16) << 20;
    OK(cudaMemGetInfo(&available, &total));
    OK(sem_init(&going, 0, 0));
    OK(pthread_create(&other, NULL, go_on, NULL));
    OK(sem_wait(&going));
    for (size_t i = 0; i < times; i++) {
        cudaArray_t its;
        void *pointer;
        cudaError_t code = array ? cudaMallocArray(&its, &bytes, 16384, total >> 16, 0)
                                 : cudaMalloc(&pointer, total);
        ANSWERS(cudaErrorMemoryAllocation, code);
    }
    ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
    atomic_store(&done, true);
    OK(pthread_join(other, NULL));
    return 0;
}
