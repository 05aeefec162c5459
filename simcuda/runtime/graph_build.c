/*
 * Graphs that are built by hand: the runtime's descriptions of nodes turned into the driver's.
 * Memory nodes have one layout in both APIs.
 */
#include "rt.h"

#include <string.h>

#define NODE_PARAMS                                                                                \
    cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count

_Static_assert(sizeof(struct cudaMemAllocNodeParams) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) &&
                   offsetof(struct cudaMemAllocNodeParams, dptr) ==
                       offsetof(CUDA_MEM_ALLOC_NODE_PARAMS, dptr) &&
                   sizeof(struct cudaMemAllocNodeParamsV2) == sizeof(CUDA_MEM_ALLOC_NODE_PARAMS),
               "allocation nodes");
_Static_assert(sizeof(struct cudaMemsetParams) == sizeof(CUDA_MEMSET_NODE_PARAMS), "set nodes");
_Static_assert(sizeof(struct cudaHostNodeParams) == sizeof(CUDA_HOST_NODE_PARAMS), "host nodes");

static cudaError_t add_alloc(NODE_PARAMS, void *params)
{
    RT_NEED(node);
    RT_NEED(params);
    return rt_err(rt_legacy.cuGraphAddMemAllocNode(node, graph, dependencies, count, params));
}

RT_FN(cudaGraphAddMemAllocNode, (NODE_PARAMS, struct cudaMemAllocNodeParams *params), node, graph,
      dependencies, count, params)
{
    return add_alloc(node, graph, dependencies, count, params);
}

RT_FN(cudaGraphAddMemFreeNode, (NODE_PARAMS, void *ptr), node, graph, dependencies, count, ptr)
{
    RT_NEED(node);
    return rt_err(rt_legacy.cuGraphAddMemFreeNode(node, graph, dependencies, count, rt_dev(ptr)));
}

RT_FN(cudaGraphMemAllocNodeGetParams, (cudaGraphNode_t node, struct cudaMemAllocNodeParams *out),
      node, out)
{
    RT_NEED(out);
    return rt_err(
        rt_legacy.cuGraphMemAllocNodeGetParams(node, (CUDA_MEM_ALLOC_NODE_PARAMS *)(void *)out));
}

RT_FN(cudaGraphMemFreeNodeGetParams, (cudaGraphNode_t node, void *out), node, out)
{
    RT_NEED(out);
    CUdeviceptr p = 0;
    RT_TRY(rt_err(rt_legacy.cuGraphMemFreeNodeGetParams(node, &p)));
    memcpy(out, &p, sizeof p);
    return cudaSuccess;
}

RT_FN(cudaGraphAddEmptyNode, (NODE_PARAMS), node, graph, dependencies, count)
{
    RT_NEED(node);
    return rt_err(rt_legacy.cuGraphAddEmptyNode(node, graph, dependencies, count));
}

/* --- work ------------------------------------------------------------------------------------- */

static CUcontext current(void)
{
    CUcontext ctx = NULL;
    (void)rt_legacy.cuCtxGetCurrent(&ctx);
    return ctx;
}

/* The later form of the parameters begins as the first does. */
static cudaError_t add_kernel(NODE_PARAMS, const struct cudaKernelNodeParams *p)
{
    RT_NEED(node);
    RT_NEED(p);
    CUkernel kernel;
    RT_TRY(rt_kernel(p->func, &kernel));
    CUDA_KERNEL_NODE_PARAMS d;
    memset(&d, 0, sizeof d);
    d.kern = kernel;
    d.gridDimX = p->gridDim.x;
    d.gridDimY = p->gridDim.y;
    d.gridDimZ = p->gridDim.z;
    d.blockDimX = p->blockDim.x;
    d.blockDimY = p->blockDim.y;
    d.blockDimZ = p->blockDim.z;
    d.sharedMemBytes = p->sharedMemBytes;
    d.kernelParams = p->kernelParams;
    d.extra = p->extra;
    return rt_err(rt_legacy.cuGraphAddKernelNode(node, graph, dependencies, count, &d));
}

