/* Graphs: captured, instantiated, launched; their memory. See selftest.c. */
#include "selftest.h"

#include <string.h>

enum { BYTES = 4096 };

static CUstream a, b; /* non-blocking */
static CUevent e, f;
static CUdeviceptr p, q;
static unsigned char *seen; /* pinned */

static void start(void)
{
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&f, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&p, BYTES));
    OK(cuMemAlloc(&q, BYTES));
    OK(cuMemAllocHost((void **)&seen, BYTES));
    OK(cuMemsetD8(p, 0, BYTES));
    OK(cuMemsetD8(q, 0, BYTES));
    OK(cuCtxSynchronize());
    memset(seen, 0, BYTES);
}

static void begin(void)
{
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUgraphExec end(unsigned long long flags)
{
    CUgraph graph = NULL;
    CUgraphExec made = NULL;
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiate(&made, graph, flags));
    OK(cuGraphDestroy(graph)); /* the executable graph lives on */
    return made;
}

static void run(CUgraphExec x)
{
    OK(cuGraphLaunch(x, a));
    OK(cuStreamSynchronize(a));
}

static void count_fn(void *arg)
{
    ++*(int *)arg;
}

void a_graph_runs_as_often_as_it_is_launched(void)
{
    int calls = 0;
    CUgraph graph = NULL;
    CUgraphExec x = NULL, other = NULL;
    CUgraphNode node[4];
    CUgraphNodeType type;
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    size_t count = 0;
    start();
    begin();
    OK(cuMemsetD8Async(p, 7, BYTES, a));
    OK(cuMemcpyDtoHAsync(seen, p, BYTES, a));
    OK(cuLaunchHostFunc(a, count_fn, &calls));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 3 && calls == 0 && seen[0] == 0);
    count = 4;
    OK(cuGraphGetNodes(graph, node, &count));
    CHECK(count == 3 && node[3] == NULL);
    const CUgraphNodeType types[] = {CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_MEMCPY,
                                     CU_GRAPH_NODE_TYPE_HOST};
    for (size_t i = 0; i < 3; i++) {
        OK(cuGraphNodeGetType(node[i], &type));
        CHECK(type == types[i]);
    }
    OK(cuGraphGetRootNodes(graph, NULL, &count));
    CHECK(count == 1);
    OK(cuGraphInstantiate(&x, graph, 0));
    OK(cuGraphInstantiateWithParams(&other, graph, &params));
    CHECK(params.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS && other != x);
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&x, graph, 1 << 20));
    OK(cuGraphUpload(x, a));
    for (int i = 1; i <= 3; i++) {
        OK(cuMemsetD8Async(p, 0, BYTES, a));
        run(x);
        CHECK(calls == i && seen[0] == 7 && seen[BYTES - 1] == 7);
    }
    OK(cuGraphLaunch(other, b));
    OK(cuGraphExecDestroy(other)); /* "not terminated" */
    OK(cuStreamSynchronize(b));
    CHECK(calls == 4);
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(graph));
}

void branches_of_a_graph_keep_their_order(void)
{
    CUgraph graph = NULL;
    size_t count = 0;
    start();
    begin();
    OK(cuMemsetD8Async(p, 1, BYTES, a));
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemcpyDtoDAsync(q, p, BYTES, b));
    OK(cuEventRecord(f, b));
    OK(cuStreamWaitEvent(a, f, 0));
    OK(cuMemsetD8Async(p, 2, BYTES, a));
    CUgraphExec x = end(0);
    run(x);
    OK(cuMemcpyDtoH(seen, q, BYTES));
    CHECK(seen[0] == 1);
    OK(cuMemcpyDtoH(seen, p, BYTES));
    CHECK(seen[0] == 2);
    OK(cuGraphExecDestroy(x));
    begin(); /* two roots */
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemsetD8Async(p, 1, BYTES, a));
    OK(cuMemsetD8Async(q, 1, BYTES, b));
    OK(cuEventRecord(f, b));
    OK(cuStreamWaitEvent(a, f, 0));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphGetRootNodes(graph, NULL, &count));
    CHECK(count == 2);
    OK(cuGraphDestroy(graph));
    begin(); /* what b does is never joined */
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuMemsetD8Async(q, 1, BYTES, b));
    IS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &graph));
    CHECK(graph == NULL);
    OK(cuMemsetD8Async(q, 1, BYTES, b)); /* it is an ordinary stream again */
    OK(cuStreamSynchronize(b));
}

