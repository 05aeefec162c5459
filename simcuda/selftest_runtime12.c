/* SIM: programs of CUDA 12 on libcudart.so.12: the functions whose form CUDA 13 changed. Compiled
 * with the headers of CUDA 12 (scripts/deps.sh --older-headers) by tests/test_simcuda.py. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <string.h>

#ifdef CUDART_VERSION /* what reads no headers knows none */
_Static_assert(CUDART_VERSION >= 12000 && CUDART_VERSION < 13000,
               "the headers of CUDA 12 are wanted");
#endif

static int failures;

#define IS(cond)                                                                                   \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            printf("line %d: %s\n", __LINE__, #cond);                                              \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)
#define OK(call) IS((call) == cudaSuccess)

static void properties(void)
{
    struct cudaDeviceProp p, *end = &p + 1;
    char whole[sizeof p + 64];
    int chosen = -1;
    memset(whole, 0x5a, sizeof whole);
    OK(cudaGetDeviceProperties((struct cudaDeviceProp *)(void *)whole, 0));
    for (size_t i = sizeof p; i < sizeof whole; i++) {
        IS(whole[i] == 0x5a);
    }
    memcpy(&p, whole, sizeof p);
    IS(end == &p + 1 && p.major == 9 && p.minor == 0 && p.warpSize == 32);
    IS(p.totalGlobalMem == (size_t)1 << 30 && p.multiProcessorCount > 0);
    IS(p.maxThreadsPerMultiProcessor == 2048 && p.memoryPoolsSupported == 1);
    IS(p.unifiedAddressing == 1 && p.managedMemory == 1 && p.asyncEngineCount > 0);
    OK(cudaChooseDevice(&chosen, &p));
    IS(chosen == 0);
    IS(cudaGetDeviceProperties(NULL, 0) == cudaErrorInvalidValue);
    IS(cudaGetDeviceProperties(&p, 7) == cudaErrorInvalidDevice);
    (void)cudaGetLastError();
}

static void pointers(void)
{
    struct cudaPointerAttributes a;
    char whole[sizeof a + 96];
    void *p = NULL, *pinned = NULL;
    OK(cudaMalloc(&p, 256));
    OK(cudaMallocHost(&pinned, 256));
    memset(whole, 0x5a, sizeof whole);
    OK(cudaPointerGetAttributes((struct cudaPointerAttributes *)(void *)whole, (char *)p + 7));
    for (size_t i = sizeof a; i < sizeof whole; i++) {
        IS(whole[i] == 0x5a);
    }
    memcpy(&a, whole, sizeof a);
    IS(a.type == cudaMemoryTypeDevice && a.device == 0);
    IS(a.devicePointer == (char *)p + 7 && a.hostPointer == NULL);
    OK(cudaPointerGetAttributes(&a, pinned));
    IS(a.type == cudaMemoryTypeHost && a.hostPointer == pinned);
    OK(cudaPointerGetAttributes(&a, whole));
    IS(a.type == cudaMemoryTypeUnregistered && a.hostPointer == whole);
    IS(cudaPointerGetAttributes(NULL, p) == cudaErrorInvalidValue);
    (void)cudaGetLastError();
    OK(cudaFreeHost(pinned));
    OK(cudaFree(p));
}

/* The header makes the name above _v2's; the plain one has CUDA 11's three arguments. */
extern cudaError_t plain_capture_info(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                      unsigned long long *id) __asm__("cudaStreamGetCaptureInfo");

static void captures(void)
{
    cudaStream_t s;
    cudaGraph_t graph = NULL, in = NULL;
    cudaGraphNode_t empty = NULL;
    const cudaGraphNode_t *after = NULL;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0, again = 0;
    size_t count = 99;
    void *p;
    OK(cudaStreamCreate(&s));
    OK(cudaMalloc(&p, 256));
    IS(cudaStreamUpdateCaptureDependencies(s, NULL, 0, 0) == cudaErrorIllegalState);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(p, 1, 256, s));
    OK(plain_capture_info(s, &status, &id));
    IS(status == cudaStreamCaptureStatusActive && id != 0);
    OK(cudaStreamGetCaptureInfo(s, &status, &again, &in, &after, &count));
    IS(again == id && in != NULL && count == 1 && after != NULL && after[0] != NULL);
    OK(cudaGraphAddEmptyNode(&empty, in, after, 1));
    OK(cudaStreamUpdateCaptureDependencies(s, &empty, 1, cudaStreamSetCaptureDependencies));
    OK(cudaStreamGetCaptureInfo(s, &status, NULL, NULL, &after, &count));
    IS(count == 1 && after[0] == empty);
    OK(cudaMemsetAsync(p, 2, 256, s));
    OK(cudaStreamEndCapture(s, &graph));
    IS(graph == in);
    OK(cudaGraphGetNodes(graph, NULL, &count));
    IS(count == 3);
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(p));
}

static void managed(void)
{
    void *p = NULL;
    int where = 77;
    OK(cudaMallocManaged(&p, 1 << 16, cudaMemAttachGlobal));
    OK(cudaMemAdvise(p, 1 << 16, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId));
    OK(cudaMemRangeGetAttribute(&where, 4, cudaMemRangeAttributePreferredLocation, p, 1 << 16));
    IS(where == cudaCpuDeviceId);
    OK(cudaMemPrefetchAsync(p, 1 << 16, 0, NULL));
    OK(cudaMemRangeGetAttribute(&where, 4, cudaMemRangeAttributeLastPrefetchLocation, p, 1 << 16));
    IS(where == 0);
    OK(cudaFree(p));
}

static void nodes(void)
{
    cudaGraph_t graph;
    cudaGraphNode_t node = NULL;
    struct cudaGraphNodeParams params;
    memset(&params, 0, sizeof params);
    params.type = cudaGraphNodeTypeEmpty;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddNode(&node, graph, NULL, 0, &params));
    OK(cudaGraphAddNode_v2(&node, graph, &node, NULL, 1, &params));
    OK(cudaGraphDestroy(graph));
}

int main(void)
{
    properties();
    pointers();
    captures();
    managed();
    nodes();
    return failures != 0;
}
