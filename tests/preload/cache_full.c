/* Fills most of the device with small and medium buffers, frees them, and then asks for more in one
 * piece than is left beside them: with a cache, only what it gives back can serve that. Repeated,
 * as the big buffer becomes cached memory that is in the way of the small ones. cache_full [ROUNDS]
 */
#include <cuda_runtime_api.h>
#include "check.h"

#define BUFFERS_MOST 200000

static void *buffers[BUFFERS_MOST];

static size_t fill(size_t goal, size_t most, uint64_t *random)
{
    size_t count = 0;
    for (size_t total = 0; total < goal && count < BUFFERS_MOST; count++) {
        size_t bytes = 1 + next_random(random) % most;
        OK(cudaMalloc(&buffers[count], bytes));
        total += bytes;
    }
    return count;
}

int main(int argc, char **argv)
{
    size_t available, total;
    uint64_t random = 7;
    OK(cudaMemGetInfo(&available, &total));
    for (uint64_t i = number_argument(argc, argv, 1, 5); i > 0; i--) {
        size_t most = i % 2 ? (size_t)256 << 10 : (size_t)8 << 20;
        if (most < available / BUFFERS_MOST * 4) /* a big device needs bigger buffers */
            most = available / BUFFERS_MOST * 4;
        size_t count = fill(available / 10 * 6, most, &random);
        for (size_t k = 0; k < count; k++)
            OK(cudaFree(buffers[k]));
        void *big;
        OK(cudaMalloc(&big, available / 10 * 8));
        OK(cudaMemset(big, 1, 4096));
        OK(cudaMemset((char *)big + available / 10 * 8 - 4096, 1, 4096));
        /* More than there is still fails, with the usual code, and leaves everything usable. */
        void *more = NULL;
        ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&more, available / 10 * 8));
        ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
        OK(cudaFree(big));
    }
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
