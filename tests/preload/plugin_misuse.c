/* A library that frees twice while it is loaded: under the loader's lock, and while another thread
 * of the program waits for it. */
#include <cuda_runtime_api.h>
#include "check.h"

__attribute__((constructor)) static void free_twice(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 5000));
    OK(cudaFree(pointer));
    ANSWERS(cudaErrorInvalidValue, cudaFree(pointer));
}

__attribute__((visibility("default"))) void plugin_work(unsigned count);
void plugin_work(unsigned count)
{
    printf("%u\n", count);
}
