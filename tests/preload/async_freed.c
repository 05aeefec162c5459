/* Frees that wait for nothing, behind work that waits for this very thread, and a request for as
 * much where the device has no more. async_freed HOW free    cudaFree of memory from
 * cudaMallocAsync, which is in use no more legacy  cudaFreeAsync on the legacy stream, in its order
 * behind that work The request may be out of memory; it may not wait until the work is done. */
#include <string.h>
#include "gate.h"

#define BYTES ((size_t)150 << 20)

int main(int argc, char **argv)
{
    gate_t gate = GATE_CLOSED;
    bool legacy = argc > 1 && strcmp(argv[1], "legacy") == 0;
    void *p, *q = NULL;
    cudaStream_t own, other;
    OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    if (legacy)
        own = other = NULL;
    OK(cudaMallocAsync(&p, BYTES, own));
    OK(cudaMemsetAsync(p, 1, BYTES, own));
    OK(cudaStreamSynchronize(own));
    gate_hold(&gate, other);
    if (legacy)
        OK(cudaFreeAsync(p, own));
    else
        OK(cudaFree(p));
    cudaError_t code = cudaMalloc(&q, BYTES);
    CHECK(code == cudaSuccess || code == cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    gate_open(&gate);
    OK(cudaDeviceSynchronize());
    OK(cudaFree(q));
    return 0;
}