/* Work of a stream that is destroyed by the end counts where it was joined, and only there. */
void a_joined_stream_may_go_before_the_capture_ends(void)
{
    CUgraph graph = NULL;
    start();
    for (int joined = 0; joined < 2; joined++) {
        begin();
        OK(cuEventRecord(e, a));
        OK(cuStreamWaitEvent(b, e, 0));
        OK(cuMemsetD8Async(q, 5, BYTES, b));
        OK(cuEventRecord(f, b));
        if (joined)
            OK(cuStreamWaitEvent(a, f, 0));
        OK(cuStreamDestroy(b));
        IS(joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
           cuStreamEndCapture(a, &graph));
        OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    }
    CUgraphExec x;
    OK(cuGraphInstantiate(&x, graph, 0));
    run(x);
    OK(cuMemcpyDtoH(seen, q, BYTES));
    CHECK(seen[0] == 5 && seen[BYTES - 1] == 5);
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(graph));
}

void copies_of_pageable_memory_are_nodes(void)
{
    static unsigned char from[BYTES], to[BYTES];
    start();
    begin();
    OK(cuMemcpyHtoDAsync(p, from, BYTES, a));
    OK(cuMemcpyDtoHAsync(to, p, BYTES, a));
    CUgraphExec x = end(0);
    memset(from, 9, BYTES);
    CHECK(to[0] == 0);
    run(x);
    CHECK(to[0] == 9 && to[BYTES - 1] == 9);
    OK(cuGraphExecDestroy(x));
}

void launches_of_one_graph_follow_each_other(void)
{
    int calls = 0;
    gate_t gate = GATE;
    start();
    begin();
    OK(cuLaunchHostFunc(a, count_fn, &calls));
    CUgraphExec x = end(0);
    gate_hold(&gate, a);
    OK(cuGraphLaunch(x, a));
    OK(cuGraphLaunch(x, b));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    CHECK(calls == 0);
    gate_open(&gate);
    OK(cuStreamSynchronize(b));
    CHECK(calls == 2);
    OK(cuGraphExecDestroy(x));
}

void memory_of_a_graph_lives_between_its_nodes(void)
{
    CUgraph graph = NULL;
    CUgraphExec x = NULL, second = NULL;
    CUdeviceptr inside, kept;
    start();
    begin();
    OK(cuMemAllocAsync(&inside, BYTES, a));
    OK(cuMemsetD8Async(inside, 9, BYTES, a));
    OK(cuMemcpyDtoHAsync(seen, inside, BYTES, a));
    OK(cuMemFreeAsync(inside, a));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(inside, a)); /* twice */
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, a));      /* no node's */
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiate(&x, graph, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&second, graph, 0)); /* one at a time */
    OK(cuGraphLaunch(x, a));
    OK(cuGraphLaunch(x, a)); /* before the first has freed */
    OK(cuStreamSynchronize(a));
    CHECK(seen[BYTES - 1] == 9);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(inside)); /* "cannot be freed outside" */
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(graph));
    begin();
    OK(cuMemAllocAsync(&kept, BYTES, a));
    OK(cuMemsetD8Async(kept, 5, BYTES, a));
    x = end(0);
    run(x);
    OK(cuMemcpyDtoH(seen, kept, BYTES)); /* it lives on */
    CHECK(seen[0] == 5);
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(x, a)); /* unfreed */
    OK(cuMemFreeAsync(kept, a));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(kept, a));
    run(x);
    OK(cuMemFree(kept));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(kept));
    run(x);
    OK(cuGraphExecDestroy(x)); /* "does not automatically free any live graph-allocated memory" */
    OK(cuMemcpyDtoH(seen, kept, BYTES));
    OK(cuMemFree(kept));
}

