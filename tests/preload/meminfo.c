/* What cudaMemGetInfo calls free can be allocated, and comes back when it is freed.
 * meminfo [LIMIT]: with a limit on the pool, what is free is what the limit leaves. */
#include <cuda_runtime_api.h>
#include "check.h"

#define LIVE 200
#define STEPS 2000
#define MIB ((size_t)1 << 20)

static void *buffers[LIVE];
static size_t sizes[LIVE], live, limit;

static size_t available(void)
{
    size_t free_bytes, total;
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes <= total);
    if (free_bytes > limit - live)
        FAIL("%zu bytes free, but the limit leaves %zu", free_bytes, limit - live);
    return free_bytes;
}

/* 95 % of what is free must be there to have. */
static void have_it(void)
{
    void *big;
    size_t bytes = available() / 20 * 19;
    OK(cudaMalloc(&big, bytes));
    live += bytes;
    (void)available();
    OK(cudaMemset((char *)big + bytes - 1, 1, 1));
    OK(cudaFree(big));
    live -= bytes;
    OK(cudaDeviceSynchronize());
}

static void drop(size_t i)
{
    OK(cudaFree(buffers[i]));
    live -= sizes[i];
    sizes[i] = 0;
    buffers[i] = NULL;
}

int main(int argc, char **argv)
{
    uint64_t random = 3;
    limit = number_argument(argc, argv, 1, SIZE_MAX);
    OK(cudaFree(NULL)); /* the context itself takes memory on hardware */
    size_t at_start = available();
    for (int step = 1; step <= STEPS; step++) {
        size_t i = next_random(&random) % LIVE, power = (size_t)1024 << (next_random(&random) % 12);
        if (buffers[i])
            drop(i);
        sizes[i] = power + next_random(&random) % power;
        if (live + sizes[i] > at_start / 2)
            sizes[i] = 1024;
        OK(cudaMalloc(&buffers[i], sizes[i]));
        live += sizes[i];
        CHECK(available() <= at_start);
        if (step % (STEPS / 4) == 0)
            have_it();
    }
    for (size_t i = 0; i < LIVE; i++)
        if (buffers[i])
            drop(i);
    OK(cudaDeviceSynchronize());
    size_t at_end = available();
    if (at_end < at_start / 50 * 49)
        FAIL("%zu bytes free at the start, %zu at the end", at_start, at_end);
    have_it();
    return 0;
}
