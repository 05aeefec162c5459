/* Keeps memory as PyTorch does, by functions of its names, and forgets 500 bytes of its own.
 *
 *   frameworks [_exit]    ends by that */
#include <cuda_runtime_api.h>
#include <unistd.h>
#include "check.h"

#define NOINLINE __attribute__((noipa))

static void *allocate(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes));
    return pointer;
}

namespace c10
{
namespace cuda
{
namespace CUDACachingAllocator
{
NOINLINE void *alloc_block(size_t bytes)
{
    return allocate(bytes);
}
} // namespace CUDACachingAllocator
} // namespace cuda
} // namespace c10

namespace at
{
namespace native
{
NOINLINE void *getCudnnHandle()
{
    return allocate(2000);
}
} // namespace native
} // namespace at

NOINLINE static void *forget()
{
    return allocate(500);
}

int main(int argc, char **)
{
    CHECK(c10::cuda::CUDACachingAllocator::alloc_block(1000));
    CHECK(at::native::getCudnnHandle());
    CHECK(forget());
    if (argc > 1)
        _exit(0);
    return 0;
}
