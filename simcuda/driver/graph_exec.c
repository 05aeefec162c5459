/* Executable graphs. A launch puts the nodes into its stream one by one, under one hold of the
 * engine lock, so that no other thread's work comes between them. */
#include "graph_node.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAGIC = 0x45584543 };
#define KNOWN_FLAGS                                                                                \
    (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |        \
     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

struct CUgraphExec_st {
    uint32_t magic;
    CUgraph graph;
    size_t count; /* of nodes: a later capture into the graph adds nothing here */
    bool auto_free;
    bool mapped;       /* its allocation nodes have device memory */
    sim_points_t last; /* the latest launch; what comes next waits for it */
    sim_clock_t clock; /* the race check's side of it */
};

/* --- instantiation -----------------------------------------------------------------------------*/
/* Device memory for the first `count` nodes, or back. */
static CUresult back_locked(CUgraph g, size_t count, bool on)
{
    for (size_t i = 0; i < count; i++) {
        sim_op_t *op = &g->nodes[i]->op;
        CUresult rc = op->kind == SIM_OP_ALLOC
                          ? sim_heap_graph_back(sim_device_of(op->u.alloc.at), op->u.alloc.at,
                                                op->u.alloc.id, on)
                          : CUDA_SUCCESS;
        if (rc != CUDA_SUCCESS && on) {
            back_locked(g, i, false);
            return rc;
        }
    }
    return CUDA_SUCCESS;
}

/* CUDA programming guide, "First Launch / cudaGraphUpload": "Physical memory cannot be allocated or
 * mapped during graph instantiation ... Mapping is done instead during graph launch", or by an
 * upload before. */
static CUresult map_locked(CUgraphExec x)
{
    CUresult rc = x->mapped ? CUDA_SUCCESS : back_locked(x->graph, x->count, true);
    x->mapped = x->mapped || rc == CUDA_SUCCESS;
    return rc;
}

static CUresult instantiate(CUgraphExec *out, CUgraph g, uint64_t flags)
{
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    SIM_TRY(sim_graph_check(g));
    if (!out || (flags & ~(uint64_t)(KNOWN_FLAGS | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        return CUDA_ERROR_NOT_SUPPORTED; /* kernels do nothing here */
    }
    CUgraphExec x = calloc(1, sizeof(*x));
    if (!x) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    /* "there can be at most one executable graph in existence for that graph at a time" */
    CUresult rc = g->memory && g->execs ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    x->magic = MAGIC;
    x->graph = g;
    x->count = g->count;
    x->auto_free = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    if (rc == CUDA_SUCCESS && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
        rc = map_locked(x);
    }
    if (rc == CUDA_SUCCESS) {
        g->refs++;
        g->execs++;
        *out = x;
        x = NULL;
    }
    sim_unlock();
    free(x);
    return rc;
}

/* The forms before 11.4: no flags, and what went wrong in words. */
static CUresult instantiate_old(CUgraphExec *out, CUgraph g, CUgraphNode *node, char *log,
                                size_t size)
{
    if (node) {
        *node = NULL;
    }
    if (log && size) {
        *log = 0;
    }
    return instantiate(out, g, 0);
}

SIM_API CUresult cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
                                    CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(cuGraphInstantiate);
    return instantiate_old(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

SIM_API CUresult cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                       CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize)
{
    SIM_ENTER(cuGraphInstantiate_v2);
    return instantiate_old(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

SIM_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                             unsigned long long flags)
{
    SIM_ENTER(cuGraphInstantiateWithFlags);
    return flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? CUDA_ERROR_INVALID_VALUE
                                                      : instantiate(phGraphExec, hGraph, flags);
}

static CUresult with_params(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
    if (!p) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult rc = instantiate(out, g, p->flags);
    p->hErrNode_out = NULL;
    p->result_out =
        rc == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return rc;
}

SIM_BOTH(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
         (CUgraphExec * phGraphExec, CUgraph hGraph,
          CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams),
         with_params(phGraphExec, hGraph, instantiateParams))

static CUresult exec_check(CUgraphExec x)
{
    return x && x->magic == MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* "If the executable graph is in-flight, it will not be terminated": the queues have copies. */
SIM_API CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    SIM_ENTER(cuGraphExecDestroy);
    SIM_TRY(exec_check(hGraphExec));
    sim_lock();
    hGraphExec->magic = 0;
    back_locked(hGraphExec->graph, hGraphExec->count, false);
    hGraphExec->graph->execs--;
    sim_graph_unref(hGraphExec->graph);
    sim_unlock();
    sim_points_free(&hGraphExec->last);
    sim_clock_free(&hGraphExec->clock);
    free(hGraphExec);
    return CUDA_SUCCESS;
}

/* --- launching ---------------------------------------------------------------------------------*/
/* cuda.h, cuGraphLaunch: "If any allocations created by hGraphExec remain unfreed (from a previous
 * launch) and hGraphExec was not instantiated with ... AUTO_FREE_ON_LAUNCH, the launch will fail
 * with CUDA_ERROR_INVALID_VALUE". A free node of another graph's memory needs it unfreed [hw]. */
static CUresult may_launch_locked(CUgraphExec x)
{
    for (size_t i = 0; i < x->count; i++) {
        sim_op_t *op = &x->graph->nodes[i]->op;
        CUdeviceptr p = op->kind == SIM_OP_ALLOC ? op->u.alloc.at : op->u.free_ptr;
        sim_device_t *d =
            op->kind == SIM_OP_ALLOC || op->kind == SIM_OP_FREE ? sim_device_of(p) : NULL;
        if (!d) {
            continue;
        }
        bool alloc = op->kind == SIM_OP_ALLOC;
        if (!sim_heap_graph_change(d, p, alloc ? op->u.alloc.id : 0, SIM_GRAPH_IS_THERE)) {
            return CUDA_ERROR_INVALID_VALUE; /* its context was destroyed */
        }
        bool unfreed = sim_heap_graph_change(d, p, 0, SIM_GRAPH_IS_UNFREED);
        if (alloc ? unfreed && !x->auto_free : !unfreed && !sim_graph_allocates(x->graph, p)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

static void put_locked(CUstream s, const sim_op_t *op)
{
    sim_race_op(s, op);
    sim_enqueue_locked(s, op);
}

static void put_free_locked(CUstream s, CUdeviceptr p)
{
    sim_device_t *d = sim_device_of(p);
    sim_op_t op = {.kind = SIM_OP_FREE, .u.free_ptr = p};
    if (sim_heap_graph_change(d, p, 0, SIM_GRAPH_FREE_BEGUN)) {
        atomic_fetch_add(&d->frees, 1);
        put_locked(s, &op);
    }
}

static void put_node_locked(CUgraphExec x, CUstream s, const sim_op_t *op)
{
    if (op->kind == SIM_OP_FREE) {
        put_free_locked(s, op->u.free_ptr);
        return;
    }
    if (op->kind == SIM_OP_ALLOC) {
        sim_device_t *d = sim_device_of(op->u.alloc.at);
        if (x->auto_free &&
            sim_heap_graph_change(d, op->u.alloc.at, op->u.alloc.id, SIM_GRAPH_IS_UNFREED)) {
            put_free_locked(s, op->u.alloc.at);
        }
        sim_heap_graph_change(d, op->u.alloc.at, op->u.alloc.id, SIM_GRAPH_ALLOCATED);
    }
    put_locked(s, op);
}

/* cuda.h: "Each launch is ordered behind both any previous work in hStream and any previous
 * launches of hGraphExec." The empty operation at the end is what the next launch waits for. */
static void launch_locked(CUgraphExec x, CUstream s)
{
    sim_op_t wait = {.kind = SIM_OP_WAIT, .after = x->last}, end = {.kind = SIM_OP_WAIT};
    sim_race_wait(s, &x->clock);
    sim_enqueue_locked(s, &wait);
    for (size_t i = 0; i < x->count; i++) {
        put_node_locked(x, s, &x->graph->nodes[i]->op);
    }
    sim_op_t *last = sim_enqueue_locked(s, &end);
    x->last.n = 0;
    sim_points_add(&x->last, s, last->seq);
    sim_race_of_stream(s, &x->clock);
}

static CUresult launch(CUgraphExec x, CUstream h, bool pt)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    SIM_TRY(exec_check(x));
    CUresult rc;
    sim_lock();
    if (sim_capture_takes_locked(s, &rc)) {
        sim_unlock();
        if (rc == CUDA_SUCCESS) {
            fprintf(stderr, "simcuda: a graph inside a graph is not modelled\n");
            rc = CUDA_ERROR_NOT_SUPPORTED;
        }
        return rc;
    }
    rc = may_launch_locked(x);
    if (rc == CUDA_SUCCESS) {
        rc = map_locked(x);
    }
    if (rc == CUDA_SUCCESS) {
        launch_locked(x, s);
    }
    sim_unlock();
    return rc;
}

SIM_BOTH(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec hGraphExec, CUstream hStream),
         launch(hGraphExec, hStream, pt))

/* The memory is all there is to upload. */
static CUresult upload(CUgraphExec x, CUstream h, bool pt)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    SIM_TRY(exec_check(x));
    sim_lock();
    CUresult rc = map_locked(x);
    sim_unlock();
    return rc;
}

SIM_BOTH(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec hGraphExec, CUstream hStream),
         upload(hGraphExec, hStream, pt))
