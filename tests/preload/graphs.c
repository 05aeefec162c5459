/* Graphs: captured once, launched often, while memory is allocated and freed around them.
 *
 * graphs again              a graph on plain memory and on its own is launched 50 times, other
 * memory comes and goes in between graphs flight [plain]     memory of a graph in flight is freed,
 * and allocated again; `plain` lets the graph end before cudaFree, which else waits for it graphs
 * during MODE WHO    allocates and frees in a capture, from this thread or an`other`; prints the
 * codes, what became of the capture, and the code of its end graphs destroyed          the
 * capturing stream is destroyed graphs threads            a capture is begun on one thread and
 * ended on another graphs contexts           a stream of a second device joins a capture graphs pin
 * pin mode: a buffer comes back at its address, and the graph is good still
 */
#include "api.h"
#include "gate.h"

#define MIB ((size_t)1 << 20)
enum { BYTES = 300000, ROUNDS = 50 };

static cudaStream_t stream, other;
static unsigned char *seen; /* pinned */
static void *first, *second;

static void start(void)
{
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&seen, BYTES));
    OK(cudaMalloc(&first, BYTES));
    OK(cudaMalloc(&second, BYTES));
}

static void finish(void)
{
    OK(cudaFree(first));
    OK(cudaFree(second));
    OK(cudaFreeHost(seen));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    ANSWERS(cudaSuccess, cudaGetLastError());
}

static cudaGraphExec_t instantiate(cudaGraph_t graph)
{
    cudaGraphExec_t made;
    OK(cudaGraphInstantiate(&made, graph, 0));
    OK(cudaGraphDestroy(graph));
    return made;
}

static void all_are(int value)
{
    for (size_t i = 0; i < BYTES; i++)
        CHECK(seen[i] == (unsigned char)value);
}

/* What is live must not be touched by this. Enough frees to close epochs. */
static void others_come_and_go(int round)
{
    void *plain[8], *ordered;
    for (int i = 0; i < 8; i++) {
        size_t bytes = i == 7 ? 5 * MIB : (size_t)(i + 1) * 60000 + (size_t)round;
        OK(cudaMalloc(&plain[i], bytes));
        OK(cudaMemsetAsync(plain[i], 0xee, bytes, other));
        OK(cudaMallocAsync(&ordered, bytes, other));
        OK(cudaMemsetAsync(ordered, 0xdd, bytes, other));
        OK(cudaFreeAsync(ordered, other));
    }
    for (int i = 0; i < 8; i++)
        OK(cudaFree(plain[i]));
}

