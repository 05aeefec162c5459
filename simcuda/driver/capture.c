/* Stream capture: which streams capture, what may be called meanwhile, what invalidates. What is
 * captured becomes nodes of a graph (graph.c); every capturing stream has a frontier, the nodes
 * that its next operation depends on, and an event that is recorded there takes it along. Rules:
 * cuda.h, cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode, CUDA_ERROR_STREAM_CAPTURE_*. */
#include "graph_node.h"

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

bool sim_capture_spoil_locked(uint64_t id)
{
    sim_capture_t *c = sim_capture_by_id_locked(id);
    if (c) {
        invalidate(c);
    }
    return c != NULL;
}

void sim_capture_join_locked(CUstream s, sim_capture_t *c, const sim_frontier_t *from)
{
    s->capture = c;
    s->frontier.n = 0;
    sim_frontier_join(&s->frontier, from);
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
        *rc = active ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        return true;
    }
    if (s->legacy && s->ctx->capturing_blocking) {
        *rc = implicit_locked(s->ctx); /* 906: "a dependency ... on the legacy stream" */
        return true;
    }
    return false;
}

/* cuda.h, cuStreamAddCallback: "not supported with cuStreamBeginCapture". */
CUresult sim_capture_node_locked(CUstream s, const sim_op_t *op)
{
    return op->kind == SIM_OP_CALLBACK || op->kind == SIM_OP_PREFETCH || op->kind == SIM_OP_DISCARD
               ? sim_capture_block_stream_locked(s)
               : sim_graph_add(s->capture->graph, op, &s->frontier);
}

bool sim_capture_has(CUstream s)
{
    sim_lock();
    bool has = s->capture != NULL;
    sim_unlock();
    return has;
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

/* A potentially unsafe call: fails, and invalidates the captures that forbid it. */
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

/* Everything that joined leaves; the capture is no more. Its graph, or NULL and none of its nodes.
 */
static CUgraph end_locked(sim_capture_t *c, bool wanted)
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
    CUgraph graph = c->graph;
    if (!wanted) {
        sim_graph_cut(graph, c->first);
        if (!c->own_graph) {
            sim_graph_unref(graph);
        }
        graph = NULL;
    }
    free(c->listed);
    free(c);
    return graph;
}

/* A capturing stream is destroyed: the origin ends its capture; another one leaves it, and what it
 * did must have been joined, as the CUDA sample with graph memory nodes does (graphMemoryNodes). */
void sim_capture_stream_destroyed_locked(CUstream s)
{
    sim_capture_t *c = s->capture;
    if (c && c->origin == s) {
        end_locked(c, false);
    } else if (c) {
        leave_locked(s);
    }
}

static CUresult begin(CUstream h, bool pt, CUstreamCaptureMode mode, CUgraph graph,
                      const CUgraphNode *after, size_t count)
{
    sim_frontier_t from = {0};
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (s->legacy) { /* "Capture may not be initiated if stream is CU_STREAM_LEGACY" */
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    sim_capture_t *c = calloc(1, sizeof(*c));
    CUgraph target = graph ? graph : sim_graph_make();
    if (!c || !target) {
        free(c);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    CUresult rc = sim_graph_add_handles(target, after, count, &from);
    if (rc == CUDA_SUCCESS && s->capture) {
        rc = CUDA_ERROR_ILLEGAL_STATE; /* "only ... if the stream is not already in capture" */
    }
    if (rc == CUDA_SUCCESS) {
        *c = (sim_capture_t){.id = next_id++,
                             .mode = mode,
                             .origin = s,
                             .next = captures,
                             .graph = target,
                             .own_graph = graph != NULL,
                             .first = sim_graph_count(target),
                             .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
                             .thread = sim_thread()->serial};
        captures = c;
        atomic_fetch_add(&capture_count, 1);
        sim_capture_join_locked(s, c, &from);
        c = NULL;
    } else if (!graph) {
        sim_graph_unref(target);
    }
    sim_unlock();
    free(from.at);
    free(c);
    return rc;
}

/* What the graph does stays as it is, and `callbackFunc` is never called: parameters that differ
 * are not modelled. */
static CUresult recapture(CUstream h, bool pt, CUstreamCaptureMode mode, CUgraph graph)
{
    CUstream s;
    SIM_TRY(sim_graph_check(graph));
    SIM_TRY(begin(h, pt, mode, NULL, NULL, 0));
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    sim_lock();
    s->capture->recaptures = graph;
    sim_unlock();
    return CUDA_SUCCESS;
}

/* "The node creation order while recapturing the graph must be identical to the original graph." */
static bool alike(CUgraph a, CUgraph b)
{
    size_t i = 0;
    while (i < a->count && i < b->count && a->nodes[i]->op.kind == b->nodes[i]->op.kind) {
        i++;
    }
    return i == a->count && i == b->count;
}

static CUresult end(CUstream h, bool pt, CUgraph *out)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult rc = CUDA_SUCCESS;
    sim_lock();
    sim_capture_t *c = s->capture;
    if (!c) {
        rc = CUDA_ERROR_ILLEGAL_STATE;
    } else if (c->origin != s) {
        invalidate(c);
        rc = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != sim_thread()->serial) {
        rc = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; /* and that was its end, on an H200 */
        *out = end_locked(c, false);
    } else {
        if (c->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        } else if (!sim_graph_joined(c->graph, c->first, &s->frontier)) {
            rc = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        } else if (c->recaptures && !alike(c->graph, c->recaptures)) {
            rc = (CUresult)918; /* CUDA_ERROR_GRAPH_RECAPTURE_FAILURE */
        }
        /* "If capture was invalidated ... a NULL graph will be returned" */
        CUgraph again = rc == CUDA_SUCCESS ? c->recaptures : NULL;
        *out = end_locked(c, rc == CUDA_SUCCESS && !again);
        *out = again ? again : *out;
    }
    sim_unlock();
    return rc;
}

SIM_BOTH(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz,
         (CUstream hStream, CUstreamCaptureMode mode), begin(hStream, pt, mode, NULL, NULL, 0))
SIM_BOTH(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream hStream),
         begin(hStream, pt, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0))
