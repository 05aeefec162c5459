/* SIM: the race check against programs that launch graphs; selftest_race.c runs them. */
#include <unistd.h>
#include "selftest.h"

enum { BYTES = 4096 };

#define ORDERED(name, keys) void name(void);
#define RACY(name, keys) void name(void);
#include "selftest_race_graph.def"
#undef ORDERED
#undef RACY

static CUstream a, b; /* non-blocking */
static CUevent e;
static CUdeviceptr p, q;

static void start(void)
{
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&p, BYTES));
    OK(cuMemAlloc(&q, BYTES));
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUgraphExec end(void)
{
    CUgraph graph;
    CUgraphExec made = NULL;
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiate(&made, graph, 0));
    return made;
}

static CUgraphExec writer(void)
{
    start();
    OK(cuMemsetD8Async(p, 1, BYTES, a));
    return end();
}

static void b_waits_for_a(void)
{
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
}

void launches_on_one_stream(void)
{
    CUgraphExec x = writer();
    OK(cuGraphLaunch(x, a));
    OK(cuMemsetD8Async(p, 1, BYTES, a));
    OK(cuGraphLaunch(x, a));
}

void a_launch_beside_another_stream(void)
{
    CUgraphExec x = writer();
    OK(cuMemsetD8Async(p, 1, BYTES, b));
    OK(cuGraphLaunch(x, a));
}

void a_launch_beside_another_stream_after_an_event(void)
{
    CUgraphExec x = writer();
    OK(cuGraphLaunch(x, a));
    b_waits_for_a();
    OK(cuMemsetD8Async(p, 1, BYTES, b));
}

void launches_of_one_graph_on_two_streams(void)
{
    CUgraphExec x = writer();
    OK(cuGraphLaunch(x, a));
    OK(cuGraphLaunch(x, b));
    OK(cuMemsetD8Async(p, 1, BYTES, b));
}

void launches_of_two_graphs_on_two_streams(void)
{
    CUgraphExec x = writer();
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(p, 1, BYTES, a));
    CUgraphExec y = end();
    OK(cuGraphLaunch(x, a));
    OK(cuGraphLaunch(y, b));
}

static CUgraphExec reader(void)
{
    start();
    OK(cuMemcpyDtoDAsync(q, p, BYTES, a));
    return end();
}

void a_write_while_a_graph_may_still_read(void)
{
    CUgraphExec x = reader();
    OK(cuGraphLaunch(x, a));
    OK(cuGraphExecDestroy(x));
    OK(cuMemsetD8Async(p, 1, BYTES, b));
}

void a_write_after_the_launch_is_known_over(void)
{
    CUgraphExec x = reader();
    OK(cuGraphLaunch(x, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemsetD8Async(p, 1, BYTES, b));
}

static CUgraphExec allocates(CUdeviceptr *node)
{
    start();
    OK(cuMemAllocAsync(node, BYTES, a));
    return end();
}

void memory_of_a_graph_used_elsewhere(void)
{
    CUdeviceptr node;
    CUgraphExec x = allocates(&node);
    OK(cuGraphLaunch(x, a));
    OK(cuMemsetD8Async(node, 1, BYTES, b));
}

void memory_of_a_graph_used_behind_its_launch(void)
{
    CUdeviceptr node;
    CUgraphExec x = allocates(&node);
    OK(cuGraphLaunch(x, a));
    OK(cuMemsetD8Async(node, 1, BYTES, a));
    b_waits_for_a();
    OK(cuMemFreeAsync(node, b));
}

void memory_of_a_graph_used_after_its_free(void)
{
    CUdeviceptr node;
    CUgraphExec x = allocates(&node);
    OK(cuGraphLaunch(x, a));
    OK(cuMemFreeAsync(node, a));
    OK(cuMemsetD8Async(node, 1, BYTES, b));
}

void a_relaunch_that_is_not_behind_the_free(void)
{
    CUdeviceptr node;
    CUgraphExec x = allocates(&node);
    OK(cuGraphLaunch(x, a));
    b_waits_for_a();
    OK(cuMemFreeAsync(node, b));
    OK(cuGraphLaunch(x, a));
}

void a_relaunch_behind_the_free(void)
{
    CUdeviceptr node;
    CUgraphExec x = allocates(&node);
    OK(cuGraphLaunch(x, a));
    OK(cuMemFreeAsync(node, a));
    OK(cuGraphLaunch(x, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemFree(node));
    OK(cuGraphLaunch(x, b));
}

/* A launch without a wait for it: allocates, writes, frees. Returns where. */
static CUdeviceptr temporary_on(CUstream stream)
{
    CUdeviceptr node;
    CUgraph graph;
    CUgraphExec x;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&node, BYTES, stream));
    OK(cuMemsetD8Async(node, 1, BYTES, stream));
    OK(cuMemFreeAsync(node, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&x, graph, 0));
    OK(cuGraphLaunch(x, stream));
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(graph));
    return node;
}

void memory_of_a_graph_that_was_destroyed_comes_again(void)
{
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    CUdeviceptr first = temporary_on(a);
    for (int i = 0; i < 10000; i++) {
        usleep(100); /* nothing that the race check learns from */
        if (temporary_on(b) == first) {
            return;
        }
    }
    CHECK(!"the same address again");
}

/* Not seen: two branches write the same bytes. */
void branches_of_a_graph_count_as_ordered(void)
{
    CUevent f;
    start();
    OK(cuEventCreate(&f, CU_EVENT_DISABLE_TIMING));
    b_waits_for_a();
    OK(cuMemsetD8Async(p, 1, BYTES, a));
    OK(cuMemsetD8Async(p, 2, BYTES, b));
    OK(cuEventRecord(f, b));
    OK(cuStreamWaitEvent(a, f, 0));
    OK(cuGraphLaunch(end(), a));
}
