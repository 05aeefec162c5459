/* What the pool's modes do to a program: it allocates COUNT buffers of SIZE bytes, writes all of
 * them and frees them.
 *
 *   modes COUNT SIZE         prints the most bytes that the pool held
 *   modes COUNT SIZE LAST    then allocates one of LAST bytes; prints what the pool holds, and what
 *                            it holds after a trim
 *   modes COUNT SIZE LAST capture    the same, that allocation while a stream captures */
#include <cuda_runtime_api.h>
#include "check.h"
#include "shim_stats.h"

static size_t reserved(void)
{
    cachealloc_stats_t stats;
    return shim_stats(&stats) ? stats.reserved_bytes : 0;
}

int main(int argc, char **argv)
{
    enum { MOST = 4096 };
    static void *buffers[MOST];
    void *kept;
    size_t count = number_argument(argc, argv, 1, 16), bytes = number_argument(argc, argv, 2, 1);
    size_t last = number_argument(argc, argv, 3, 0);
    cachealloc_stats_t stats;
    CHECK(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        OK(cudaMalloc(&buffers[i], bytes));
        OK(cudaMemset(buffers[i], 1, bytes));
    }
    for (size_t i = 0; i < count; i++)
        OK(cudaFree(buffers[i]));
    OK(cudaDeviceSynchronize());
    if (!last) {
        if (shim_stats(&stats))
            printf("%zu\n", (size_t)stats.reserved_peak_bytes);
        return 0;
    }
    cudaStream_t stream;
    cudaGraph_t graph;
    bool captured = argc > 4;
    if (captured) {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    }
    OK(cudaMalloc(&kept, last));
    if (captured) {
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphDestroy(graph));
        OK(cudaStreamDestroy(stream));
    }
    size_t before = reserved();
    if (cachealloc_trim)
        cachealloc_trim();
    printf("%zu %zu\n", before, reserved());
    OK(cudaFree(kept));
    return 0;
}
