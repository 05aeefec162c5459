/* A module that uses the runtime, opened by a host that does not: how Python extensions come. */
#include <cuda_runtime_api.h>
#include "check.h"

/* Allocates and frees `rounds` times, then leaves one allocation of 12345 bytes behind. */
__attribute__((visibility("default"))) void plugin_work(unsigned rounds)
{
    void *pointer;
    for (unsigned i = 0; i < rounds; i++) {
        OK(cudaMalloc(&pointer, 5000));
        OK(cudaMemset(pointer, 0, 5000));
        OK(cudaFree(pointer));
    }
    OK(cudaMalloc(&pointer, 12345));
}