static void again(void)
{
    cudaGraph_t graph;
    void *scratch;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMallocAsync(&scratch, BYTES, stream));
    OK(cudaMemcpyAsync(scratch, first, BYTES, cudaMemcpyDeviceToDevice, stream));
    OK(cudaMemcpyAsync(second, scratch, BYTES, cudaMemcpyDeviceToDevice, stream));
    OK(cudaFreeAsync(scratch, stream));
    OK(cudaMemcpyAsync(seen, second, BYTES, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t launched = instantiate(graph);
    for (int round = 0; round < ROUNDS; round++) {
        OK(cudaMemsetAsync(first, round, BYTES, stream));
        OK(cudaGraphLaunch(launched, stream));
        others_come_and_go(round);
        OK(cudaStreamSynchronize(stream));
        all_are(round);
    }
    OK(cudaGraphExecDestroy(launched));
    finish();
}

static void flight(bool plain)
{
    gate_t gate = GATE_CLOSED;
    cudaGraph_t graph;
    char *freed, *taken[16];
    OK(cudaMalloc((void **)&freed, BYTES));
    OK(cudaMemset(freed, 7, BYTES));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(seen, freed, BYTES, cudaMemcpyDeviceToHost, stream));
    OK(cudaMemsetAsync(freed, 8, BYTES, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t launched = instantiate(graph);
    gate_hold(&gate, stream);
    OK(cudaGraphLaunch(launched, stream));
    if (plain)
        gate_open(&gate);
    OK(cudaFree(freed));
    for (int i = 0; i < 16; i++) {
        OK(cudaMalloc((void **)&taken[i], BYTES));
        CHECK(plain || taken[i] + BYTES <= freed || freed + BYTES <= taken[i]);
        OK(cudaMemsetAsync(taken[i], 9, BYTES, other));
    }
    OK(cudaStreamSynchronize(other));
    CHECK(plain || cudaStreamQuery(stream) == cudaErrorNotReady);
    cudaGetLastError();
    gate_open(&gate);
    OK(cudaStreamSynchronize(stream));
    all_are(7);
    for (int i = 0; i < 16; i++) {
        OK(cudaMemcpy(seen, taken[i], BYTES, cudaMemcpyDeviceToHost));
        all_are(9);
        OK(cudaFree(taken[i]));
    }
    OK(cudaGraphExecDestroy(launched));
    finish();
}

/* --- calls in a capture ----------------------------------------------------------------------- */
static int alloc_code, free_code; /* the first that is not 0 */

static void *churn(void *count)
{
    for (uintptr_t i = 0; i < (uintptr_t)count; i++) {
        void *memory = NULL;
        int code = (int)cudaMalloc(&memory, i % 10 ? 1000 * (i + 1) : 5 * MIB);
        alloc_code = alloc_code ? alloc_code : code;
        code = memory ? (int)cudaFree(memory) : 0;
        free_code = free_code ? free_code : code;
    }
    cudaGetLastError();
    return NULL;
}

static void churn_by(bool elsewhere, uintptr_t count)
{
    pthread_t thread;
    if (!elsewhere) {
        churn((void *)count);
        return;
    }
    OK(pthread_create(&thread, NULL, churn, (void *)count));
    OK(pthread_join(thread, NULL));
}

static enum cudaStreamCaptureMode mode_of(const char *name)
{
    return strcmp(name, "global") == 0   ? cudaStreamCaptureModeGlobal
           : strcmp(name, "thread") == 0 ? cudaStreamCaptureModeThreadLocal
                                         : cudaStreamCaptureModeRelaxed;
}

static void during(enum cudaStreamCaptureMode mode, bool elsewhere)
{
    cudaGraph_t graph = NULL;
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamBeginCapture(stream, mode));
    OK(cudaMemsetAsync(first, 3, BYTES, stream));
    churn_by(elsewhere, 200);
    OK(cudaStreamIsCapturing(stream, &status));
    int ended = (int)cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
    printf("%d %d %s %d\n", alloc_code, free_code,
           status == cudaStreamCaptureStatusActive ? "active" : "spoiled", ended);
    if (graph) {
        cudaGraphExec_t launched = instantiate(graph);
        OK(cudaGraphLaunch(launched, stream));
        OK(cudaMemcpyAsync(seen, first, BYTES, cudaMemcpyDeviceToHost, stream));
        OK(cudaStreamSynchronize(stream));
        all_are(3);
        OK(cudaGraphExecDestroy(launched));
    }
    finish();
}

/* Fences are recorded again: the test counts them. */
static void destroyed(void)
{
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(first, 3, BYTES, stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); /* perhaps the same handle */
    churn_by(false, 200);
    CHECK(alloc_code == 0 && free_code == 0);
    OK(cudaMemsetAsync(first, 4, BYTES, stream));
    OK(cudaMemcpyAsync(seen, first, BYTES, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    all_are(4);
    finish();
}

static cudaGraph_t captured;

static void *end_elsewhere(void *code)
{
    *(int *)code = (int)cudaStreamEndCapture(stream, &captured);
    cudaGetLastError();
    return NULL;
}

static void threads(void)
{
    pthread_t thread;
    int code;
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(first, 5, BYTES, stream));
    churn_by(true, 100);
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive); /* it was not disturbed */
    OK(pthread_create(&thread, NULL, end_elsewhere, &code));
    OK(pthread_join(thread, NULL));
    CHECK(code == cudaErrorStreamCaptureWrongThread); /* and that was its end */
    ANSWERS(cudaErrorIllegalState, cudaStreamEndCapture(stream, &captured));
    ANSWERS(cudaErrorIllegalState, cudaGetLastError());
    churn_by(false, 100);
    CHECK(alloc_code == 0 && free_code == 0);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(first, 6, BYTES, stream));
    OK(cudaMemcpyAsync(seen, first, BYTES, cudaMemcpyDeviceToHost, stream));
    OK(pthread_create(&thread, NULL, end_elsewhere, &code));
    OK(pthread_join(thread, NULL));
    CHECK(code == cudaSuccess);
    cudaGraphExec_t launched = instantiate(captured);
    OK(cudaGraphLaunch(launched, other));
    churn_by(false, 200);
    CHECK(alloc_code == 0 && free_code == 0);
    OK(cudaStreamSynchronize(other));
    all_are(6);
    OK(cudaGraphExecDestroy(launched));
    finish();
}

