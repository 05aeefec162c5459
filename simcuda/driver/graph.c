/* Graphs and their nodes. A node is an operation as it came to the capturing stream, with the
 * nodes that it depends on. */
#include "graph_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "simcuda: no memory for a graph\n");
        abort();
    }
    return p;
}

/* --- frontiers ---------------------------------------------------------------------------------*/
static void frontier_add(sim_frontier_t *to, uint32_t node)
{
    for (size_t i = 0; i < to->n; i++) {
        if (to->at[i] == node) {
            return;
        }
    }
    if (to->n == to->cap) {
        to->cap = to->cap ? to->cap * 2 : 2;
        to->at = must(realloc(to->at, to->cap * sizeof(*to->at)));
    }
    to->at[to->n++] = node;
}

void sim_frontier_join(sim_frontier_t *to, const sim_frontier_t *from)
{
    for (size_t i = 0; i < from->n; i++) {
        frontier_add(to, from->at[i]);
    }
}

/* --- nodes -------------------------------------------------------------------------------------*/
CUgraph sim_graph_make(void)
{
    CUgraph g = calloc(1, sizeof(*g));
    if (g) {
        g->magic = SIM_GRAPH_MAGIC;
        g->refs = 1;
    }
    return g;
}

size_t sim_graph_count(CUgraph g)
{
    return g->count;
}

CUgraphNode sim_graph_node(CUgraph g, size_t i)
{
    return g->nodes[i];
}

