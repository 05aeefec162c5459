/* deep.so: a framework in C++ whose dispatcher has more frames than are kept of a native stack.
 * What a thread of its own runs is told by what lies beyond: the step, which has a name. */
#include <cstddef>
#include <thread>

#include <cuda_runtime_api.h>

#define NOINLINE __attribute__((noinline))

namespace framework
{

/* Each its own function, as the layers of a dispatcher are. */
template <int level> NOINLINE int dispatch(size_t bytes)
{
    volatile int result = dispatch<level - 1>(bytes);
    return result;
}

template <> NOINLINE int dispatch<0>(size_t bytes)
{
    void *pointer;
    volatile int result = cudaMalloc(&pointer, bytes);
    return result;
}

struct mul_backward {
    NOINLINE int apply(size_t bytes)
    {
        volatile int result = dispatch<20>(bytes);
        return result;
    }
};

NOINLINE int run_step(size_t bytes)
{
    volatile int result = mul_backward().apply(bytes);
    return result;
}

} // namespace framework

/* In this thread, and twice in one without a Python frame. */
extern "C" __attribute__((visibility("default"))) int deep_run(size_t bytes, int in_thread)
{
    int result = 0;
    if (!in_thread)
        return framework::run_step(bytes);
    std::thread worker([&] {
        for (int i = 0; i < 2; i++)
            result |= framework::run_step(bytes);
    });
    worker.join();
    return result;
}
