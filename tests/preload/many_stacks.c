/* Leaks by many call stacks: many_stacks ALLOCATIONS STACKS. The bits of a number decide which of
 * two functions calls which, so each number up to STACKS has a stack of its own, by names too. What
 * it prints is when it ends, in nanoseconds of the monotonic clock: from then on the report is
 * written. */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <time.h>
#include "check.h"

static int right(uint64_t bits, unsigned depth);

/* The volatile keeps the calls from becoming jumps. */
__attribute__((noinline)) static int left(uint64_t bits, unsigned depth)
{
    volatile int calls = 1;
    void *pointer;
    if (depth == 0)
        OK(cudaMalloc(&pointer, 512));
    else
        calls += bits & 1 ? right(bits >> 1, depth - 1) : left(bits >> 1, depth - 1);
    return calls;
}

__attribute__((noinline)) static int right(uint64_t bits, unsigned depth)
{
    volatile int calls = 1;
    void *pointer;
    if (depth == 0)
        OK(cudaMalloc(&pointer, 512));
    else
        calls += bits & 1 ? right(bits >> 1, depth - 1) : left(bits >> 1, depth - 1);
    return calls;
}

int main(int argc, char **argv)
{
    uint64_t allocations = number_argument(argc, argv, 1, 1000);
    uint64_t stacks = number_argument(argc, argv, 2, 50);
    unsigned depth = 0;
    struct timespec now;
    while (stacks > UINT64_C(1) << depth)
        depth++;
    for (uint64_t i = 0; i < allocations; i++)
        CHECK(left(i % stacks, depth) == (int)depth + 1);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    printf("%" PRIu64 "\n", (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
    return 0;
}
