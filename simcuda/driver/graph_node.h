/* What graph.c and graph_exec.c share. */
#ifndef SIMCUDA_GRAPH_NODE_H
#define SIMCUDA_GRAPH_NODE_H

#include "sim.h"

enum { SIM_GRAPH_MAGIC = 0x47524150, SIM_NODE_MAGIC = 0x4e4f4445 };

struct CUgraphNode_st {
    uint32_t magic;
    CUgraphNodeType type;
    sim_op_t op;
    sim_frontier_t after;
    bool let_go;            /* a capture may end without having joined it */
    CUmemAccessDesc *descs; /* of an allocation node */
    size_t desc_count;
};

struct CUgraph_st { /* under the engine lock */
    uint32_t magic;
    unsigned refs; /* its handle, and executable graphs */
    size_t count, cap;
    CUgraphNode *nodes;
    bool memory; /* has allocation or free nodes */
    unsigned execs;
};

static inline CUresult sim_graph_check(CUgraph g)
{
    return g && g->magic == SIM_GRAPH_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_graph_allocates(CUgraph g, CUdeviceptr p);

#endif
