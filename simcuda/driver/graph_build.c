/* Graphs that are built by hand: nodes that copy, set, launch, call, allocate and free, and empty
 * ones. A node's dependencies are there before it, so nodes stand in an order that respects them
 * here too. */
#include "graph_node.h"

#include <stdlib.h>
#include <string.h>

/* "dependencies may not have any duplicate entries". */
static CUresult behind(CUgraph g, const CUgraphNode *nodes, size_t n, sim_frontier_t *after)
{
    if (n && !nodes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_graph_add_handles(g, nodes, n, after));
    return after->n == n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                    const sim_op_t *op)
{
    sim_frontier_t after = {0};
    SIM_TRY(sim_graph_check(g));
    if (!out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    CUresult rc = behind(g, nodes, n, &after);
    rc = rc == CUDA_SUCCESS ? sim_graph_add(g, op, &after) : rc;
    if (rc == CUDA_SUCCESS) {
        *out = sim_graph_node(g, sim_graph_count(g) - 1);
        (*out)->let_go = true; /* a capture into this graph need not join it [hw] */
    }
    sim_unlock();
    free(after.at);
    return rc;
}

/* --- memory ------------------------------------------------------------------------------------*/
static CUresult check_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS *p, sim_device_t **d)
{
    /* "handleTypes must be CU_MEM_HANDLE_TYPE_NONE. IPC is not supported"; descriptors "must not
     * exceed the number of GPUs". */
    if (!p || !p->bytesize || p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        p->accessDescCount > (size_t)sim_opt.devices || (p->accessDescCount && !p->accessDescs)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || sim_opt.no_mempools) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return sim_device_get(p->poolProps.location.id, d);
}

static CUresult add_alloc(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                          CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    CUcontext ctx;
    sim_device_t *d;
    SIM_TRY(sim_ctx_current(&ctx));
    SIM_TRY(sim_graph_check(g));
    SIM_TRY(check_alloc(p, &d));
    CUmemAccessDesc *descs = calloc(p->accessDescCount + 1, sizeof(*descs));
    if (!descs) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_op_t op = {.kind = SIM_OP_ALLOC, .u.alloc.bytes = p->bytesize};
    CUresult rc = sim_heap_graph_reserve(d, ctx, p->bytesize, &op.u.alloc.at, &op.u.alloc.id);
    if (rc == CUDA_SUCCESS) {
        rc = add(out, g, nodes, n, &op);
        if (rc != CUDA_SUCCESS) {
            sim_heap_graph_change(d, op.u.alloc.at, op.u.alloc.id, SIM_GRAPH_DISOWNED);
        }
    }
    if (rc != CUDA_SUCCESS) {
        free(descs);
        return rc;
    }
    if (p->accessDescCount) {
        memcpy(descs, p->accessDescs, p->accessDescCount * sizeof(*descs));
    }
    (*out)->descs = descs;
    (*out)->desc_count = p->accessDescCount;
    p->dptr = op.u.alloc.at;
    return CUDA_SUCCESS;
}

static CUresult add_free(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                         CUdeviceptr p)
{
    sim_op_t op = {.kind = SIM_OP_FREE, .u.free_ptr = p};
    return add(out, g, nodes, n, &op);
}

SIM_API CUresult cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddMemAllocNode);
    return add_alloc(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

SIM_API CUresult cuGraphAddMemFreeNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUdeviceptr dptr)
{
    SIM_ENTER(cuGraphAddMemFreeNode);
    return add_free(phGraphNode, hGraph, dependencies, numDependencies, dptr);
}

static CUresult node_of(CUgraphNode n, enum sim_op_kind kind)
{
    return n && n->magic == SIM_NODE_MAGIC && n->op.kind == kind ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;
}

/* "The poolProps and accessDescs returned in params_out, are owned by the node." */
SIM_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode,
                                              CUDA_MEM_ALLOC_NODE_PARAMS *params_out)
{
    SIM_ENTER(cuGraphMemAllocNodeGetParams);
    SIM_TRY(node_of(hNode, SIM_OP_ALLOC));
    if (!params_out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(params_out, 0, sizeof(*params_out));
    params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params_out->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params_out->poolProps.location.id = sim_device_of(hNode->op.u.alloc.at)->ordinal;
    params_out->accessDescs = hNode->desc_count ? hNode->descs : NULL;
    params_out->accessDescCount = hNode->desc_count;
    params_out->bytesize = hNode->op.u.alloc.bytes;
    params_out->dptr = hNode->op.u.alloc.at;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr *dptr_out)
{
    SIM_ENTER(cuGraphMemFreeNodeGetParams);
    SIM_TRY(node_of(hNode, SIM_OP_FREE));
    if (!dptr_out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *dptr_out = hNode->op.u.free_ptr;
    return CUDA_SUCCESS;
}

/* What no graph uses went back at once. */
SIM_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGraphMemTrim);
    return sim_device_get(device, &d);
}

