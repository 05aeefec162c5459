/* Graphs that are built by hand, their memory nodes first; see selftest.c. */
#include "selftest.h"

#include <string.h>

enum { BYTES = 4096 };

static CUstream a;
static CUgraph g;
static CUgraphNode last; /* what the next node depends on */
static unsigned char *seen;

static void start(void)
{
    primary();
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocHost((void **)&seen, BYTES));
    memset(seen, 0, BYTES);
    OK(cuGraphCreate(&g, 0));
    last = NULL;
}

static size_t behind(void)
{
    return last != NULL;
}

static CUDA_MEM_ALLOC_NODE_PARAMS wanted(size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p;
    memset(&p, 0, sizeof(p));
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.bytesize = bytes;
    return p;
}

static CUdeviceptr allocates(size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p = wanted(bytes);
    OK(cuGraphAddMemAllocNode(&last, g, &last, behind(), &p));
    CHECK(p.dptr != 0);
    return p.dptr;
}

static void frees(CUdeviceptr p)
{
    OK(cuGraphAddMemFreeNode(&last, g, &last, behind(), p));
}

static void sets(CUdeviceptr p, unsigned value)
{
    CUDA_MEMSET_NODE_PARAMS m = {
        .dst = p, .value = value, .elementSize = 1, .width = BYTES, .height = 1};
    CUcontext ctx;
    OK(cuCtxGetCurrent(&ctx));
    OK(cuGraphAddMemsetNode(&last, g, &last, behind(), &m, ctx));
}

static void copies_out(CUdeviceptr p)
{
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = p,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = seen,
                       .WidthInBytes = BYTES,
                       .Height = 1,
                       .Depth = 1};
    CUcontext ctx;
    OK(cuCtxGetCurrent(&ctx));
    OK(cuGraphAddMemcpyNode(&last, g, &last, behind(), &c, ctx));
}

static CUgraphExec made(void)
{
    CUgraphExec x = NULL;
    OK(cuGraphInstantiate(&x, g, 0));
    return x;
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

void memory_nodes_added_by_hand_work(void)
{
    int calls = 0;
    CUDA_HOST_NODE_PARAMS h = {count_fn, &calls};
    CUDA_MEM_ALLOC_NODE_PARAMS answer;
    CUgraphNode node[6];
    CUgraphNodeType type;
    CUdeviceptr freed = 0;
    size_t count = 6;
    start();
    CUdeviceptr p = allocates(BYTES);
    CUgraphNode allocated = last;
    sets(p, 7);
    copies_out(p);
    OK(cuGraphAddHostNode(&last, g, &last, 1, &h));
    OK(cuGraphAddEmptyNode(&last, g, &last, 1));
    frees(p);
    OK(cuGraphMemAllocNodeGetParams(allocated, &answer));
    CHECK(answer.dptr == p && answer.bytesize == BYTES && answer.accessDescCount == 0);
    CHECK(answer.poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    OK(cuGraphMemFreeNodeGetParams(last, &freed));
    CHECK(freed == p);
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphMemFreeNodeGetParams(allocated, &freed));
    OK(cuGraphGetNodes(g, node, &count));
    const CUgraphNodeType types[] = {CU_GRAPH_NODE_TYPE_MEM_ALLOC, CU_GRAPH_NODE_TYPE_MEMSET,
                                     CU_GRAPH_NODE_TYPE_MEMCPY,    CU_GRAPH_NODE_TYPE_HOST,
                                     CU_GRAPH_NODE_TYPE_EMPTY,     CU_GRAPH_NODE_TYPE_MEM_FREE};
    CHECK(count == 6);
    for (size_t i = 0; i < count; i++) {
        OK(cuGraphNodeGetType(node[i], &type));
        CHECK(type == types[i]);
    }
    CUgraphExec x = made();
    for (int i = 1; i <= 2; i++) {
        memset(seen, 0, BYTES);
        run(x);
        CHECK(calls == i && seen[0] == 7 && seen[BYTES - 1] == 7);
    }
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(g));
}

