/* Exceptions that are thrown and caught in what CUDA calls back, a host function and a stream's
 * callback, between allocations; and one that ends main's work. */
#include <cuda_runtime_api.h>
#include <cstdio>
#include <stdexcept>

extern "C" long long matrix_work(void);

namespace
{
__attribute__((noinline)) void count(int *caught)
{
    try {
        throw std::runtime_error("thrown in a callback");
    } catch (const std::exception &) {
        ++*caught;
    }
}

void host_function(void *data)
{
    count(static_cast<int *>(data));
}

void callback(cudaStream_t, cudaError_t, void *data)
{
    count(static_cast<int *>(data));
}

void need(cudaError_t code)
{
    if (code != cudaSuccess)
        throw std::logic_error(cudaGetErrorName(code));
}
} // namespace

int main()
try {
    int caught = 0;
    cudaStream_t stream;
    need(cudaStreamCreate(&stream));
    for (int i = 0; i < 50; i++) {
        void *memory;
        need(cudaMalloc(&memory, 4096));
        need(cudaLaunchHostFunc(stream, host_function, &caught));
        need(cudaStreamAddCallback(stream, callback, &caught, 0));
        need(cudaStreamSynchronize(stream));
        need(cudaFree(memory));
    }
    std::printf("%d caught\n", caught);
    std::printf("%lld\n", matrix_work());
    void *memory;
    need(cudaMalloc(&memory, static_cast<size_t>(1) << 50));
    return 1;
} catch (const std::logic_error &error) {
    std::printf("main ends with %s\n", error.what());
    return 0;
}
