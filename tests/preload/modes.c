/* What the pool's modes do to a program: it allocates COUNT buffers of SIZE bytes, writes all of
 * them and frees them.
 *
 *   modes COUNT SIZE         prints the most bytes that the pool held
 *   modes COUNT SIZE SMALL   then allocates one of SMALL bytes; prints what the pool holds after a
 * trim */
#include <cuda_runtime_api.h>
#include "check.h"
#include "shim_stats.h"

int main(int argc, char **argv)
{
    enum { MOST = 4096 };
    static void *buffers[MOST];
    void *kept;
    size_t count = number_argument(argc, argv, 1, 16), bytes = number_argument(argc, argv, 2, 1);
    size_t small = number_argument(argc, argv, 3, 0);
    cachealloc_stats_t stats;
    CHECK(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        OK(cudaMalloc(&buffers[i], bytes));
        OK(cudaMemset(buffers[i], 1, bytes));
    }
    for (size_t i = 0; i < count; i++)
        OK(cudaFree(buffers[i]));
    OK(cudaDeviceSynchronize());
    if (small)
        OK(cudaMalloc(&kept, small));
    if (small && cachealloc_trim)
        cachealloc_trim();
    if (shim_stats(&stats))
        printf("%zu\n", (size_t)(small ? stats.reserved_bytes : stats.reserved_peak_bytes));
    if (small)
        OK(cudaFree(kept));
    return 0;
}