static CUgraphNodeType type_of(const sim_op_t *op)
{
    switch (op->kind) {
    case SIM_OP_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SIM_OP_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SIM_OP_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case SIM_OP_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    case SIM_OP_ALLOC:
        return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case SIM_OP_FREE:
        return CU_GRAPH_NODE_TYPE_MEM_FREE;
    case SIM_OP_VALUE:
    case SIM_OP_WAIT_VALUE:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

bool sim_graph_allocates(CUgraph g, CUdeviceptr p)
{
    for (size_t i = 0; i < g->count; i++) {
        if (g->nodes[i]->op.kind == SIM_OP_ALLOC && g->nodes[i]->op.u.alloc.at == p) {
            return true;
        }
    }
    return false;
}

/* cuda.h, cuGraphAddMemFreeNode: INVALID_VALUE for "an allocation twice in the same graph", "an
 * address that was not returned by an allocation node", "an invalid address". */
static CUresult free_node(CUgraph g, CUdeviceptr p)
{
    sim_device_t *d = sim_device_of(p);
    for (size_t i = 0; i < g->count; i++) {
        if (g->nodes[i]->op.kind == SIM_OP_FREE && g->nodes[i]->op.u.free_ptr == p) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return d && sim_heap_graph_change(d, p, 0,
                                      sim_graph_allocates(g, p) ? SIM_GRAPH_FREE_NODE_OWN
                                                                : SIM_GRAPH_FREE_NODE_OTHER)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_graph_add(CUgraph g, const sim_op_t *op, sim_frontier_t *after)
{
    if (op->kind == SIM_OP_FREE) {
        SIM_TRY(free_node(g, op->u.free_ptr));
    }
    if (g->count == g->cap) {
        g->cap = g->cap ? g->cap * 2 : 16;
        g->nodes = must(realloc(g->nodes, g->cap * sizeof(CUgraphNode)));
    }
    CUgraphNode node = must(calloc(1, sizeof(*node)));
    node->magic = SIM_NODE_MAGIC;
    node->type = type_of(op);
    node->op = *op;
    sim_frontier_join(&node->after, after);
    after->n = 0;
    frontier_add(after, (uint32_t)g->count);
    g->nodes[g->count++] = node;
    g->memory = g->memory || op->kind == SIM_OP_ALLOC || op->kind == SIM_OP_FREE;
    return CUDA_SUCCESS;
}

CUresult sim_graph_add_handles(CUgraph g, const CUgraphNode *nodes, size_t n, sim_frontier_t *to)
{
    for (size_t i = 0; i < n; i++) {
        size_t at = 0;
        while (at < g->count && g->nodes[at] != nodes[i]) {
            at++;
        }
        if (at == g->count) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        frontier_add(to, (uint32_t)at);
    }
    return CUDA_SUCCESS;
}

/* Whether everything from `first` on comes before the end: dependencies point backwards, so one
 * pass from the last node to the first sees them all. */
bool sim_graph_joined(CUgraph g, size_t first, const sim_frontier_t *end)
{
    bool all = true, *reached = must(calloc(g->count + 1, sizeof(*reached)));
    for (size_t i = 0; i < end->n; i++) {
        reached[end->at[i]] = true;
    }
    for (size_t i = first; i < g->count; i++) {
        reached[i] = reached[i] || g->nodes[i]->let_go;
    }
    for (size_t i = g->count; i-- > first;) {
        sim_frontier_t *after = &g->nodes[i]->after;
        for (size_t k = 0; reached[i] && k < after->n; k++) {
            reached[after->at[k]] = true;
        }
        all = all && reached[i];
    }
    free(reached);
    return all;
}

/* cuda.h, cuStreamUpdateCaptureDependencies: "Nodes that are removed from the dependency set ... do
 * not result in CUDA_ERROR_STREAM_CAPTURE_UNJOINED". */
void sim_graph_let_go(CUgraph g, const sim_frontier_t *of)
{
    for (size_t i = 0; i < of->n; i++) {
        g->nodes[of->at[i]]->let_go = true;
    }
}

void sim_graph_cut(CUgraph g, size_t count)
{
    while (g->count > count) {
        CUgraphNode node = g->nodes[--g->count];
        if (node->op.kind == SIM_OP_ALLOC) {
            sim_heap_graph_change(sim_device_of(node->op.u.alloc.at), node->op.u.alloc.at,
                                  node->op.u.alloc.id, SIM_GRAPH_DISOWNED);
        }
        node->magic = 0;
        free(node->after.at);
        free(node->descs);
        free(node);
    }
}

void sim_graph_unref(CUgraph g)
{
    if (--g->refs == 0) {
        sim_graph_cut(g, 0);
        free(g->nodes);
        free(g);
    }
}

/* --- the calls ---------------------------------------------------------------------------------*/
SIM_API CUresult cuGraphCreate(CUgraph *phGraph, unsigned int flags)
{
    SIM_ENTER(cuGraphCreate);
    if (!phGraph || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = sim_graph_make();
    return *phGraph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* An executable graph keeps the nodes. */
SIM_API CUresult cuGraphDestroy(CUgraph hGraph)
{
    SIM_ENTER(cuGraphDestroy);
    SIM_TRY(sim_graph_check(hGraph));
    sim_lock();
    hGraph->magic = 0;
    sim_graph_unref(hGraph);
    sim_unlock();
    return CUDA_SUCCESS;
}

/* cuda.h, cuGraphGetNodes: "If nodes is NULL ... the number of nodes"; entries beyond are NULL. */
static CUresult list(CUgraph g, CUgraphNode *nodes, size_t *count, bool roots)
{
    SIM_TRY(sim_graph_check(g));
    if (!count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t n = 0;
    sim_lock();
    for (size_t i = 0; i < g->count; i++) {
        if (roots && g->nodes[i]->after.n) {
            continue;
        }
        if (nodes && n < *count) {
            nodes[n] = g->nodes[i];
        }
        n++;
    }
    sim_unlock();
    for (size_t i = n; nodes && i < *count; i++) {
        nodes[i] = NULL;
    }
    *count = nodes && n > *count ? *count : n;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes)
{
    SIM_ENTER(cuGraphGetNodes);
    return list(hGraph, nodes, numNodes, false);
}

SIM_API CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes)
{
    SIM_ENTER(cuGraphGetRootNodes);
    return list(hGraph, rootNodes, numRootNodes, true);
}

SIM_API CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType *type)
{
    SIM_ENTER(cuGraphNodeGetType);
    if (!hNode || hNode->magic != SIM_NODE_MAGIC || !type) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *type = hNode->type;
    return CUDA_SUCCESS;
}
