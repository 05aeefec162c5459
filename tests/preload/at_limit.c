/* Allocates 8 MiB buffers until it is refused, at most 64. Prints how many it got, and the error.
 */
#include <cuda_runtime_api.h>
#include "check.h"

int main(void)
{
    void *buffers[64];
    int count = 0;
    cudaError_t code = cudaSuccess;
    while (count < 64 && (code = cudaMalloc(&buffers[count], (size_t)8 << 20)) == cudaSuccess)
        count++;
    printf("%d %d\n", count, (int)code);
    while (count > 0)
        OK(cudaFree(buffers[--count]));
    return 0;
}
