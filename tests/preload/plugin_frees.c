/* A library that allocates when it is loaded and frees when it is unloaded, which at the end of the
 * program is after our report. */
#include <cuda_runtime_api.h>
#include <unistd.h>
#include "check.h"

static void *kept;

__attribute__((constructor)) static void allocate(void)
{
    OK(cudaMalloc(&kept, 12345));
}

__attribute__((destructor)) static void release(void)
{
    if (cudaFree(kept) != cudaSuccess || write(STDERR_FILENO, "freed\n", 6) != 6)
        _exit(1);
}
