/* A thread frees memory behind work that waits for another thread, and that thread asks for memory
 * before it lets the work end. The plain program finishes: its free waits, and the other thread is
 * told that there is no memory, or gets what is left.
 *
 * both_behind WAY [pieces | idle | stream]: all of the device is freed, or with `pieces` three of
 * four buffers of 4 MiB, all but the last one before, or with `idle` all before that work, or with
 * `stream` on the stream of that work, as stream-ordered memory, or with `graph` by a graph that
 * also allocates it. The other thread asks by WAY.
 * Prints how many milliseconds that took.
 *
 * both_behind WAY own: one thread does both, behind work that ends by itself. Its plain free waits
 * for that, so that it gets the memory. */
#include <cuda.h>
#include <time.h>
#include "gate.h"

#define BYTES ((size_t)40 << 20)
#define PIECE ((size_t)4 << 20)
#define PIECES_MOST 64

static gate_t gate = GATE_CLOSED, begun = GATE_CLOSED;
static const char *way;
static size_t wanted = BYTES;

static int by_malloc(void)
{
    void *memory;
    return cudaMalloc(&memory, wanted);
}

static int by_async(void)
{
    void *memory;
    return cudaMallocAsync(&memory, wanted, cudaStreamPerThread);
}

static int by_pitch(void)
{
    void *memory;
    size_t pitch;
    return cudaMallocPitch(&memory, &pitch, 1 << 20, wanted >> 20);
}

static int by_pool(void)
{
    CUdevice device;
    CUdeviceptr memory;
    CUmemoryPool pool;
    OK(cuCtxGetDevice(&device));
    OK(cuDeviceGetDefaultMemPool(&pool, device));
    return cuMemAllocFromPoolAsync(&memory, wanted, pool, CU_STREAM_PER_THREAD);
}

static int by_array(void)
{
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR what = {
        .Width = 1 << 10, .Height = wanted >> 12, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    return cuArrayCreate(&array, &what);
}

static int by_create(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    return cuMemCreate(&handle, wanted, &what, 0);
}

static int by_module(void)
{
    CUmodule module;
    return cuModuleLoadData(&module, "image");
}

static int by_pinned(void)
{
    void *memory;
    return cudaMallocHost(&memory, wanted);
}

static int by_managed(void)
{
    void *memory;
    return cudaMallocManaged(&memory, wanted, cudaMemAttachGlobal);
}

static const struct {
    const char *name;
    int (*ask)(void);
} ways[] = {{"malloc", by_malloc}, {"async", by_async},   {"pitch", by_pitch},
            {"pool", by_pool},     {"array", by_array},   {"create", by_create},
            {"module", by_module}, {"pinned", by_pinned}, {"managed", by_managed}};

static int ask_once(void)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (strcmp(way, ways[i].name) == 0)
            return ways[i].ask();
    return -1;
}

/* Allocates and frees; nothing else is under way when this returns. */
static cudaGraphExec_t graph_of(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t made;
    void *memory;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMallocAsync(&memory, BYTES, stream));
    OK(cudaFreeAsync(memory, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&made, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaMalloc(&memory, PIECE));
    OK(cudaFree(memory));
    return made;
}

static void *ask(void *unused)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    struct timespec begin, end;
    gate_pass(&begun);
    nanosleep(&pause, NULL); /* nothing tells that the other thread waits in its free */
    OK(cudaFree(NULL));      /* a context */
    clock_gettime(CLOCK_MONOTONIC, &begin);
    int code = ask_once();
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK(code == cudaSuccess || code == cudaErrorMemoryAllocation);
    printf("%ld\n",
           (long)((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000));
    gate_open(&gate);
    return unused;
}

static void take_a_while(void *unused)
{
    const struct timespec time = {.tv_nsec = 20000000};
    (void)unused;
    nanosleep(&time, NULL);
}

int main(int argc, char **argv)
{
    void *memory[PIECES_MOST], *pinned = NULL;
    size_t count = 0, last = 0;
    cudaStream_t stream;
    pthread_t other;
    way = argc > 1 ? argv[1] : "malloc";
    bool pieces = argc > 2 && strcmp(argv[2], "pieces") == 0;
    bool idle = argc > 2 && strcmp(argv[2], "idle") == 0;
    bool ordered = argc > 2 && strcmp(argv[2], "stream") == 0;
    bool graph = argc > 2 && strcmp(argv[2], "graph") == 0;
    cudaGraphExec_t executable = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (strcmp(way, "pinned") == 0)
        OK(cudaMallocHost(&pinned, BYTES));
    if (graph)
        executable = graph_of(stream);
    else if (ordered)
        OK(cudaMallocAsync(&memory[count++], BYTES, stream));
    else if (!pieces)
        OK(cudaMalloc(&memory[count++], BYTES));
    else
        while (count < PIECES_MOST && cudaMalloc(&memory[count], PIECE) == cudaSuccess)
            count++;
    cudaGetLastError();
    for (size_t i = 1; pieces && i < count; i++)
        if (i % 4)
            OK(cudaFree(memory[i]));
    if (idle)
        OK(cudaFree(memory[last]));
    OK(cudaDeviceSynchronize());
    if (pieces)
        wanted = 2 * PIECE;
    if (argc > 2 && strcmp(argv[2], "own") == 0) {
        OK(cudaLaunchHostFunc(stream, take_a_while, NULL));
        OK(pinned ? cudaFreeHost(pinned) : cudaFree(memory[last]));
        OK(ask_once());
        return 0;
    }
    OK(pthread_create(&other, NULL, ask, NULL));
    gate_hold(&gate, stream);
    gate_open(&begun);
    if (graph)
        OK(cudaGraphLaunch(executable, stream));
    else if (ordered)
        OK(cudaFreeAsync(memory[last], stream));
    else if (!idle)
        OK(pinned ? cudaFreeHost(pinned) : cudaFree(memory[last]));
    OK(pthread_join(other, NULL));
    OK(cudaDeviceSynchronize());
    return 0;
}
