/* While a stream captures, another thread allocates and frees: our fences must not end the capture.
 * capture MODE, relaxed, thread or global; the plain runtime refuses the other thread's calls in
 * the global mode, so that one is for capture:keep alone. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include "check.h"

/* Enough small frees, and some large ones, to close many epochs. */
static void *churn(void *unused)
{
    for (int i = 0; i < 400; i++) {
        void *pointer;
        OK(cudaMalloc(&pointer, i % 10 ? (size_t)1000 * (unsigned)(i + 1) : (size_t)5 << 20));
        OK(cudaFree(pointer));
    }
    return unused;
}

static void churn_elsewhere(void)
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, churn, NULL));
    OK(pthread_join(thread, NULL));
}

static enum cudaStreamCaptureMode mode_of(const char *name)
{
    if (strcmp(name, "global") == 0)
        return cudaStreamCaptureModeGlobal;
    if (strcmp(name, "thread") == 0)
        return cudaStreamCaptureModeThreadLocal;
    CHECK(strcmp(name, "relaxed") == 0);
    return cudaStreamCaptureModeRelaxed;
}

int main(int argc, char **argv)
{
    enum cudaStreamCaptureMode mode = mode_of(argc > 1 ? argv[1] : "relaxed");
    cudaStream_t stream;
    void *buffer;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc(&buffer, 4096));
    churn_elsewhere(); /* pending blocks from before the capture are there, too */
    for (int round = 0; round < 3; round++) {
        cudaGraph_t graph = NULL;
        enum cudaStreamCaptureStatus status;
        OK(cudaStreamBeginCapture(stream, mode));
        OK(cudaMemsetAsync(buffer, round, 4096, stream));
        churn_elsewhere();
        OK(cudaStreamIsCapturing(stream, &status));
        CHECK(status == cudaStreamCaptureStatusActive);
        OK(cudaStreamEndCapture(stream, &graph));
        CHECK(graph);
        OK(cudaGraphDestroy(graph));
        churn_elsewhere(); /* fences are allowed again */
    }
    OK(cudaFree(buffer));
    OK(cudaStreamDestroy(stream));
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
