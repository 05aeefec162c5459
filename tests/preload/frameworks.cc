/* Keeps memory as PyTorch does, by functions of its names, and forgets 500 bytes of its own and a
 * tensor that was allocated past the cache.
 *
 *   frameworks [_exit]    ends by that */
#include <cuda_runtime_api.h>
#include <unistd.h>
#include "check.h"

#define NOINLINE __attribute__((noipa))

/* The caller has a frame of its own, as it does something with it. */
static void *kept(void *pointer)
{
    CHECK(pointer);
    return pointer;
}

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
namespace Native
{
struct DeviceCachingAllocator {
    NOINLINE static void *alloc_block(size_t bytes)
    {
        return allocate(bytes);
    }
};

struct NativeCachingAllocator {
    NOINLINE static void *allocate_cached(size_t bytes)
    {
        return kept(DeviceCachingAllocator::alloc_block(bytes));
    }

    NOINLINE static void *allocate_uncached(size_t bytes)
    {
        return allocate(bytes);
    }
};
} // namespace Native
} // namespace CUDACachingAllocator
} // namespace cuda
} // namespace c10

namespace at
{
template <typename Stream> struct CachingHostAllocatorImpl {
    NOINLINE static void *allocate_host_memory(size_t bytes)
    {
        void *pointer;
        OK(cudaHostAlloc(&pointer, bytes, cudaHostAllocDefault));
        return pointer;
    }
};

namespace cuda
{
NOINLINE void *getCUDABlasLtWorkspace()
{
    return kept(
        c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate_uncached(4000));
}
} // namespace cuda

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

NOINLINE static void *forget_tensor()
{
    return kept(
        c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate_uncached(300));
}

int main(int argc, char **)
{
    CHECK(c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate_cached(1000));
    CHECK(at::CachingHostAllocatorImpl<int>::allocate_host_memory(3000));
    CHECK(at::cuda::getCUDABlasLtWorkspace());
    CHECK(at::native::getCudnnHandle());
    CHECK(forget());
    CHECK(forget_tensor());
    if (argc > 1)
        _exit(0);
    return 0;
}
