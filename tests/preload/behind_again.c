/* A thread waits in vain for what another one freed behind work that waits for it, and is told that
 * there is no memory. Later the other one frees behind work that ends by itself: that is waited for
 * as if nothing had been. Prints the two answers. */
#include <time.h>
#include "gate.h"

#define BYTES ((size_t)40 << 20)
#define WORK_NS 20000000

static gate_t gate = GATE_CLOSED;

static void work(void *unused)
{
    const struct timespec time = {.tv_nsec = WORK_NS};
    (void)unused;
    nanosleep(&time, NULL);
}

static void *ask(void *answer)
{
    const struct timespec pause = {.tv_nsec = WORK_NS};
    void *memory;
    if (!gate.open) /* nothing tells that the other thread waits in its free */
        nanosleep(&pause, NULL);
    *(int *)answer = cudaMalloc(&memory, BYTES);
    cudaGetLastError();
    if (*(int *)answer == cudaSuccess)
        OK(cudaFree(memory));
    gate_open(&gate);
    return NULL;
}

int main(void)
{
    cudaStream_t stream;
    void *memory;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int round = 0; round < 2; round++) {
        pthread_t other;
        int answer;
        OK(cudaMalloc(&memory, BYTES));
        if (round == 0)
            gate_hold(&gate, stream);
        else
            OK(cudaLaunchHostFunc(stream, work, NULL));
        if (round == 0)
            OK(pthread_create(&other, NULL, ask, &answer));
        OK(cudaFree(memory));
        if (round == 1)
            OK(pthread_create(&other, NULL, ask, &answer));
        OK(pthread_join(other, NULL));
        OK(cudaDeviceSynchronize());
        printf("%d\n", answer);
    }
    OK(cudaStreamDestroy(stream));
    return 0;
}
