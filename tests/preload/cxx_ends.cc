/* cxx_ends END: a leak from a member template, and an end: exit, _exit, handler (of a signal, on a
 * stack of its own, by _exit), kill, or oom, which asks for more than there is. */
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>

#include <cuda_runtime_api.h>
#include "check.h"

#define NOINLINE __attribute__((noinline))

namespace tiles
{
namespace
{
template <typename T, int N> struct cache {
    template <typename U> NOINLINE cudaError_t grow(const std::vector<U> &counts, T *) const
    {
        void *pointer;
        volatile cudaError_t result = cudaMalloc(&pointer, counts[0] * sizeof(T) * N);
        return result;
    }
};
} // namespace
} // namespace tiles

static void end(int)
{
    _exit(0);
}

static void end_in_handler()
{
    static char stack[64 << 10];
    stack_t other = {};
    struct sigaction action = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    CHECK(sigaltstack(&other, nullptr) == 0);
    action.sa_handler = end;
    action.sa_flags = SA_ONSTACK;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    raise(SIGUSR1);
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "exit";
    tiles::cache<float, 2> cache;
    OK(cache.grow(std::vector<unsigned>{500}, nullptr));
    if (strcmp(way, "oom") == 0)
        ANSWERS(cudaErrorMemoryAllocation, cache.grow(std::vector<unsigned>{100u << 20}, nullptr));
    if (strcmp(way, "_exit") == 0)
        _exit(0);
    if (strcmp(way, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(way, "handler") == 0)
        end_in_handler();
    return 0;
}
