/* Driver hooks that watch stream capture, for the gate of capture.h.
 *
 * The capturing streams are kept by handle. Begin-capture closes the gate before it calls the
 * driver and waits for recorders under way, which are inside one short driver call. */
#include "shim/cuda/capture.h"
#include <stdatomic.h>
#include <stddef.h>
#include "base/lock.h"
#include "base/mutation.h"
#include "base/in_flight.h"
#include "pool/fence/order.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/stream_id.h"
#include "shim/cuda/streams.h"

#define CAPTURES_MAX 1024

_Atomic int ca_capturing;
static _Alignas(CA_PART_BYTES) ca_in_flight_t recorders;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static struct {
    CUstream stream;
    CUcontext context;        /* whose stream it is, or NULL when that is not known */
    unsigned long long id;    /* of that context, */
    unsigned long long owner; /* and of its primary, for a green one; 0 where there are none */
    uint64_t number;          /* of the capture: shim/cuda/graph_memory.c */
} captures[CAPTURES_MAX];
static size_t capture_count;

/* While anything is captured no call takes the fast path: the driver is asked first whether it is
 * allowed, or what it touches is noted for the graph. */
static void count(int by)
{
    int before = atomic_fetch_add(&ca_capturing, by);
    if (before == 0 || before + by == 0)
        ca_fast_invalidate();
    if (before == 0 && by > 0)
        ca_order_hold(true);
    else if (before > 0 && before + by == 0)
        ca_order_hold(false);
}

bool ca_capture_recorder_enter(void)
{
    ca_in_flight_enter(&recorders);
    if (!ca_capture_active() || CA_MUTATED(capture_gate))
        return true;
    ca_in_flight_leave(&recorders);
    return false;
}

void ca_capture_recorder_leave(void)
{
    ca_in_flight_leave(&recorders);
}