void memory_of_an_added_node_outlives_the_launch(void)
{
    start();
    CUdeviceptr p = allocates(BYTES);
    CUgraphExec x = made();
    OK(cuGraphLaunch(x, a));
    OK(cuMemsetD8Async(p, 5, BYTES, a));
    OK(cuMemcpyDtoHAsync(seen, p, BYTES, a));
    OK(cuStreamSynchronize(a));
    CHECK(seen[0] == 5);
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(x, a)); /* "remain unfreed" */
    OK(cuMemFreeAsync(p, a));
    run(x);
    CUgraph owner = g;
    OK(cuGraphCreate(&g, 0)); /* a graph that frees another's */
    last = NULL;
    frees(p);
    CUgraphExec y = made();
    run(y);
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
    IS(CUDA_ERROR_INVALID_VALUE, /* "can no longer be added to the owning graph" */
       cuGraphAddMemFreeNode(&last, owner, NULL, 0, p));
    OK(cuGraphExecDestroy(y));
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(g));
    OK(cuGraphDestroy(owner));
}

void memory_nodes_have_their_errors(void)
{
    CUgraphNode node, twice[2];
    CUDA_MEM_ALLOC_NODE_PARAMS p = wanted(0);
    start();
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, g, NULL, 0, &p));
    p = wanted(BYTES);
    p.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; /* "must be NONE" */
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, g, NULL, 0, &p));
    CUdeviceptr at = allocates(BYTES);
    twice[0] = twice[1] = last;
    p = wanted(BYTES);
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&node, g, twice, 2, &p));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, g, &last, 1, at + 1));
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, g, &last, 1, (CUdeviceptr)seen));
    frees(at);
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, g, &last, 1, at)); /* "twice" */
    CUgraphExec x = made(), other;
    IS(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&other, g, 0)); /* "only one" */
    OK(cuGraphExecDestroy(x));
    OK(cuDeviceGraphMemTrim(0));
    OK(cuGraphDestroy(g));
}

void one_call_adds_every_sort_of_node(void)
{
    CUgraphNodeParams n;
    CUgraphNode made_of = NULL;
    start();
    memset(&n, 0, sizeof(n));
    n.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    n.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    n.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    n.alloc.bytesize = BYTES;
    OK(cuGraphAddNode(&made_of, g, NULL, NULL, 0, &n));
    CUdeviceptr p = n.alloc.dptr;
    memset(&n, 0, sizeof(n));
    n.type = CU_GRAPH_NODE_TYPE_MEMSET;
    n.memset.dst = p;
    n.memset.value = 3;
    n.memset.elementSize = 1;
    n.memset.width = BYTES;
    n.memset.height = 1;
    OK(cuCtxGetCurrent(&n.memset.ctx));
    OK(cuGraphAddNode(&last, g, &made_of, NULL, 1, &n));
    copies_out(p);
    memset(&n, 0, sizeof(n));
    n.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
    n.free.dptr = p;
    OK(cuGraphAddNode(&last, g, &last, NULL, 1, &n));
    CUgraphExec x = made();
    run(x);
    CHECK(seen[0] == 3 && seen[BYTES - 1] == 3);
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(g));
}

void a_capture_depends_on_what_is_asked(void)
{
    CUstreamCaptureStatus status;
    CUgraph in = NULL;
    const CUgraphNode *after = NULL;
    CUgraphNode first, added;
    CUstream b;
    CUevent e;
    size_t count = 0;
    start();
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    IS(CUDA_ERROR_ILLEGAL_STATE,
       cuStreamUpdateCaptureDependencies_v2(a, NULL, NULL, 0, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    OK(cuGraphDestroy(g));
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemcpyDtoHAsync(seen, (CUdeviceptr)seen, 1, a));
    OK(cuStreamGetCaptureInfo_v3(a, &status, NULL, &in, &after, NULL, &count));
    CHECK(count == 1);
    first = after ? after[0] : NULL;
    OK(cuGraphAddEmptyNode(&added, in, &first, 1));
    OK(cuStreamUpdateCaptureDependencies_v2(a, &added, NULL, 1,
                                            CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    OK(cuStreamGetCaptureInfo_v3(a, &status, NULL, &in, &after, NULL, &count));
    CHECK(count == 2);
    OK(cuStreamUpdateCaptureDependencies_v2(a, NULL, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(cuStreamGetCaptureInfo_v3(a, &status, NULL, &in, &after, NULL, &count));
    CHECK(count == 0);
    OK(cuStreamEndCapture(a, &g)); /* what was removed need not be joined */
    OK(cuGraphGetNodes(g, NULL, &count));
    CHECK(count == 2);
    OK(cuGraphDestroy(g));
}
