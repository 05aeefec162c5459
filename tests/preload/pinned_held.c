/* Pinned memory is freed and allocated while work of another device waits for this very thread.
 * Neither waits for that work. With little memory left to pin the allocation may be refused.
 *
 * pinned_held CASE [old]: at last it can be had, but for drivers before CUDA 12.5, where it takes
 * another large free to find out what is done.
 *
 *   same      by the same call, so that what was freed might serve
 *   portable  by another one
 *   used      as same, and that work is going to read what was freed: it is not handed out */
#include "gate.h"

#define BYTES ((size_t)96 << 20)

static cudaError_t allocate(const char *name, void **memory)
{
    unsigned flags = strcmp(name, "portable") == 0 ? cudaHostAllocPortable : cudaHostAllocDefault;
    return cudaHostAlloc(memory, BYTES, flags);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "same";
    gate_t gate = GATE_CLOSED;
    cudaStream_t held;
    void *its_own, *first, *second;
    int last = 0;
    OK(cudaGetDeviceCount(&last));
    CHECK(--last > 0);
    OK(cudaSetDevice(last));
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    OK(cudaMalloc(&its_own, 256));
    OK(cudaSetDevice(0));
    OK(cudaMallocHost(&first, 4 << 20)); /* an old driver is known as such from its free on */
    OK(cudaFreeHost(first));
    OK(cudaMallocHost(&first, BYTES));
    OK(cudaSetDevice(last));
    gate_hold(&gate, held);
    if (strcmp(name, "used") == 0)
        OK(cudaMemcpyAsync(its_own, first, 256, cudaMemcpyHostToDevice, held));
    OK(cudaSetDevice(0));

    OK(cudaFreeHost(first));
    cudaError_t code = allocate(name, &second);
    if (code != cudaSuccess)
        ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
    else
        CHECK(strcmp(name, "used") != 0 || second != first);
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(held));
    ANSWERS(cudaSuccess, cudaGetLastError());

    gate_open(&gate);
    OK(cudaStreamSynchronize(held));
    if (code == cudaSuccess)
        OK(cudaFreeHost(second));
    if (argc <= 2) {
        OK(allocate(name, &second));
        OK(cudaFreeHost(second));
    }
    OK(cudaSetDevice(last));
    OK(cudaFree(its_own));
    return 0;
}