/* --- work --------------------------------------------------------------------------------------*/
static CUresult current_or(CUcontext ctx)
{
    return ctx ? sim_ctx_check(ctx) : sim_ctx_current(&ctx);
}

static CUresult add_kernel(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                           const CUDA_KERNEL_NODE_PARAMS *p)
{
    sim_op_t op;
    SIM_TRY(sim_kernel_op(p, &op));
    return add(out, g, nodes, n, &op);
}

static CUresult add_kernel_v1(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUDA_KERNEL_NODE_PARAMS longer = {0};
    if (!p) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&longer, p, sizeof(*p)); /* the later form begins as this one */
    return add_kernel(out, g, nodes, n, &longer);
}

static CUresult add_copy(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                         const CUDA_MEMCPY3D *p, CUcontext ctx)
{
    sim_op_t op;
    SIM_TRY(current_or(ctx));
    SIM_TRY(sim_copy_op(p, &op));
    return add(out, g, nodes, n, &op);
}

static CUresult add_set(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                        const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
    sim_op_t op;
    SIM_TRY(current_or(ctx));
    SIM_TRY(sim_set_op(p, &op));
    return add(out, g, nodes, n, &op);
}

static CUresult add_host(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                         const CUDA_HOST_NODE_PARAMS *p)
{
    if (!p || !p->fn) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_op_t op = {.kind = SIM_OP_HOST, .u.host = {.fn = p->fn, .data = p->userData}};
    return add(out, g, nodes, n, &op);
}

static CUresult add_empty(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n)
{
    sim_op_t op = {.kind = SIM_OP_WAIT};
    return add(out, g, nodes, n, &op);
}

SIM_API CUresult cuGraphAddKernelNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    SIM_ENTER(cuGraphAddKernelNode);
    return add_kernel_v1(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

SIM_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                         const CUgraphNode *dependencies, size_t numDependencies,
                                         const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddKernelNode_v2);
    return add_kernel(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

SIM_API CUresult cuGraphAddMemcpyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    SIM_ENTER(cuGraphAddMemcpyNode);
    return add_copy(phGraphNode, hGraph, dependencies, numDependencies, copyParams, ctx);
}

SIM_API CUresult cuGraphAddMemsetNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                      const CUgraphNode *dependencies, size_t numDependencies,
                                      const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    SIM_ENTER(cuGraphAddMemsetNode);
    return add_set(phGraphNode, hGraph, dependencies, numDependencies, memsetParams, ctx);
}

SIM_API CUresult cuGraphAddHostNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    const CUDA_HOST_NODE_PARAMS *nodeParams)
{
    SIM_ENTER(cuGraphAddHostNode);
    return add_host(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

SIM_API CUresult cuGraphAddEmptyNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                     const CUgraphNode *dependencies, size_t numDependencies)
{
    SIM_ENTER(cuGraphAddEmptyNode);
    return add_empty(phGraphNode, hGraph, dependencies, numDependencies);
}

/* --- one call for every sort -------------------------------------------------------------------*/
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) &&
                   sizeof(CUDA_KERNEL_NODE_PARAMS_v3) == sizeof(CUDA_KERNEL_NODE_PARAMS) &&
                   sizeof(CUDA_HOST_NODE_PARAMS_v2) == sizeof(CUDA_HOST_NODE_PARAMS),
               "one layout under two names");

static CUresult add_any(CUgraphNode *out, CUgraph g, const CUgraphNode *nodes, size_t n,
                        CUgraphNodeParams *p)
{
    if (!p) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(out, g, nodes, n, (const CUDA_KERNEL_NODE_PARAMS *)&p->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return add_copy(out, g, nodes, n, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: /* the context is what the later form has more */
        return add_set(out, g, nodes, n, (const CUDA_MEMSET_NODE_PARAMS *)&p->memset,
                       p->memset.ctx);
    case CU_GRAPH_NODE_TYPE_HOST:
        return add_host(out, g, nodes, n, (const CUDA_HOST_NODE_PARAMS *)&p->host);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return add_empty(out, g, nodes, n);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return add_alloc(out, g, nodes, n, (CUDA_MEM_ALLOC_NODE_PARAMS *)&p->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return add_free(out, g, nodes, n, p->free.dptr);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

SIM_API CUresult cuGraphAddNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                const CUgraphNode *dependencies, size_t numDependencies,
                                CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode);
    return add_any(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

/* Data of edges is for kernels, which do nothing here. */
SIM_API CUresult cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies,
                                   const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                   CUgraphNodeParams *nodeParams)
{
    SIM_ENTER(cuGraphAddNode_v2);
    (void)dependencyData;
    return add_any(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}
