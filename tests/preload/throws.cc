/* A C++ program that throws and catches: through several frames with destructors, in a thread, in a
 * host function that the stream runs, and around CUDA calls. The unwinder of the shim must not take
 * the place of libgcc's. */
#include <cuda_runtime_api.h>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

namespace
{
int destroyed;

struct guard {
    void *pointer = nullptr;
    guard()
    {
        if (cudaMalloc(&pointer, 1000) != cudaSuccess)
            throw std::runtime_error("cudaMalloc");
    }
    ~guard()
    {
        destroyed++;
        cudaFree(pointer);
    }
};

__attribute__((noinline)) int deep(int depth)
{
    guard held;
    if (depth == 0)
        throw std::out_of_range("bottom");
    return deep(depth - 1) + 1;
}

std::string catch_one()
{
    try {
        deep(10);
    } catch (const std::logic_error &error) {
        return error.what();
    }
    return "nothing";
}

void host_function(void *data)
{
    try {
        throw std::runtime_error("in a host function");
    } catch (const std::exception &error) {
        *static_cast<std::string *>(data) = error.what();
    }
}
} // namespace

int main()
{
    std::string main_caught = catch_one(), thread_caught, host_caught;
    std::thread([&] { thread_caught = catch_one(); }).join();

    cudaStream_t stream;
    if (cudaStreamCreate(&stream) != cudaSuccess ||
        cudaLaunchHostFunc(stream, host_function, &host_caught) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess) {
        std::fprintf(stderr, "the stream failed\n");
        return 1;
    }
    std::printf("%s, %s, %s, %d destroyed\n", main_caught.c_str(), thread_caught.c_str(),
                host_caught.c_str(), destroyed);
    if (destroyed != 22)
        return 1;
    try {
        throw 3;
    } catch (int status) {
        return status; /* an exit status of its own, to be seen unchanged */
    }
}