bool ca_capture_includes(__typeof__(cuStreamIsCapturing) *ask, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return ca_capture_active() && ask && ask(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool ca_capture_asked(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    __typeof__(cuStreamIsCapturing) *ask = ca_driver()->cuStreamIsCapturing;
    if (ca_hooks_in_place())
        return ca_capture_includes(ask, stream);
    return ask && ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Closes the gate before a begin call. Returns whether it did: not in a child that cannot use CUDA,
 * where the gate would never open again. */
static bool close_gate(void)
{
    if (!ca_life_active())
        return false;
    count(1);
    for (unsigned tries = 0; ca_in_flight_any(&recorders); tries++)
        ca_backoff(tries);
    /* From now on no stream can be made to wait for what was handed out in flight. */
    ca_order_leave();
    return true;
}

uint64_t ca_capture_announced(void)
{
    if (!close_gate())
        return 0;
    uint64_t number = ca_graph_memory_began();
    if (!number)
        count(-1);
    return number;
}

void ca_capture_announced_end(uint64_t number, const void *graph)
{
    ca_graph_memory_captured(graph, number);
    ca_graph_memory_ended(number);
    count(-1);
}

static void forget(size_t at)
{
    ca_graph_memory_ended(captures[at].number);
    captures[at] = captures[--capture_count];
    count(-1);
}

/* Whether the stream was in the table, from which it is taken. Under the lock. */
static bool take(CUstream stream)
{
    for (size_t i = 0; i < capture_count; i++)
        if (captures[i].stream == stream) {
            forget(i);
            return true;
        }
    return false;
}

/* Each context and each thread has streams with these names. */
static bool is_default(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* The begin call has returned: the gate stays closed when the stream is captured now. */
static CUresult began(bool closed, CUstream stream, CUresult code)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext context = NULL;
    if (!closed)
        return code;
    if (code != CUDA_SUCCESS) {
        count(-1);
        return code;
    }
    if (!driver->cuStreamGetCtx || driver->cuStreamGetCtx(stream, &context) != CUDA_SUCCESS)
        context = NULL;
    unsigned long long id = context ? ca_context_id(context) : 0;
    const ca_context_t *owner = context ? ca_context_of(context) : NULL;
    uint64_t number = ca_graph_memory_began();
    ca_lock_take(&lock);
    /* A capture of a stream that had this handle before went with its context. */
    if (!is_default(stream))
        take(stream);
    /* A table that is full keeps the gate closed for good: safe, and epochs stay open. */
    if (capture_count < CAPTURES_MAX) {
        captures[capture_count].stream = stream;
        captures[capture_count].context = context;
        captures[capture_count].id = id;
        captures[capture_count].number = number;
        captures[capture_count++].owner = owner ? owner->id : 0;
    }
    ca_lock_drop(&lock);
    return code;
}

static bool ended(CUstream stream)
{
    ca_lock_take(&lock);
    bool found = take(stream);
    ca_lock_drop(&lock);
    return found;
}

/* The capture of this stream has left `graph`. */
static void left(CUstream stream, CUgraph graph)
{
    ca_lock_take(&lock);
    for (size_t i = 0; i < capture_count; i++)
        if (captures[i].stream == stream)
            ca_graph_memory_captured(graph, captures[i].number);
    ca_lock_drop(&lock);
}

void ca_capture_context_destroyed(CUcontext context, unsigned long long id)
{
    ca_lock_take(&lock);
    for (size_t i = 0; i < capture_count;) {
        bool has_id = id && captures[i].id;
        if (has_id ? captures[i].id == id || captures[i].owner == id
                   : captures[i].context == context)
            forget(i);
        else
            i++;
    }
    ca_lock_drop(&lock);
}

void ca_capture_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    atomic_store(&ca_capturing, 0);
    ca_in_flight_reset(&recorders);
    capture_count = 0;
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream stream)
{
    CA_REAL(cuStreamBeginCapture);
    bool closed = close_gate();
    return began(closed, stream, real(stream));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream)
{
    CA_REAL(cuStreamBeginCapture_ptsz);
    bool closed = close_gate();
    return began(closed, ca_stream_per_thread(stream), real(stream));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCapture_v2);
    bool closed = close_gate();
    return began(closed, stream, real(stream, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCapture_v2_ptsz);
    bool closed = close_gate();
    return began(closed, ca_stream_per_thread(stream), real(stream, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                       const CUgraphNode *dependencies,
                                                       const CUgraphEdgeData *edges, size_t count,
                                                       CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCaptureToGraph);
    bool closed = close_gate();
    return began(closed, stream, real(stream, graph, dependencies, edges, count, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                            const CUgraphNode *dependencies,
                                                            const CUgraphEdgeData *edges,
                                                            size_t count, CUstreamCaptureMode mode)
{
    CA_REAL(cuStreamBeginCaptureToGraph_ptsz);
    bool closed = close_gate();
    return began(closed, ca_stream_per_thread(stream),
                 real(stream, graph, dependencies, edges, count, mode));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                                         CUgraph graph,
                                                         CUgraphRecaptureCallback callback,
                                                         void *data)
{
    CA_REAL(cuStreamBeginRecaptureToGraph);
    bool closed = close_gate();
    return began(closed, stream, real(stream, mode, graph, callback, data));
}

CA_EXPORT CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream stream,
                                                              CUstreamCaptureMode mode,
                                                              CUgraph graph,
                                                              CUgraphRecaptureCallback callback,
                                                              void *data)
{
    CA_REAL(cuStreamBeginRecaptureToGraph_ptsz);
    bool closed = close_gate();
    return began(closed, ca_stream_per_thread(stream), real(stream, mode, graph, callback, data));
}

/* An end that fails may leave the stream in capture (wrong thread) or not (invalidated): ask. */

CA_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    CA_REAL(cuStreamEndCapture);
    CUresult code = real(stream, graph);
    if (code == CUDA_SUCCESS)
        left(stream, *graph);
    if (code == CUDA_SUCCESS || !ca_capture_includes(ca_driver()->cuStreamIsCapturing, stream))
        ended(stream);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    CA_REAL(cuStreamEndCapture_ptsz);
    CUresult code = real(stream, graph);
    if (code == CUDA_SUCCESS)
        left(ca_stream_per_thread(stream), *graph);
    if (code == CUDA_SUCCESS || !ca_capture_includes(ca_driver()->cuStreamIsCapturing_ptsz, stream))
        ended(ca_stream_per_thread(stream));
    return code;
}

/* A stream that is destroyed ends its capture. It is forgotten first, but the gate is held until
 * the driver has answered: afterwards the handle may be another stream's, capturing already. */
static CUresult destroy(__typeof__(cuStreamDestroy_v2) *real, CUstream stream)
{
    ca_streams_destroyed(stream);
    ca_stream_id_ends(stream);
    if (!ca_capture_active())
        return real(stream);
    count(1);
    bool was = ended(stream);
    CUresult code = real(stream);
    if (was && code != CUDA_SUCCESS)
        began(true, stream, CUDA_SUCCESS);
    else
        count(-1);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    CA_REAL(cuStreamDestroy);
    return destroy(real, stream);
}

CA_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    CA_REAL(cuStreamDestroy_v2);
    return destroy(real, stream);
}
