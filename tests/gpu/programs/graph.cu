// A CUDA graph: captured, instantiated and launched many times, with allocations before, during (in
// relaxed mode, where that is allowed; what frees must wait), between and after. Its buffers stay
// live; memory beside them is written and freed all the time, so that memory of two owners shows in
// what the graph computes.
#include "program.cuh"

enum { N = 1 << 16, BLOCK = 256, LAUNCHES = 8 };

__global__ void step(unsigned *sum, const unsigned *addend)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    sum[i] = sum[i] * 3 + addend[i];
}

__global__ void number(unsigned *to)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    to[i] = mix32(i);
}

static unsigned *array()
{
    unsigned *memory;
    TRY(cudaMalloc(&memory, N * sizeof(*memory)));
    return memory;
}

// Beside the graph, on another stream: written over and freed.
static void write_and_free(unsigned *memory, cudaStream_t stream, unsigned tag,
                           unsigned long long *wrong)
{
    own<<<1, BLOCK, 0, stream>>>(memory, N, tag, 20000, wrong);
    TRY(cudaGetLastError());
    TRY(cudaFree(memory));
}

static unsigned long long one_graph(unsigned seed, cudaStream_t stream, cudaStream_t other,
                                    unsigned long long *wrong)
{
    static unsigned host[N];
    unsigned *sum = array(), *addend = array();
    TRY(cudaMemsetAsync(sum, 0, N * sizeof(*sum), stream));
    number<<<N / BLOCK, BLOCK, 0, stream>>>(addend);
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    step<<<N / BLOCK, BLOCK, 0, stream>>>(sum, addend);
    unsigned *during = array();
    step<<<N / BLOCK, BLOCK, 0, stream>>>(sum, addend);
    TRY(cudaStreamEndCapture(stream, &graph));
    write_and_free(during, other, seed, wrong);
    TRY(cudaGraphInstantiate(&ready, graph, 0));
    TRY(cudaGraphDestroy(graph));
    for (unsigned i = 0; i < LAUNCHES; i++) {
        TRY(cudaGraphLaunch(ready, stream));
        write_and_free(array(), other, seed + i, wrong);
    }
    TRY(cudaMemcpyAsync(host, sum, sizeof(host), cudaMemcpyDeviceToHost, stream));
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaGraphExecDestroy(ready));
    TRY(cudaFree(sum));
    TRY(cudaFree(addend));
    unsigned factor = 0;
    for (unsigned i = 0; i < 2 * LAUNCHES; i++)
        factor = factor * 3 + 1;
    unsigned long long bad = 0;
    for (unsigned i = 0; i < N; i++)
        bad += host[i] != factor * mix32(i);
    return bad;
}

int main(int argc, char **argv)
{
    start(argc, argv, 60);
    cudaStream_t stream, other;
    TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TRY(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    unsigned long long *wrong, found = 0;
    TRY(cudaMalloc(&wrong, sizeof(*wrong)));
    TRY(cudaMemset(wrong, 0, sizeof(*wrong)));
    unsigned long long bad = one_graph(0, stream, other, wrong);
    start_clock();
    for (int round = 1; round <= rounds; round++)
        bad += one_graph(mix32(round), stream, other, wrong);
    TRY(cudaMemcpy(&found, wrong, sizeof(found), cudaMemcpyDeviceToHost));
    TRY(cudaStreamDestroy(stream));
    TRY(cudaStreamDestroy(other));
    return finish(bad + found, 0);
}
