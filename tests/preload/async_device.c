/* Memory of one device is read by work on another one, which never allocated any, and freed in the
 * order of that work: nobody gets it before. The device reads it as a peer, or the copy goes by
 * way of the host, as the driver likes.
 *
 * async_device [plain] [legacy] [name] [short]: from cudaMalloc, not in stream order; freed on the
 * other device's legacy stream, not on one of its own; another name of it is freed there, and the
 * memory itself on this device; there is no room for a second one, nor can it be told what has
 * passed, because a stream is being captured. */
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <string.h>
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"
#include "check.h"
#include "gate.h"

#define BYTES ((size_t)1 << 20)
#define SHORT_BYTES ((size_t)40 << 20) /* of 64 MiB */
#define ROUNDS 100

/* There is none, or other memory than what is still in use. */
static void want_more(cudaStream_t here, const void *used, void *other)
{
    void *more = NULL;
    OK(cudaFree(other)); /* which waits for nothing on the other device */
    cudaError_t code = cudaMalloc(&more, SHORT_BYTES);
    CHECK(code == cudaErrorMemoryAllocation || (code == cudaSuccess && more != used));
    if (more) {
        OK(cudaMemsetAsync(more, 9, SHORT_BYTES, here));
        OK(cudaStreamSynchronize(here));
    }
    (void)cudaGetLastError();
}

int main(int argc, char **argv)
{
    bool plain = false, legacy = false, name = false, is_short = false;
    cudaStream_t here, captured, there = NULL;
    cudaGraph_t graph;
    void *memory, *other, *others[ROUNDS];
    unsigned char *copy;
    int devices;
    for (int i = 1; i < argc; i++) {
        plain |= strcmp(argv[i], "plain") == 0;
        legacy |= strcmp(argv[i], "legacy") == 0;
        name |= strcmp(argv[i], "name") == 0;
        is_short |= strcmp(argv[i], "short") == 0;
    }
    size_t bytes = is_short ? SHORT_BYTES : BYTES;
    OK(cudaGetDeviceCount(&devices));
    if (devices < 2) {
        puts("needs two devices");
        return 77;
    }
    OK(cudaStreamCreateWithFlags(&here, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&copy, bytes));
    OK(cudaMalloc(&other, (size_t)8 << 20));
    OK(plain ? cudaMalloc(&memory, bytes) : cudaMallocAsync(&memory, bytes, here));
    OK(cudaMemsetAsync(memory, 7, bytes, here));
    OK(cudaStreamSynchronize(here));
    if (name) {
        CHECK(cachealloc_alias);
        OK(cachealloc_alias(memory, (char *)memory + 8));
    }

    OK(cudaSetDevice(1));
    OK(cudaFree(NULL)); /* its context */
    if (!legacy)
        OK(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking));
    gate_t gate = GATE_CLOSED;
    gate_hold(&gate, there);
    OK(cudaMemcpyAsync(copy, memory, bytes, cudaMemcpyDeviceToHost, there));
    if (is_short)
        OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    OK(cudaFreeAsync((char *)memory + (name ? 8 : 0), there));

    OK(cudaSetDevice(0));
    if (name)
        OK(cudaFreeAsync(memory, here));
    if (is_short)
        want_more(here, memory, other);
    else
        OK(cudaFree(other));
    int rounds = is_short ? 0 : ROUNDS;
    for (int i = 0; i < rounds; i++) {
        OK(plain ? cudaMalloc(&others[i], BYTES) : cudaMallocAsync(&others[i], BYTES, here));
        OK(cudaMemsetAsync(others[i], 9, BYTES, here));
        OK(cudaStreamSynchronize(here));
    }
    gate_open(&gate);
    OK(cudaSetDevice(1));
    OK(cudaStreamSynchronize(there));
    for (size_t i = 0; i < bytes; i++)
        CHECK(copy[i] == 7);
    if (is_short)
        OK(cudaStreamEndCapture(captured, &graph));
    for (int i = 0; i < rounds; i++)
        OK(cudaFree(others[i]));
    OK(cudaFreeHost(copy));
    return 0;
}
