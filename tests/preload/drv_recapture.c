/* CUDA 13.3: a graph is captured once more while memory comes and goes: no fence may end that
 * capture. "drv_recapture [own]", own: by the form for the per-thread default stream. What the
 * driver does not have is skipped. */
#include <cuda.h>
#include <stdbool.h>
#include "check.h"

#define BYTES 4096

/* Headers before 13.3 lack it. */
typedef CUresult CUDAAPI recapture_t(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                     void *callback, void *data);

static recapture_t *look_up(cuuint64_t flags)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    int version;
    OK(cuDriverGetVersion(&version));
    if (version < 13030) {
        puts("needs a driver for CUDA 13.3");
        exit(77);
    }
    OK(cuGetProcAddress("cuStreamBeginRecaptureToGraph", &found, 13030, flags, &status));
    CHECK(found);
    return (recapture_t *)found;
}

/* Enough frees, and large ones, to close epochs. */
static void churn(void)
{
    for (size_t i = 0; i < 200; i++) {
        CUdeviceptr p;
        OK(cuMemAlloc(&p, i % 10 ? 1000 * (i + 1) : (size_t)5 << 20));
        OK(cuMemFree(p));
    }
}

int main(int argc, char **argv)
{
    bool own = argc > 1 && strcmp(argv[1], "own") == 0;
    CUcontext context;
    CUdeviceptr buffer;
    CUgraph graph, same = NULL;
    CUstreamCaptureStatus status;
    CUstream stream = CU_STREAM_PER_THREAD;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    recapture_t *recapture = look_up(own ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                         : CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    OK(cuMemAlloc(&buffer, BYTES));
    churn();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(buffer, 1, BYTES, stream));
    OK(cuStreamEndCapture(stream, &graph));
    for (int round = 0; round < 3; round++) {
        churn(); /* fences are allowed again */
        OK(recapture(own ? NULL : stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL, NULL));
        OK(cuMemsetD8Async(buffer, 1, BYTES, stream));
        churn();
        OK(cuStreamIsCapturing(stream, &status));
        CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(cuStreamEndCapture(stream, &same));
        CHECK(same == graph);
    }
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(buffer));
    return 0;
}