static void contexts(void)
{
    int devices;
    cudaStream_t there;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    void *memory;
    OK(cudaGetDeviceCount(&devices));
    if (devices < 2) {
        puts("needs two devices");
        exit(77);
    }
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    OK(cudaMalloc(&memory, BYTES));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(fork, stream));
    OK(cudaStreamWaitEvent(there, fork, 0));
    OK(cudaMemsetAsync(memory, 6, BYTES, there));
    OK(cudaMemcpyAsync(seen, memory, BYTES, cudaMemcpyDeviceToHost, there));
    churn_by(false, 100); /* of the device that joined */
    OK(cudaSetDevice(0));
    churn_by(false, 100);
    OK(cudaEventRecord(join, there));
    OK(cudaStreamWaitEvent(stream, join, 0));
    OK(cudaStreamEndCapture(stream, &graph));
    CHECK(alloc_code == 0 && free_code == 0);
    cudaGraphExec_t launched = instantiate(graph);
    for (int round = 0; round < 10; round++) {
        memset(seen, 0, BYTES);
        OK(cudaGraphLaunch(launched, stream));
        churn_by(false, 20);
        OK(cudaStreamSynchronize(stream));
        all_are(6);
    }
    OK(cudaGraphExecDestroy(launched));
    OK(cudaFree(memory));
    finish();
}

/* Ten times: a graph that was captured on a buffer is launched on what came after it. */
static void pin(void)
{
    cudaGraph_t graph;
    void *buffer, *next;
    if (!api_there())
        return;
    OK(cachealloc_set_pin_mode(1));
    OK(cudaMalloc(&buffer, BYTES));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(seen, buffer, BYTES, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t launched = instantiate(graph);
    for (int round = 0; round < 10; round++) {
        OK(cudaFree(buffer));
        OK(cudaDeviceSynchronize());
        CHECK(cachealloc_trim() == 0); /* nothing goes back, and all is ready */
        OK(cudaMalloc(&next, BYTES));
        CHECK(next == buffer);
        OK(cudaMemsetAsync(next, round, BYTES, stream));
        OK(cudaGraphLaunch(launched, stream));
        others_come_and_go(round);
        OK(cudaStreamSynchronize(stream));
        all_are(round);
    }
    OK(cudaFree(buffer));
    OK(cudaGraphExecDestroy(launched));
    OK(cachealloc_set_pin_mode(0));
    finish();
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "again";
    start();
    if (strcmp(what, "again") == 0)
        again();
    else if (strcmp(what, "flight") == 0)
        flight(argc > 2);
    else if (strcmp(what, "during") == 0 && argc > 3)
        during(mode_of(argv[2]), strcmp(argv[3], "other") == 0);
    else if (strcmp(what, "destroyed") == 0)
        destroyed();
    else if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "contexts") == 0)
        contexts();
    else if (strcmp(what, "pin") == 0)
        pin();
    else
        FAIL("no such case: %s", what);
    return 0;
}
