/* What a driver's stream-ordered pool must not change about the plain calls.
 *
 * pooled capture   memory that is in use is freed while a stream is captured: it is freed once, not
 *                  handed out again too early, and is there again afterwards
 * pooled trim      what is cached can be given back (only with the shim) */
#include "gate.h"
#include "shim_stats.h"

#define MIB ((size_t)1 << 20)
#define BUFFERS 8

static size_t available(void)
{
    size_t free, total;
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&free, &total));
    return free;
}

static void capture(void)
{
    static gate_t gate = GATE_CLOSED;
    cudaStream_t held, captured;
    cudaGraph_t graph;
    char *in_use, *fresh[BUFFERS];
    unsigned char *seen;
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&seen, 1));
    size_t at_start = available();
    OK(cudaMalloc((void **)&in_use, 16 * MIB));
    OK(cudaMemset(in_use, 7, 16 * MIB));
    OK(cudaDeviceSynchronize()); /* `held` does not wait for the default stream */
    gate_hold(&gate, held);
    OK(cudaMemcpyAsync(seen, in_use + 16 * MIB - 1, 1, cudaMemcpyDeviceToHost, held));

    OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    OK(cudaFree(in_use));
    ANSWERS(cudaErrorInvalidValue, cudaFree(in_use));
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
    ANSWERS(cudaErrorInvalidValue, cudaFreeAsync(in_use, held));
    ANSWERS(cudaErrorInvalidValue, cudaGetLastError());
    OK(cudaMalloc((void **)&fresh[0], 16 * MIB));
    OK(cudaStreamEndCapture(captured, &graph));
    OK(cudaGraphDestroy(graph));
    for (int i = 1; i < BUFFERS; i++)
        OK(cudaMalloc((void **)&fresh[i], 16 * MIB));
    for (int i = 0; i < BUFFERS; i++) {
        CHECK(fresh[i] != in_use);
        OK(cudaMemsetAsync(fresh[i], i, 16 * MIB, captured));
    }
    OK(cudaStreamSynchronize(captured));
    gate_open(&gate);
    OK(cudaStreamSynchronize(held));
    CHECK(*seen == 7);

    for (int i = 0; i < BUFFERS; i++)
        OK(cudaFree(fresh[i]));
    OK(cudaFreeHost(seen));
    OK(cudaDeviceSynchronize());
    OK(cudaMalloc((void **)&in_use, 100)); /* what was held goes with the next call */
    OK(cudaFree(in_use));
    CHECK(available() + 2 * MIB >= at_start);
}

static void trim(void)
{
    void *buffer;
    OK(cudaMalloc(&buffer, 64 * MIB));
    OK(cudaFree(buffer));
    OK(cudaDeviceSynchronize());
    CHECK(cachealloc_trim);
    cachealloc_trim();
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (strcmp(argv[1], "capture") == 0)
        capture();
    else
        trim();
    return 0;
}
