/* Graphs: what captures make (graph.c) and what is launched (graph_exec.c). Functions need the
 * engine lock.
 *
 * Nodes stand in the order of their capture, which respects every dependency, and a launch runs
 * them one after another in the launching stream: independent nodes are not run at the same time,
 * and the race check treats them as ordered.
 *
 * Memory of an allocation node (CUDA programming guide, "Graph Memory Nodes") has its address from
 * the capture on, and device memory from the first launch or upload of an executable graph until
 * that is destroyed. It can be accessed from an allocation node's launch until the free that
 * follows it has run. A count says how often it is live, because the next launch may be submitted
 * before this one's free has run. */
#ifndef SIMCUDA_GRAPH_H
#define SIMCUDA_GRAPH_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_op;

typedef struct sim_graph_memory {
    uint32_t live;
    bool owned;                /* the node exists */
    bool wanted;               /* an executable graph has launched or uploaded it */
    bool backed;               /* counted as device memory */
    bool unfreed;              /* allocated by a launch, and no free was submitted */
    bool own_free, other_free; /* a free node: in its own graph, in another */
} sim_graph_memory_t;

typedef enum sim_graph_change {
    SIM_GRAPH_IS_THERE,
    SIM_GRAPH_IS_UNFREED,
    SIM_GRAPH_FREE_NODE_OWN,
    SIM_GRAPH_FREE_NODE_OTHER,
    SIM_GRAPH_ALLOCATED,  /* an allocation node is launched */
    SIM_GRAPH_FREE_BEGUN, /* a free node is */
    SIM_GRAPH_DISOWNED,   /* the node is destroyed; what lives, lives on */
} sim_graph_change_t;

typedef struct sim_frontier { /* nodes, by their place in the graph */
    uint32_t *at;
    size_t n, cap;
} sim_frontier_t;
void sim_frontier_join(sim_frontier_t *to, const sim_frontier_t *from);

/* All of these want the engine lock. */
CUgraph sim_graph_make(void);
size_t sim_graph_count(CUgraph g);
CUgraphNode sim_graph_node(CUgraph g, size_t i);
/* Behind the nodes of `after`, of which it takes the place. */
CUresult sim_graph_add(CUgraph g, const struct sim_op *op, sim_frontier_t *after);
CUresult sim_graph_add_handles(CUgraph g, const CUgraphNode *nodes, size_t n, sim_frontier_t *to);
bool sim_graph_joined(CUgraph g, size_t first, const sim_frontier_t *end); /* no open branch */
void sim_graph_let_go(CUgraph g, const sim_frontier_t *of);                /* need not be joined */
void sim_graph_cut(CUgraph g, size_t count); /* drops the nodes behind */
void sim_graph_unref(CUgraph g);

#endif
