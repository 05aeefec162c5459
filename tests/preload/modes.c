/* What the pool's modes do to a program.
 *
 *   modes COUNT SIZE             allocates COUNT buffers of SIZE bytes and writes all of them;
 * prints the most bytes that the pool held modes COUNT SIZE LARGE SMALL then as often a buffer of
 * LARGE, and beside it one of SMALL bytes that stays; when all others are freed prints what a trim
 * gives */
#include <cuda_runtime_api.h>
#include "check.h"
#include "shim_stats.h"

int main(int argc, char **argv)
{
    enum { MOST = 4096 };
    static void *buffers[MOST], *kept[MOST];
    size_t count = number_argument(argc, argv, 1, 16), bytes = number_argument(argc, argv, 2, 1);
    size_t large = number_argument(argc, argv, 3, 0), small = number_argument(argc, argv, 4, 0);
    cachealloc_stats_t stats;
    CHECK(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        OK(cudaMalloc(&buffers[i], bytes));
        OK(cudaMemset(buffers[i], 1, bytes));
    }
    for (size_t i = 0; i < count; i++)
        OK(cudaFree(buffers[i]));
    for (size_t i = 0; large && i < count; i++) {
        OK(cudaMalloc(&buffers[i], large));
        OK(cudaMalloc(&kept[i], small));
    }
    for (size_t i = 0; large && i < count; i++)
        OK(cudaFree(buffers[i]));
    OK(cudaDeviceSynchronize());
    if (large && shim_stats(&stats)) {
        size_t given = cachealloc_trim(); /* closes what is open */
        printf("%zu\n", given + cachealloc_trim());
    } else if (shim_stats(&stats)) {
        printf("%zu\n", (size_t)stats.reserved_peak_bytes);
    }
    for (size_t i = 0; large && i < count; i++)
        OK(cudaFree(kept[i]));
    return 0;
}
