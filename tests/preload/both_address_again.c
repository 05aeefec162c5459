/* both_address_again [ROUNDS]: the driver gives an address to somebody else before the call that
 * destroys its context has returned. One thread makes contexts, fills them and destroys them; the
 * other captures allocations of graphs, which only the driver knows, and must be able to free them
 * whatever is known of their addresses. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "check.h"

#define BUFFERS 24
#define BYTES ((size_t)2 << 20)

static atomic_bool over;

static void *make_contexts(void *unused)
{
    while (!atomic_load(&over)) {
        CUcontext context;
        OK(cuCtxCreate_v2(&context, 0, 0));
        for (int i = 0; i < BUFFERS; i++) {
            CUdeviceptr pointer;
            OK(cuMemAlloc_v2(&pointer, BYTES));
        }
        OK(cuCtxDestroy_v2(context));
    }
    return unused;
}

/* Freed where they were captured, or once the graph has run, in one of both ways. */
static void capture(cudaStream_t stream, uint64_t round)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *pointers[BUFFERS];
    bool inside = round % 4 > 1;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < BUFFERS; i++)
        OK(cudaMallocAsync(&pointers[i], BYTES, stream));
    for (int i = 0; inside && i < BUFFERS; i++)
        OK(cudaFreeAsync(pointers[i], stream));
    OK(cudaStreamEndCapture(stream, &graph));
    if (!inside) {
        OK(cudaGraphInstantiate(&exec, graph, 0));
        OK(cudaGraphLaunch(exec, stream));
        for (int i = 0; i < BUFFERS; i++)
            OK(round % 2 ? cudaFree(pointers[i]) : cudaFreeAsync(pointers[i], stream));
        OK(cudaStreamSynchronize(stream));
        OK(cudaGraphExecDestroy(exec));
    }
    OK(cudaGraphDestroy(graph));
}

int main(int argc, char **argv)
{
    uint64_t rounds = number_argument(argc, argv, 1, 2000);
    pthread_t thread;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(pthread_create(&thread, NULL, make_contexts, NULL));
    for (uint64_t i = 0; i < rounds; i++)
        capture(stream, i);
    atomic_store(&over, true);
    OK(pthread_join(thread, NULL));
    OK(cudaStreamDestroy(stream));
    return 0;
}