RT_FN(cudaGraphAddKernelNode, (NODE_PARAMS, const struct cudaKernelNodeParams *p), node, graph,
      dependencies, count, p)
{
    return add_kernel(node, graph, dependencies, count, p);
}

static cudaError_t add_set(NODE_PARAMS, const void *p)
{
    RT_NEED(node);
    RT_NEED(p);
    return rt_err(rt_legacy.cuGraphAddMemsetNode(node, graph, dependencies, count, p, current()));
}

RT_FN(cudaGraphAddMemsetNode, (NODE_PARAMS, const struct cudaMemsetParams *p), node, graph,
      dependencies, count, p)
{
    return add_set(node, graph, dependencies, count, p);
}

static cudaError_t add_host(NODE_PARAMS, const void *p)
{
    RT_NEED(node);
    RT_NEED(p);
    return rt_err(rt_legacy.cuGraphAddHostNode(node, graph, dependencies, count, p));
}

RT_FN(cudaGraphAddHostNode, (NODE_PARAMS, const struct cudaHostNodeParams *p), node, graph,
      dependencies, count, p)
{
    return add_host(node, graph, dependencies, count, p);
}

static cudaError_t add_copy(NODE_PARAMS, const struct cudaMemcpy3DParms *p)
{
    RT_NEED(node);
    RT_NEED(p);
    CUDA_MEMCPY3D c;
    RT_TRY(rt_copy_3d(p, &c));
    return rt_err(rt_legacy.cuGraphAddMemcpyNode(node, graph, dependencies, count, &c, current()));
}

RT_FN(cudaGraphAddMemcpyNode, (NODE_PARAMS, const struct cudaMemcpy3DParms *p), node, graph,
      dependencies, count, p)
{
    return add_copy(node, graph, dependencies, count, p);
}

RT_FN(cudaGraphAddMemcpyNode1D,
      (NODE_PARAMS, void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind), node,
      graph, dependencies, count, dst, src, bytes, kind)
{
    struct cudaMemcpy3DParms p;
    memset(&p, 0, sizeof p);
    p.dstPtr = (struct cudaPitchedPtr){dst, bytes, bytes, 1};
    p.srcPtr = (struct cudaPitchedPtr){(void *)(uintptr_t)src, bytes, bytes, 1};
    p.extent = (struct cudaExtent){bytes, 1, 1};
    p.kind = kind;
    return add_copy(node, graph, dependencies, count, &p);
}

/* Data of edges is for kernels. */
RT_FN(cudaGraphAddNode,
      (cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
       const cudaGraphEdgeData *edges, size_t count, struct cudaGraphNodeParams *p),
      node, graph, dependencies, edges, count, p)
{
    (void)edges;
    RT_NEED(p);
    switch (p->type) {
    case cudaGraphNodeTypeKernel:
        return add_kernel(node, graph, dependencies, count,
                          (const struct cudaKernelNodeParams *)(const void *)&p->kernel);
    case cudaGraphNodeTypeMemcpy:
        return add_copy(node, graph, dependencies, count, &p->memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
        return add_set(node, graph, dependencies, count, &p->memset);
    case cudaGraphNodeTypeHost:
        return add_host(node, graph, dependencies, count, &p->host);
    case cudaGraphNodeTypeEmpty:
        return cudaGraphAddEmptyNode_body(node, graph, dependencies, count);
    case cudaGraphNodeTypeMemAlloc:
        return add_alloc(node, graph, dependencies, count, &p->alloc);
    case cudaGraphNodeTypeMemFree:
        return cudaGraphAddMemFreeNode_body(node, graph, dependencies, count, p->free.dptr);
    default:
        return cudaErrorNotSupported;
    }
}
