/* An exception passes by a cudaFree; another one is raised while memory is held by an object that
 * frees it.
 *
 * builds: static_cxx
 * expect: 1500 bytes in 1, device: load(int)@load < main@main
 */
#include <stdexcept>
#include "tests/leaks/leak.h"

struct buffer {
    explicit buffer(size_t bytes)
    {
        OK(cudaMalloc(&pointer, bytes));
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;
    ~buffer()
    {
        cudaFree(pointer);
    }
    void *pointer = nullptr;
};

FRAME int load(int step)
{
    buffer held(7000);
    void *pointer;
    OK(cudaMalloc(&pointer, 1500)); /* @load */
    if (step > 0)
        throw std::runtime_error("no such tile");
    OK(cudaFree(pointer));
    return step;
}

int main()
{
    try {
        CHECK(load(0) == 0);
        load(1); /* @main */
    } catch (const std::runtime_error &) {
        return 0;
    }
    return 1;
}
