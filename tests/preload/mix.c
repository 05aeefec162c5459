/* The main job through the runtime: mix [CALLS [LIVE [SEED]]] */
#include <cuda_runtime_api.h>
#include "mix.h"

static cudaStream_t stream;

static int allocate(uint64_t *address, size_t bytes)
{
    void *pointer = NULL;
    cudaError_t code = cudaMalloc(&pointer, bytes);
    *address = (uint64_t)(uintptr_t)pointer;
    return (int)code;
}

static int release(uint64_t address)
{
    return (int)cudaFree((void *)(uintptr_t)address);
}

static int fill(uint64_t address, unsigned char value, size_t bytes)
{
    return (int)cudaMemsetAsync((void *)(uintptr_t)address, value, bytes, stream);
}

static int write_async(uint64_t address, const void *from, size_t bytes)
{
    return (int)cudaMemcpyAsync((void *)(uintptr_t)address, from, bytes, cudaMemcpyHostToDevice,
                                stream);
}

static int read_async(void *to, uint64_t address, size_t bytes)
{
    return (int)cudaMemcpyAsync(to, (const void *)(uintptr_t)address, bytes, cudaMemcpyDeviceToHost,
                                stream);
}

static int wait_all(void)
{
    return (int)cudaStreamSynchronize(stream);
}

int main(int argc, char **argv)
{
    mix_calls_t calls = {allocate, release, fill, write_async, read_async, wait_all, NULL};
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&calls.pinned, MIX_PROBE * MIX_PROBES_MOST));
    mix_run(&calls, number_argument(argc, argv, 1, 100000), number_argument(argc, argv, 2, 1000),
            number_argument(argc, argv, 3, 1));
    ANSWERS(cudaSuccess, cudaGetLastError());
    OK(cudaFreeHost(calls.pinned));
    OK(cudaStreamDestroy(stream));
    return 0;
}
