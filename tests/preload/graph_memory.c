/* Memory calls while a stream is captured, and what becomes of memory that a capture touched.
 *
 *   graph_memory answers MODE WHO  each call in a capture of its own, by this thread or an `other`:
 *                                  its code, and that of the capture's end
 *   graph_memory replay            a temporary is allocated and freed in a capture; what is
 *                                  allocated later stays as it is when the graph is replayed
 *   graph_memory outlives          so it does where the temporary is freed after the capture
 *   graph_memory refused           a graph that could not be destroyed has its memory still
 *   graph_memory two               of two graphs one is destroyed: a trim gives its memory alone
 *
 * All but the first are for capture:keep. */
#include "api.h"
#include <pthread.h>

#define MIB ((size_t)1 << 20)
enum { BYTES = 300000, VICTIMS = 64 };

static cudaStream_t stream, other;

static void start(void)
{
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
}

/* --- answers ---------------------------------------------------------------------------------- */

static void *mine; /* what a call has given, or is to free */
static size_t pitch;

#define CALL(name, prepare, call, undo)                                                            \
    static int prepare_##name(void)                                                                \
    {                                                                                              \
        return (int)(prepare);                                                                     \
    }                                                                                              \
    static int call_##name(void)                                                                   \
    {                                                                                              \
        return (int)(call);                                                                        \
    }                                                                                              \
    static int undo_##name(void)                                                                   \
    {                                                                                              \
        return (int)(undo);                                                                        \
    }
#define CALLS(X)                                                                                   \
    X(cudaMalloc, 0, cudaMalloc(&mine, BYTES), cudaFree(mine))                                     \
    X(cudaFree, cudaMalloc(&mine, BYTES), cudaFree(mine), cudaFree(mine))                          \
    X(cudaMallocPitch, 0, cudaMallocPitch(&mine, &pitch, 1000, 50), cudaFree(mine))                \
    X(cudaMallocHost, 0, cudaMallocHost(&mine, BYTES), cudaFreeHost(mine))                         \
    X(cudaHostAlloc, 0, cudaHostAlloc(&mine, BYTES, cudaHostAllocMapped), cudaFreeHost(mine))      \
    X(cudaFreeHost, cudaMallocHost(&mine, BYTES), cudaFreeHost(mine), cudaFreeHost(mine))          \
    X(cudaMallocAsync, 0, cudaMallocAsync(&mine, BYTES, other), cudaFreeAsync(mine, other))        \
    X(cudaFreeAsync, cudaMallocAsync(&mine, BYTES, other), cudaFreeAsync(mine, other),             \
      cudaFreeAsync(mine, other))                                                                  \
    X(cudaFree_of_async, cudaMallocAsync(&mine, BYTES, other), cudaFree(mine), cudaFree(mine))
CALLS(CALL)

static const struct {
    const char *name;
    int (*prepare)(void), (*call)(void), (*undo)(void);
} calls[] = {
#define ROW(name, ...) {#name, prepare_##name, call_##name, undo_##name},
    CALLS(ROW)};

static void *run(void *call)
{
    int code = (*(int (**)(void))call)();
    cudaGetLastError();
    return (void *)(intptr_t)code;
}

static int by(bool elsewhere, int (*call)(void))
{
    pthread_t thread;
    void *code;
    if (!elsewhere)
        return (int)(intptr_t)run(&call);
    OK(pthread_create(&thread, NULL, run, &call));
    OK(pthread_join(thread, &code));
    return (int)(intptr_t)code;
}

static enum cudaStreamCaptureMode mode_of(const char *name)
{
    return strcmp(name, "global") == 0   ? cudaStreamCaptureModeGlobal
           : strcmp(name, "thread") == 0 ? cudaStreamCaptureModeThreadLocal
                                         : cudaStreamCaptureModeRelaxed;
}

static void answers(enum cudaStreamCaptureMode mode, bool elsewhere)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        cudaGraph_t graph = NULL;
        bool frees = strstr(calls[i].name, "Free") != NULL;
        for (int round = 0; round < 3;
             round++) { /* the pool has such memory, and knows the pitch */
            OK(calls[i].prepare());
            OK(calls[i].call());
            if (!frees)
                OK(calls[i].undo());
        }
        OK(calls[i].prepare());
        OK(cudaStreamBeginCapture(stream, mode));
        int code = by(elsewhere, calls[i].call);
        int ended = (int)cudaStreamEndCapture(stream, &graph);
        cudaGetLastError();
        printf("%s %d %d\n", calls[i].name, code, ended);
        if (graph)
            OK(cudaGraphDestroy(graph));
        if ((code == 0) != frees)
            OK(calls[i].undo());
    }
}

