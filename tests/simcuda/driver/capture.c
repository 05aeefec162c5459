/* Stream capture, as far as an allocator must know of it: which streams capture, what may be
 * called meanwhile, what invalidates. Captured operations are counted and never run; a graph is a
 * count of nodes and cannot be instantiated. Rules: cuda.h, cuStreamBeginCapture,
 * cuThreadExchangeStreamCaptureMode, CUDA_ERROR_STREAM_CAPTURE_*. Whether every branch was joined
 * again is not tracked. */
#include "sim.h"

#include <stdlib.h>

static sim_capture_t *captures; /* begun and not ended, under the engine lock */
static _Atomic int capture_count;
static uint64_t next_id = 1;

static void invalidate(sim_capture_t *c)
{
    c->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

sim_capture_t *sim_capture_by_id_locked(uint64_t id)
{
    sim_capture_t *c = captures;
    while (c && c->id != id) {
        c = c->next;
    }
    return c;
}

void sim_capture_join_locked(CUstream s, sim_capture_t *c)
{
    s->capture = c;
    atomic_fetch_add(&s->ctx->capturing, 1);
    s->ctx->capturing_blocking += s->blocking;
}

static void leave_locked(CUstream s)
{
    s->capture = NULL;
    atomic_fetch_sub(&s->ctx->capturing, 1);
    s->ctx->capturing_blocking -= s->blocking;
}

static CUresult implicit_locked(CUcontext ctx)
{
    for (CUstream s = ctx->streams; s; s = s->next) {
        if (s->capture && s->blocking) {
            invalidate(s->capture);
        }
    }
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

bool sim_capture_takes_locked(CUstream s, CUresult *rc)
{
    if (s->capture) {
        bool active = s->capture->status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
        s->capture->nodes += active;
        *rc = active ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    if (s->legacy && s->ctx->capturing_blocking) {
        *rc = implicit_locked(s->ctx); /* 906: "a dependency ... on the legacy stream" */
        return true;
    }
    return false;
}

CUresult sim_capture_block_context_locked(CUcontext ctx)
{
    CUresult rc = CUDA_SUCCESS;
    SIM_EACH_OF(c, ctx)
    {
        bool none = atomic_load_explicit(&c->capturing, memory_order_relaxed) == 0;
        for (CUstream s = none ? NULL : c->streams; s; s = s->next) {
            if (s->capture) {
                invalidate(s->capture);
            }
        }
        rc = none ? rc : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return rc;
}

CUresult sim_capture_block_stream_locked(CUstream s)
{
    invalidate(s->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* A potentially unsafe call: fails, and spoils the captures that forbid it. */
CUresult sim_capture_unsafe(void)
{
    if (atomic_load_explicit(&capture_count, memory_order_relaxed) == 0) {
        return CUDA_SUCCESS;
    }
    sim_thread_t *t = sim_thread();
    if (t->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    CUresult rc = CUDA_SUCCESS;
    sim_lock();
    for (sim_capture_t *c = captures; c; c = c->next) {
        bool own = c->thread == t->serial && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool other = c->thread != t->serial && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                     t->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (own || other) {
            invalidate(c);
            rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    sim_unlock();
    return rc;
}

/* Everything that joined leaves; the capture is no more. Returns its nodes. */
static size_t end_locked(sim_capture_t *c)
{
    for (CUcontext ctx = sim_ctx_all; ctx; ctx = ctx->next_all) {
        for (CUstream s = ctx->streams; s && atomic_load(&ctx->capturing); s = s->next) {
            if (s->capture == c) {
                leave_locked(s);
            }
        }
    }
    for (sim_capture_t **p = &captures; *p; p = &(*p)->next) {
        if (*p == c) {
            *p = c->next;
            break;
        }
    }
    atomic_fetch_sub(&capture_count, 1);
    size_t nodes = c->nodes;
    free(c);
    return nodes;
}

/* A capturing stream is destroyed: the origin ends its capture, another one spoils it. */
void sim_capture_stream_gone_locked(CUstream s)
{
    sim_capture_t *c = s->capture;
    if (c && c->origin == s) {
        end_locked(c);
    } else if (c) {
        invalidate(c);
        leave_locked(s);
    }
}

static CUresult begin(CUstream h, bool pt, CUstreamCaptureMode mode, CUgraph graph)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (s->legacy) { /* "Capture may not be initiated if stream is CU_STREAM_LEGACY" */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    sim_capture_t *c = calloc(1, sizeof(*c));
    if (!c) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult rc = CUDA_ERROR_ILLEGAL_STATE; /* "only ... if the stream is not already in capture" */
    sim_lock();
    if (!s->capture) {
        *c = (sim_capture_t){.id = next_id++,
                             .mode = mode,
                             .origin = s,
                             .next = captures,
                             .graph = graph,
                             .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
                             .thread = sim_thread()->serial};
        captures = c;
        atomic_fetch_add(&capture_count, 1);
        sim_capture_join_locked(s, c);
        rc = CUDA_SUCCESS;
        c = NULL;
    }
    sim_unlock();
    free(c);
    return rc;
}

static CUresult end(CUstream h, bool pt, CUgraph *out)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraph graph = calloc(1, sizeof(*graph));
    CUresult rc = CUDA_SUCCESS;
    sim_lock();
    sim_capture_t *c = s->capture;
    if (!graph) {
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (!c) {
        rc = CUDA_ERROR_ILLEGAL_STATE;
    } else if (c->origin != s) {
        invalidate(c);
        rc = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != sim_thread()->serial) {
        rc = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        if (c->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            *out = NULL; /* "If capture was invalidated ... a NULL graph will be returned" */
            rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        CUgraph own = c->graph;
        size_t nodes = end_locked(c);
        if (own && rc == CUDA_SUCCESS) {
            free(graph);
            graph = own;
        }
        graph->nodes += nodes;
    }
    sim_unlock();
    if (rc == CUDA_SUCCESS) {
        *out = graph;
    } else {
        free(graph);
    }
    return rc;
}

SIM_BOTH(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
         (CUstream hStream, CUstreamCaptureMode mode), begin(hStream, pt, mode, NULL))
SIM_BOTH(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream hStream),
         begin(hStream, pt, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL))
SIM_BOTH(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
         (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode),
         ((void)dependencies, (void)dependencyData, (void)numDependencies,
          hGraph ? begin(hStream, pt, mode, hGraph) : CUDA_ERROR_INVALID_VALUE))
SIM_BOTH(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream hStream, CUgraph *phGraph),
         end(hStream, pt, phGraph))

static CUresult info(CUstream h, bool pt, CUstreamCaptureStatus *status, cuuint64_t *id,
                     CUgraph *graph, size_t *deps)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!status) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    if (s->legacy && s->ctx->capturing_blocking) {
        sim_unlock(); /* "returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"; the capture lives on */
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *status = s->capture ? s->capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    if (s->capture && id) {
        *id = s->capture->id;
    }
    sim_unlock();
    if (graph) {
        *graph = NULL;
    }
    if (deps) {
        *deps = 0;
    }
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamIsCapturing, cuStreamIsCapturing_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *captureStatus),
         info(hStream, pt, captureStatus, NULL, NULL, NULL))
SIM_BOTH(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id),
         info(hStream, pt, status, id, NULL, NULL))
SIM_BOTH(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, size_t *count),
         ((void)dependencies, info(hStream, pt, status, id, graph, count)))
SIM_BOTH(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
         ((void)dependencies, (void)edges, info(hStream, pt, status, id, graph, count)))

SIM_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER(cuThreadExchangeStreamCaptureMode);
    if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_thread_t *t = sim_thread();
    CUstreamCaptureMode old = t->capture_mode;
    t->capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SIM_ENTER(cuGraphCreate);
    if (!phGraph || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = calloc(1, sizeof(**phGraph));
    return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuGraphDestroy(CUgraph hGraph)
{
    SIM_ENTER(cuGraphDestroy);
    if (!hGraph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(hGraph);
    return CUDA_SUCCESS;
}
