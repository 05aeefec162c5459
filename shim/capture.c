/* Lane D, watching stream capture, for the gate of capture.h.
 *
 * The capturing streams are kept by handle. Begin-capture closes the gate before it calls the
 * driver and waits for recorders under way, which are inside one short driver call. */
#include "shim/capture.h"
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include "config/lock.h"
#include "shim/driver_table.h"

#define CAPTURES_MAX 1024

static _Atomic int capturing; /* streams in capture, begin calls under way included */
static _Atomic int recorders;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static CUstream streams[CAPTURES_MAX];
static size_t stream_count;

bool ca_capture_active(void)
{
    return atomic_load(&capturing) > 0;
}

bool ca_capture_recorder_enter(void)
{
    atomic_fetch_add(&recorders, 1);
    if (!ca_capture_active())
        return true;
    atomic_fetch_sub(&recorders, 1);
    return false;
}

void ca_capture_recorder_leave(void)
{
    atomic_fetch_sub(&recorders, 1);
}

static void close_gate(void)
{
    atomic_fetch_add(&capturing, 1);
    while (atomic_load(&recorders) > 0)
        sched_yield();
}

/* A begin call has returned: it counts on when the stream is captured now. */
static CUresult began(CUstream stream, CUresult code)
{
    bool counts = code == CUDA_SUCCESS;
    if (counts) {
        ca_lock_take(&lock);
        /* A table that is full keeps the gate closed for good: safe, and epochs stay open. */
        if (stream_count < CAPTURES_MAX)
            streams[stream_count++] = stream;
        ca_lock_drop(&lock);
    } else {
        atomic_fetch_sub(&capturing, 1);
    }
    return code;
}

static void ended(CUstream stream)
{
    ca_lock_take(&lock);
    for (size_t i = 0; i < stream_count; i++) {
        if (streams[i] == stream) {
            streams[i] = streams[--stream_count];
            atomic_fetch_sub(&capturing, 1);
            break;
        }
    }
    ca_lock_drop(&lock);
}

/* In a per-thread twin the null stream is the thread's own. */
static CUstream per_thread(CUstream stream)
{
    return stream ? stream : CU_STREAM_PER_THREAD;
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
    CA_REAL(cuStreamBeginCapture);
    close_gate();
    return began(stream, real(stream));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
    CA_REAL(cuStreamBeginCapture_ptsz);
    close_gate();
    return began(per_thread(stream), real(stream));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCapture_v2);
    close_gate();
    return began(stream, real(stream, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCapture_v2_ptsz);
    close_gate();
    return began(per_thread(stream), real(stream, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                       const CUgraphNode *dependencies,
                                                       const CUgraphEdgeData *edges, size_t count,
                                                       CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCaptureToGraph);
    close_gate();
    return began(stream, real(stream, graph, dependencies, edges, count, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                            const CUgraphNode *dependencies,
                                                            const CUgraphEdgeData *edges,
                                                            size_t count, CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCaptureToGraph_ptsz);
    close_gate();
    return began(per_thread(stream), real(stream, graph, dependencies, edges, count, mode));
}

/* An end that fails may leave the stream in capture (wrong thread) or not (invalidated): ask. */
static bool still_captured(__typeof__(cuStreamIsCapturing) *ask, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return ask && ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CA_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CA_REAL(cuStreamEndCapture);
    CUresult code = real(stream, graph);
    if (code == CUDA_SUCCESS || !still_captured(ca_driver()->cuStreamIsCapturing, stream))
        ended(stream);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    CA_REAL(cuStreamEndCapture_ptsz);
    CUresult code = real(stream, graph);
    if (code == CUDA_SUCCESS || !still_captured(ca_driver()->cuStreamIsCapturing_ptsz, stream))
        ended(per_thread(stream));
    return code;
}

CA_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    CA_REAL(cuStreamDestroy_v2);
    CUresult code = real(stream);
    if (code == CUDA_SUCCESS)
        ended(stream);
    return code;
}
