/* A request for as much as was just freed by a call that waits for nothing, on a device that has no
 * more, while other work takes longer than a second. Without the shim that work does not matter.
 *
 * async_slow KIND HOW   KIND: device, or array; HOW: as in async_freed */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include "check.h"

#define BYTES ((size_t)150 << 20)

static void take_time(void *unused)
{
    struct timespec pause = {.tv_sec = 1, .tv_nsec = 500000000};
    (void)unused;
    nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
    bool array = argc > 1 && strcmp(argv[1], "array") == 0;
    bool legacy = argc > 2 && strcmp(argv[2], "legacy") == 0;
    struct cudaChannelFormatDesc bytes = {8, 8, 8, 8, cudaChannelFormatKindUnsigned};
    cudaArray_t its;
    cudaStream_t own, other;
    void *p, *q;
    OK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&p, BYTES, own));
    OK(cudaStreamSynchronize(own));
    OK(cudaLaunchHostFunc(other, take_time, NULL));
    if (legacy)
        OK(cudaFreeAsync(p, NULL));
    else
        OK(cudaFree(p));
    if (array) {
        OK(cudaMallocArray(&its, &bytes, 8192, BYTES / 32768, 0));
        OK(cudaFreeArray(its));
    } else {
        OK(cudaMalloc(&q, BYTES));
        OK(cudaFree(q));
    }
    return 0;
}
