/* calls WHAT COUNT: one call COUNT times, for counting its instructions: the difference between two
 * counts is the call's alone, start-up and warm-up cancel.
 *
 * pair    cudaMalloc and cudaFree of 1 KiB
 * N_MiB   the same of so much; with _launched behind it a kernel is launched before the free
 * async   cudaMallocAsync and cudaFreeAsync of 1 KiB on the legacy stream
 * ordered the same by cachealloc_alloc and cachealloc_free; torch: in PyTorch's forms of them
 * grow    cudaMalloc of 2 MiB, which is never freed
 * stream  a stream that is made, has memory allocated and freed on it, and is destroyed
 * streams the same beside MANY others, each of which had some
 * pinned  cudaMallocHost and cudaFreeHost of 4 KiB, with no device memory allocated before
 * copy    cudaMemcpyAsync from device to device: the runtime found the driver's function
 * launch  cuLaunchKernel: the linker found it; launch_N by turns on N streams
 * graph   cuGraphLaunch of a graph without nodes, likewise */
#include <cuda.h>
#include <cuda_runtime_api.h>
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"
#include "tests/preload/check.h"

#define WARM_UP 3000
#define MANY 3000
#define STREAMS 32

static void *from, *to;
static size_t large;
static CUfunction kernel;
static CUgraphExec graph;
static CUstream streams[STREAMS];
static unsigned stream_count;

static void pair(void)
{
    void *block;
    OK(cudaMalloc(&block, 1024));
    OK(cudaFree(block));
}

static void async(void)
{
    void *block;
    OK(cudaMallocAsync(&block, 1024, NULL));
    OK(cudaFreeAsync(block, NULL));
}

static void ordered(void)
{
    void *block = cachealloc_alloc(1024, 256, 0, NULL);
    CHECK(block);
    OK(cachealloc_free(block, 1024, 0, NULL));
}

static void torch(void)
{
    void *block = cachealloc_torch_alloc(1024, 0, NULL);
    CHECK(block);
    cachealloc_torch_free(block, 1024, 0, NULL);
}

static void large_pair(void)
{
    void *block;
    OK(cudaMalloc(&block, large));
    OK(cudaFree(block));
}

static void launched_pair(void)
{
    void *block;
    OK(cudaMalloc(&block, large));
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cudaFree(block));
}

static void grow(void)
{
    void *block;
    OK(cudaMalloc(&block, 2 << 20));
}

static void stream(void)
{
    CUstream made;
    void *block;
    OK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
    OK(cudaMallocAsync(&block, 1024, made));
    OK(cudaFreeAsync(block, made));
    OK(cuStreamDestroy(made));
}

static void make_streams(void)
{
    static CUstream many[MANY];
    void *block;
    for (unsigned i = 0; i < MANY; i++) {
        OK(cuStreamCreate(&many[i], CU_STREAM_NON_BLOCKING));
        OK(cudaMallocAsync(&block, 1024, many[i]));
        OK(cudaFreeAsync(block, many[i]));
    }
}

static void pinned(void)
{
    void *block;
    OK(cudaMallocHost(&block, 4096));
    OK(cudaFreeHost(block));
}

static void copy(void)
{
    OK(cudaMemcpyAsync(to, from, 64, cudaMemcpyDeviceToDevice, NULL));
}

static void launch(void)
{
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}

static void launch_in_rotation(void)
{
    static unsigned at;
    OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, streams[at++ % stream_count], NULL, NULL));
}

static void make_rotation(unsigned count)
{
    CHECK(count > 0 && count <= STREAMS);
    stream_count = count;
    for (unsigned i = 0; i < count; i++)
        OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
}

static void launch_graph(void)
{
    OK(cuGraphLaunch(graph, NULL));
}

static void make_graph(void)
{
    CUgraph empty;
    OK(cuGraphCreate(&empty, 0));
    OK(cuGraphInstantiate(&graph, empty, 0));
    OK(cuGraphDestroy(empty));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    large = strtoul(argv[1], NULL, 10) << 20;
    void (*call)(void) = large && strstr(argv[1], "launched")  ? launched_pair
                         : large                               ? large_pair
                         : strcmp(argv[1], "pair") == 0        ? pair
                         : strcmp(argv[1], "async") == 0       ? async
                         : strcmp(argv[1], "ordered") == 0     ? ordered
                         : strcmp(argv[1], "torch") == 0       ? torch
                         : strcmp(argv[1], "grow") == 0        ? grow
                         : strcmp(argv[1], "pinned") == 0      ? pinned
                         : strcmp(argv[1], "copy") == 0        ? copy
                         : strncmp(argv[1], "stream", 6) == 0  ? stream
                         : strcmp(argv[1], "graph") == 0       ? launch_graph
                         : strncmp(argv[1], "launch_", 7) == 0 ? launch_in_rotation
                                                               : launch;
    uint64_t count = number_argument(argc, argv, 2, 1) + WARM_UP;
    CUmodule module;
    OK(cudaFree(NULL));
    if (call != pinned) {
        OK(cudaMalloc(&from, 4096));
        OK(cudaMalloc(&to, 4096));
    }
    OK(cuModuleLoadData(&module, "image"));
    OK(cuModuleGetFunction(&kernel, module, "kernel"));
    if (call == launch_graph)
        make_graph();
    if (call == launch_in_rotation)
        make_rotation((unsigned)strtoul(argv[1] + 7, NULL, 10));
    if (strcmp(argv[1], "streams") == 0)
        make_streams();
#pragma GCC unroll 1 /* or several places call by turns, and each has a stack of its own */
    for (uint64_t i = 0; i < count; i++)
        call();
    OK(cuCtxSynchronize());
    OK(cudaFree(from));
    OK(cudaFree(to));
    return 0;
}
