/* Pairs of pinned allocation and free, for counting what they cost in calls to the driver.
 *
 * pinned_pairs PAIRS BYTES FLAGS   FLAGS as of cudaHostAlloc; 8: cudaMallocHost
 *
 * Prints the pinned bytes that the pool holds and held at most, where there is one. */
#include <cuda_runtime_api.h>
#include "shim_stats.h"
#include "check.h"

int main(int argc, char **argv)
{
    uint64_t pairs = number_argument(argc, argv, 1, 100);
    size_t bytes = number_argument(argc, argv, 2, 4096);
    unsigned flags = (unsigned)number_argument(argc, argv, 3, 0);
    for (uint64_t i = 0; i < pairs; i++) {
        unsigned char *host;
        if (flags == 8)
            OK(cudaMallocHost((void **)&host, bytes));
        else
            OK(cudaHostAlloc((void **)&host, bytes, flags));
        host[0] = host[bytes - 1] = (unsigned char)i;
        OK(cudaFreeHost(host));
    }
    cachealloc_stats_t stats;
    if (shim_stats(&stats))
        printf("%llu %llu\n", (unsigned long long)stats.pinned_reserved_bytes,
               (unsigned long long)stats.pinned_reserved_peak_bytes);
    return 0;
}
