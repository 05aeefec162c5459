/* Memory of one device is read by work on another one, which never allocated any, and freed in the
 * order of that work: nobody gets it before. The device reads it as a peer, or the copy goes by
 * way of the host, as the driver likes.
 *
 * async_device [plain] [legacy]: from cudaMalloc, not in stream order; freed on the other device's
 * legacy stream, not on one of its own. */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <string.h>
#include "check.h"
#include "gate.h"

#define BYTES ((size_t)1 << 20)
#define ROUNDS 100

int main(int argc, char **argv)
{
    bool plain = false, legacy = false;
    cudaStream_t here, there = NULL;
    void *memory, *others[ROUNDS];
    unsigned char *copy;
    int devices;
    for (int i = 1; i < argc; i++) {
        plain |= strcmp(argv[i], "plain") == 0;
        legacy |= strcmp(argv[i], "legacy") == 0;
    }
    OK(cudaGetDeviceCount(&devices));
    if (devices < 2) {
        puts("needs two devices");
        return 77;
    }
    OK(cudaStreamCreateWithFlags(&here, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&copy, BYTES));
    OK(plain ? cudaMalloc(&memory, BYTES) : cudaMallocAsync(&memory, BYTES, here));
    OK(cudaMemsetAsync(memory, 7, BYTES, here));
    OK(cudaStreamSynchronize(here));

    OK(cudaSetDevice(1));
    OK(cudaFree(NULL)); /* its context */
    if (!legacy)
        OK(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking));
    gate_t gate = GATE_CLOSED;
    gate_hold(&gate, there);
    OK(cudaMemcpyAsync(copy, memory, BYTES, cudaMemcpyDeviceToHost, there));
    OK(cudaFreeAsync(memory, there));

    OK(cudaSetDevice(0));
    for (int i = 0; i < ROUNDS; i++) {
        OK(plain ? cudaMalloc(&others[i], BYTES) : cudaMallocAsync(&others[i], BYTES, here));
        OK(cudaMemsetAsync(others[i], 9, BYTES, here));
        OK(cudaStreamSynchronize(here));
    }
    gate_open(&gate);
    OK(cudaSetDevice(1));
    OK(cudaStreamSynchronize(there));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(copy[i] == 7);
    for (int i = 0; i < ROUNDS; i++)
        OK(cudaFree(others[i]));
    OK(cudaFreeHost(copy));
    return 0;
}
