/* Pairs of an allocation and a free, while other work is held that plain CUDA waits for in neither
 * call: the memory comes back at once all the same, and no pair waits.
 *
 * both_beside CASE BYTES COUNT. On one device, a non-blocking stream is held:
 *   legacy    stream-ordered memory of the legacy stream, freed there
 *   plain     cudaMalloc, freed on the legacy stream
 *   own       stream-ordered memory of a stream that has no work left, freed on the legacy stream
 *   free      the same, freed by cudaFree
 *   unused    the same, never used: what was there before may still be at work on that stream
 *   thread    as free, of the thread's own default stream
 * An other device, or an other context of the device, which once allocated, is held:
 *   device, context   plain pairs
 *   foreign           the same, after a buffer was freed in the order of that device's work */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <string.h>
#include "gate.h"

static size_t bytes;
static cudaStream_t held, used;

static void use(void *memory, cudaStream_t stream)
{
    OK(cudaMemsetAsync(memory, 1, bytes, stream));
    OK(cudaStreamSynchronize(stream));
}

static bool is(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}

static void pair(const char *name)
{
    void *memory;
    bool plain =
        is(name, "plain") || is(name, "device") || is(name, "context") || is(name, "foreign");
    bool by_free = is(name, "free") || is(name, "unused") || is(name, "thread");
    OK(plain ? cudaMalloc(&memory, bytes) : cudaMallocAsync(&memory, bytes, used));
    if (!is(name, "unused"))
        use(memory, used);
    OK(by_free || (plain && !is(name, "plain")) ? cudaFree(memory) : cudaFreeAsync(memory, NULL));
}

/* Something that was allocated there, and is freed in the order of its work. */
static void hold_elsewhere(const char *name, gate_t *gate, void **left)
{
    void *memory, *crossing;
    CUcontext made, popped;
    CUctxCreateParams params = {0};
    OK(cudaMalloc(&crossing, bytes));
    if (is(name, "context"))
        OK(cuCtxCreate_v4(&made, &params, 0, 0));
    else
        OK(cudaSetDevice(1));
    OK(cudaMalloc(&memory, 1000));
    *left = memory;
    OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
    gate_hold(gate, held);
    if (is(name, "foreign"))
        OK(cudaFreeAsync(crossing, held));
    if (is(name, "context"))
        OK(cuCtxPopCurrent(&popped));
    else
        OK(cudaSetDevice(0));
    if (!is(name, "foreign"))
        OK(cudaFree(crossing));
}

int main(int argc, char **argv)
{
    static gate_t gate = GATE_CLOSED, earlier = GATE_CLOSED;
    const char *name = argc > 1 ? argv[1] : "legacy";
    void *memory, *left = NULL;
    bytes = number_argument(argc, argv, 2, (size_t)8 << 20);
    uint64_t count = number_argument(argc, argv, 3, 100);
    OK(cudaFree(NULL));
    if (is(name, "thread"))
        used = cudaStreamPerThread;
    else if (is(name, "own") || is(name, "free") || is(name, "unused"))
        OK(cudaStreamCreateWithFlags(&used, cudaStreamNonBlocking));
    if (is(name, "device") || is(name, "context") || is(name, "foreign")) {
        hold_elsewhere(name, &gate, &left);
    } else {
        OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
        gate_hold(&gate, held);
    }
    if (is(name, "unused")) {
        OK(cudaMallocAsync(&memory, bytes, used));
        gate_hold(&earlier, used);
        OK(cudaMemsetAsync(memory, 7, bytes, used));
        OK(cudaFreeAsync(memory, used));
    }
    for (uint64_t i = 0; i < count; i++)
        pair(name);
    if (!is(name, "context"))
        ANSWERS(cudaErrorNotReady, cudaStreamQuery(held));
    if (is(name, "unused")) { /* not given away before the work that was there is done */
        OK(cudaMalloc(&memory, bytes));
        OK(cudaMemsetAsync(memory, 9, bytes, cudaStreamPerThread));
        OK(cudaStreamSynchronize(cudaStreamPerThread));
        gate_open(&earlier);
    }
    gate_open(&gate);
    OK(cudaDeviceSynchronize());
    if (is(name, "unused"))
        OK(cudaFree(memory));
    if (left)
        OK(cudaFree(left));
    return 0;
}