void memory_of_a_graph_is_freed_by_others(void)
{
    CUdeviceptr kept;
    start();
    begin();
    OK(cuMemAllocAsync(&kept, BYTES, a));
    CUgraphExec x = end(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    run(x);
    run(x); /* frees what the first left */
    begin();
    OK(cuMemFreeAsync(kept, a));
    CUgraphExec frees = end(0);
    run(frees);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(kept));
    run(x);
    OK(cuMemFree(kept));
    OK(cuGraphExecDestroy(frees));
    OK(cuGraphExecDestroy(x));
}

static size_t graphs_have(void)
{
    cuuint64_t reserved, used;
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    CHECK(used == reserved);
    return reserved;
}

void memory_of_a_graph_is_there_from_its_first_launch_or_upload_on(void) /* SIM: memory:64M */
{
    CUgraph graph = NULL;
    CUgraphExec x = NULL;
    CUDA_GRAPH_INSTANTIATE_PARAMS upload = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
    CUdeviceptr inside, other;
    start();
    begin();
    OK(cuMemAllocAsync(&inside, 48 << 20, a));
    OK(cuMemFreeAsync(inside, a));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuMemAlloc(&other, 48 << 20));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuGraphInstantiateWithParams(&x, graph, &upload));
    OK(cuGraphInstantiate(&x, graph, 0));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuGraphUpload(x, a));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(x, a));
    OK(cuMemFree(other));
    CHECK(graphs_have() == 0);
    run(x);
    CHECK(graphs_have() == 48 << 20);
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&other, 48 << 20));
    run(x);
    OK(cuGraphExecDestroy(x));
    CHECK(graphs_have() == 0);
    OK(cuMemAlloc(&other, 48 << 20));
    OK(cuMemFree(other));
    OK(cuGraphInstantiate(&x, graph, 0));
    OK(cuMemAlloc(&other, 48 << 20)); /* nothing is mapped yet */
    OK(cuMemFree(other));
    OK(cuGraphUpload(x, a));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&other, 48 << 20));
    OK(cuGraphExecDestroy(x));
    OK(cuGraphInstantiateWithParams(&x, graph, &upload));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&other, 48 << 20));
    OK(cuGraphExecDestroy(x));
    OK(cuMemAlloc(&other, 48 << 20));
    CHECK(other != inside); /* the address is the node's */
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(other));
    OK(cuMemsetD8Async(inside, 1, 1, a)); /* the graph is destroyed, and nothing is live there */
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(a));
}

void a_capture_into_a_graph_that_is_there(void)
{
    CUgraph graph = NULL, same = NULL;
    CUgraphExec first = NULL, both = NULL;
    CUgraphNode node;
    const CUgraphNode *after = NULL;
    CUstreamCaptureStatus status;
    cuuint64_t id;
    size_t count = 1;
    int calls = 0;
    start();
    begin();
    OK(cuLaunchHostFunc(a, count_fn, &calls));
    OK(cuStreamGetCaptureInfo_v3(a, &status, &id, &graph, &after, NULL, &count));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && graph && count == 1);
    node = after ? after[0] : NULL;
    OK(cuStreamEndCapture(a, &same));
    CHECK(same == graph);
    OK(cuGraphInstantiate(&first, graph, 0));
    OK(cuStreamBeginCaptureToGraph(a, graph, &node, NULL, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuLaunchHostFunc(a, count_fn, &calls));
    OK(cuStreamEndCapture(a, &same));
    OK(cuGraphGetRootNodes(graph, NULL, &count));
    CHECK(same == graph && count == 1);
    OK(cuGraphInstantiate(&both, graph, 0));
    run(first);
    CHECK(calls == 1);
    run(both);
    CHECK(calls == 3);
    OK(cuStreamBeginCaptureToGraph(a, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuLaunchHostFunc(a, count_fn, &calls));
    OK(cuStreamDestroy(a)); /* the capture ends and leaves nothing */
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 2);
    OK(cuGraphExecDestroy(first));
    OK(cuGraphExecDestroy(both));
    OK(cuGraphDestroy(graph));
}