SIM_BOTH(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
         (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *dependencyData, size_t numDependencies, CUstreamCaptureMode mode),
         ((void)dependencyData,
          hGraph ? begin(hStream, pt, mode, hGraph, dependencies, numDependencies)
                 : CUDA_ERROR_INVALID_VALUE))
SIM_BOTH(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz,
         (CUstream hStream, CUstreamCaptureMode mode, CUgraph hGraph,
          CUgraphRecaptureCallback callbackFunc, void *userData),
         ((void)callbackFunc, (void)userData, recapture(hStream, pt, mode, hGraph)))
SIM_BOTH(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream hStream, CUgraph *phGraph),
         end(hStream, pt, phGraph))

/* cuda.h, cuStreamGetCaptureInfo: the array "is valid until the next API call which operates on the
 * stream or until the capture is terminated". */
static const CUgraphNode *listed_locked(CUstream s)
{
    sim_capture_t *c = s->capture;
    free(c->listed);
    c->listed = calloc(s->frontier.n + 1, sizeof(CUgraphNode));
    for (size_t i = 0; c->listed && i < s->frontier.n; i++) {
        c->listed[i] = sim_graph_node(c->graph, s->frontier.at[i]);
    }
    return c->listed;
}

static CUresult info(CUstream h, bool pt, CUstreamCaptureStatus *status, cuuint64_t *id,
                     CUgraph *graph, const CUgraphNode **nodes, size_t *count)
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
    if (graph) {
        *graph = s->capture ? s->capture->graph : NULL;
    }
    if (nodes) {
        *nodes = s->capture ? listed_locked(s) : NULL;
    }
    if (count) {
        *count = s->capture ? s->frontier.n : 0;
    }
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamIsCapturing, cuStreamIsCapturing_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *captureStatus),
         info(hStream, pt, captureStatus, NULL, NULL, NULL, NULL))
SIM_BOTH(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id),
         info(hStream, pt, status, id, NULL, NULL, NULL))
SIM_BOTH(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, size_t *count),
         info(hStream, pt, status, id, graph, dependencies, count))
SIM_BOTH(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
         (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count),
         ((void)edges, info(hStream, pt, status, id, graph, dependencies, count)))

static CUresult update(CUstream h, bool pt, const CUgraphNode *nodes, size_t n, unsigned flags)
{
    CUstream s;
    sim_frontier_t added = {0};
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (n && !nodes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    CUresult rc = s->capture ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
    rc = rc == CUDA_SUCCESS ? sim_graph_add_handles(s->capture->graph, nodes, n, &added) : rc;
    if (rc == CUDA_SUCCESS && flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        sim_graph_let_go(s->capture->graph, &s->frontier);
        s->frontier.n = 0;
    }
    if (rc == CUDA_SUCCESS) {
        sim_frontier_join(&s->frontier, &added);
    }
    sim_unlock();
    free(added.at);
    return rc;
}

SIM_BOTH(cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz,
         (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned int flags),
         update(hStream, pt, dependencies, numDependencies, flags))
SIM_BOTH(cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz,
         (CUstream hStream, CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
          size_t numDependencies, unsigned int flags),
         ((void)dependencyData, update(hStream, pt, dependencies, numDependencies, flags)))

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
