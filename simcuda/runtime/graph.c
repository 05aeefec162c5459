/*
 * Stream capture, and as much of graphs as a captured one needs: instantiate, launch, look at the
 * nodes, destroy. Building graphs by hand is in graph_build.c, changing them is not modelled
 * (stubs.c).
 */
#include "rt.h"

RT_TWIN(cudaStreamBeginCapture, _ptsz, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
        stream, mode)
{
    return rt_err(drv->cuStreamBeginCapture(stream, (CUstreamCaptureMode)(int)mode));
}

RT_TWIN(cudaStreamBeginCaptureToGraph, _ptsz,
        (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *dependencies,
         const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode),
        stream, graph, dependencies, edges, count, mode)
{
    return rt_err(drv->cuStreamBeginCaptureToGraph(stream, graph, dependencies,
                                                   (const CUgraphEdgeData *)edges, count,
                                                   (CUstreamCaptureMode)(int)mode));
}

RT_TWIN(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t *graph), stream, graph)
{
    RT_NEED(graph);
    return rt_err(drv->cuStreamEndCapture(stream, graph));
}

RT_TWIN(cudaStreamIsCapturing, _ptsz, (cudaStream_t stream, enum cudaStreamCaptureStatus *status),
        stream, status)
{
    RT_NEED(status);
    CUstreamCaptureStatus s = CU_STREAM_CAPTURE_STATUS_NONE;
    RT_TRY(rt_err(drv->cuStreamIsCapturing(stream, &s)));
    *status = (enum cudaStreamCaptureStatus)(int)s;
    return cudaSuccess;
}

RT_TWIN(cudaStreamGetCaptureInfo, _ptsz,
        (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
         cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
         size_t *count),
        stream, status, id, graph, dependencies, edges, count)
{
    RT_NEED(status);
    CUstreamCaptureStatus s = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t driver_id = 0;
    RT_TRY(
        rt_err(drv->cuStreamGetCaptureInfo(stream, &s, id != NULL ? &driver_id : NULL, graph,
                                           dependencies, (const CUgraphEdgeData **)edges, count)));
    *status = (enum cudaStreamCaptureStatus)(int)s;
    if (id != NULL)
        *id = driver_id;
    return cudaSuccess;
}

RT_TWIN(cudaStreamUpdateCaptureDependencies, _ptsz,
        (cudaStream_t stream, cudaGraphNode_t *dependencies, const cudaGraphEdgeData *edges,
         size_t count, unsigned int flags),
        stream, dependencies, edges, count, flags)
{
    return rt_err(drv->cuStreamUpdateCaptureDependencies(
        stream, dependencies, (const CUgraphEdgeData *)edges, count, flags));
}

RT_FN(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode), mode)
{
    RT_NEED(mode);
    CUstreamCaptureMode m = (CUstreamCaptureMode)(int)*mode;
    RT_TRY(rt_err(rt_legacy.cuThreadExchangeStreamCaptureMode(&m)));
    *mode = (enum cudaStreamCaptureMode)(int)m;
    return cudaSuccess;
}

/* --- graphs ----------------------------------------------------------------------------------- */

RT_FN(cudaGraphCreate, (cudaGraph_t * graph, unsigned int flags), graph, flags)
{
    RT_NEED(graph);
    return rt_err(rt_legacy.cuGraphCreate(graph, flags));
}

RT_FN(cudaGraphDestroy, (cudaGraph_t graph), graph)
{
    return rt_err(rt_legacy.cuGraphDestroy(graph));
}

RT_FN(cudaGraphClone, (cudaGraph_t * clone, cudaGraph_t original), clone, original)
{
    RT_NEED(clone);
    return rt_err(rt_legacy.cuGraphClone(clone, original));
}

RT_FN(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count), graph, nodes,
      count)
{
    RT_NEED(count);
    return rt_err(rt_legacy.cuGraphGetNodes(graph, nodes, count));
}

RT_FN(cudaGraphGetRootNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count), graph,
      nodes, count)
{
    RT_NEED(count);
    return rt_err(rt_legacy.cuGraphGetRootNodes(graph, nodes, count));
}

RT_FN(cudaGraphNodeGetType, (cudaGraphNode_t node, enum cudaGraphNodeType *type), node, type)
{
    RT_NEED(type);
    CUgraphNodeType t = CU_GRAPH_NODE_TYPE_EMPTY;
    RT_TRY(rt_err(rt_legacy.cuGraphNodeGetType(node, &t)));
    *type = (enum cudaGraphNodeType)(int)t;
    return cudaSuccess;
}

RT_FN(cudaGraphInstantiate, (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
      exec, graph, flags)
{
    RT_NEED(exec);
    return rt_err(rt_legacy.cuGraphInstantiateWithFlags(exec, graph, flags));
}

RT_FN(cudaGraphInstantiateWithFlags,
      (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags), exec, graph, flags)
{
    RT_NEED(exec);
    return rt_err(rt_legacy.cuGraphInstantiateWithFlags(exec, graph, flags));
}

_Static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS),
               "instantiation parameters");

RT_TWIN(cudaGraphInstantiateWithParams, _ptsz,
        (cudaGraphExec_t * exec, cudaGraph_t graph, cudaGraphInstantiateParams *params), exec,
        graph, params)
{
    RT_NEED(exec);
    RT_NEED(params);
    return rt_err(
        drv->cuGraphInstantiateWithParams(exec, graph, (CUDA_GRAPH_INSTANTIATE_PARAMS *)params));
}

RT_TWIN(cudaGraphUpload, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream), exec, stream)
{
    return rt_err(drv->cuGraphUpload(exec, stream));
}

RT_TWIN(cudaGraphLaunch, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream), exec, stream)
{
    return rt_err(drv->cuGraphLaunch(exec, stream));
}

RT_FN(cudaGraphExecDestroy, (cudaGraphExec_t exec), exec)
{
    return rt_err(rt_legacy.cuGraphExecDestroy(exec));
}