/* --- kept for graphs -------------------------------------------------------------------------- */

static cudaGraphExec_t instantiate(cudaGraph_t graph)
{
    cudaGraphExec_t made;
    OK(cudaGraphInstantiate(&made, graph, 0));
    OK(cudaGraphDestroy(graph));
    return made;
}

/* A graph that writes to a temporary, of which it returns the address. */
static void *capture(size_t bytes, bool frees, cudaGraphExec_t *made)
{
    cudaGraph_t graph;
    void *temporary;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaMalloc(&temporary, bytes));
    OK(cudaMemsetAsync(temporary, 1, bytes, stream));
    if (frees)
        OK(cudaFree(temporary));
    OK(cudaStreamEndCapture(stream, &graph));
    *made = instantiate(graph);
    if (!frees)
        OK(cudaFree(temporary));
    return temporary;
}

static void replay(bool frees)
{
    static unsigned char seen[BYTES];
    cudaGraphExec_t graph;
    void *victims[VICTIMS];
    for (int i = 0; i < VICTIMS; i++) /* so that the temporary is memory of before */
        OK(cudaMalloc(&victims[i], BYTES));
    for (int i = 0; i < VICTIMS; i++)
        OK(cudaFree(victims[i]));
    char *temporary = capture(BYTES, frees, &graph);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < VICTIMS; i++) {
            OK(cudaMalloc(&victims[i], BYTES));
            CHECK((char *)victims[i] + BYTES <= temporary ||
                  temporary + BYTES <= (char *)victims[i]);
            OK(cudaMemset(victims[i], 7, BYTES));
        }
        OK(cudaDeviceSynchronize());
        OK(cudaGraphLaunch(graph, stream));
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < VICTIMS; i++) {
            OK(cudaMemcpy(seen, victims[i], BYTES, cudaMemcpyDeviceToHost));
            for (size_t k = 0; k < BYTES; k++)
                CHECK(seen[k] == 7);
            OK(cudaFree(victims[i]));
        }
        if (api_there())
            cachealloc_trim(); /* the graph is still there */
    }
    OK(cudaGraphExecDestroy(graph));
}

static size_t free_memory(void)
{
    size_t now, all;
    OK(cudaMemGetInfo(&now, &all));
    return now;
}

static void two(void)
{
    cudaGraphExec_t first, second;
    if (!api_there())
        return;
    size_t before = free_memory();
    capture(20 * MIB, true, &first);
    capture(30 * MIB, true, &second);
    cachealloc_trim();
    CHECK(free_memory() == before - 50 * MIB);
    OK(cudaGraphExecDestroy(first));
    CHECK(free_memory() == before - 50 * MIB); /* not without a trim */
    cachealloc_trim();
    CHECK(free_memory() == before - 30 * MIB);
    OK(cudaGraphExecDestroy(second));
    cachealloc_trim();
    CHECK(free_memory() == before);
}

/* SIMCUDA=fail:cuGraphExecDestroy@1 */
static void refused(void)
{
    cudaGraphExec_t graph;
    if (!api_there())
        return;
    size_t before = free_memory();
    capture(20 * MIB, true, &graph);
    CHECK(cudaGraphExecDestroy(graph) != cudaSuccess);
    (void)cudaGetLastError();
    cachealloc_trim();
    CHECK(free_memory() == before - 20 * MIB);
    OK(cudaGraphExecDestroy(graph));
    cachealloc_trim();
    CHECK(free_memory() == before);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    start();
    if (strcmp(what, "answers") == 0)
        answers(mode_of(argv[2]), strcmp(argv[3], "other") == 0);
    else if (strcmp(what, "replay") == 0 || strcmp(what, "outlives") == 0)
        replay(strcmp(what, "replay") == 0);
    else if (strcmp(what, "two") == 0)
        two();
    else if (strcmp(what, "refused") == 0)
        refused();
    else
        FAIL("what?");
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    return 0;
}
