/* A plain program that binds to the runtime's versioned symbols (cudaMalloc@libcudart.so.13): a
 * preloaded library that exports them under a version of its own would be passed over silently.
 * versioned [ROUNDS] */
#include <cuda_runtime_api.h>
#include "check.h"

int main(int argc, char **argv)
{
    for (uint64_t i = number_argument(argc, argv, 1, 1000); i > 0; i--) {
        void *pointer;
        OK(cudaMalloc(&pointer, 1000));
        OK(cudaMemset(pointer, 0, 1000));
        OK(cudaFree(pointer));
    }
    return 0;
}
