/* The driver API's hooks: graphs, watched for those that hold memory of a capture
 * (shim/cuda/graph_memory.h). Instantiation is in loading.c.
 *
 * The body of a conditional node that was captured into is known as a graph of its own, which is
 * never destroyed by name: its memory is kept for good. */
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/submissions.h"

CA_EXPORT CUresult CUDAAPI cuGraphClone(CUgraph *clone, CUgraph original)
{
    CA_REAL(cuGraphClone);
    CUresult code = real(clone, original);
    if (code == CUDA_SUCCESS)
        ca_graph_memory_derived(*clone, original);
    return code;
}

/* The graph is forgotten before the call: its handle may be used again at once. */

CA_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    CA_REAL(cuGraphDestroy);
    ca_graph_range_t range = ca_graph_memory_destroy(graph);
    CUresult code = real(graph);
    if (code != CUDA_SUCCESS)
        ca_graph_memory_restore(graph, range);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec graph)
{
    CA_REAL(cuGraphExecDestroy);
    ca_graph_range_t range = ca_graph_memory_destroy(graph);
    CUresult code = real(graph);
    if (code != CUDA_SUCCESS)
        ca_graph_memory_restore(graph, range);
    return code;
}

/* These calls copy what another graph holds. */

CA_EXPORT CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph,
                                                    const CUgraphNode *dependencies, size_t count,
                                                    CUgraph child)
{
    CA_REAL(cuGraphAddChildGraphNode);
    ca_graph_memory_derived(graph, child);
    return real(node, graph, dependencies, count, child);
}

CA_EXPORT CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                                              CUgraph child)
{
    CA_REAL(cuGraphExecChildGraphNodeSetParams);
    ca_graph_memory_derived(graph, child);
    return real(graph, node, child);
}

static void added(CUgraph graph, const CUgraphNodeParams *node)
{
#if CUDA_VERSION >= 12020
    if (node && node->type == CU_GRAPH_NODE_TYPE_GRAPH)
        ca_graph_memory_derived(graph, node->graph.graph);
    ca_graph_work(node ? ca_node_work((unsigned)node->type) : CA_WORK);
#else
    /* The first word is the type. */
    ca_graph_work(node ? ca_node_work(*(const unsigned *)(const void *)node) : CA_WORK);
    (void)graph;
#endif
}

CA_EXPORT CUresult CUDAAPI cuGraphAddNode(CUgraphNode *made, CUgraph graph,
                                          const CUgraphNode *dependencies, size_t count,
                                          CUgraphNodeParams *node)
{
    CA_REAL(cuGraphAddNode);
    added(graph, node);
    return real(made, graph, dependencies, count, node);
}

CA_EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *made, CUgraph graph,
                                             const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *edges, size_t count,
                                             CUgraphNodeParams *node)
{
    CA_REAL(cuGraphAddNode_v2);
    added(graph, node);
    ca_graph_work(ca_edge_work(edges, count));
    return real(made, graph, dependencies, edges, count, node);
}

CA_EXPORT CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec made, CUgraph graph, CUgraphNode *node,
                                             CUgraphExecUpdateResult *result)
{
    CA_REAL(cuGraphExecUpdate);
    ca_graph_memory_derived(made, graph);
    return real(made, graph, node, result);
}

CA_EXPORT CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec made, CUgraph graph,
                                                CUgraphExecUpdateResultInfo *result)
{
    CA_REAL(cuGraphExecUpdate_v2);
    ca_graph_memory_derived(made, graph);
    return real(made, graph, result);
}
