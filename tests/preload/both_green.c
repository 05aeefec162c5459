/* With a green context current a thread may have no stream of its own (an H100 answers 400): prints
 * what the calls answer that are given it. What they refuse to free is there afterwards. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include "check.h"
#include "green.h"

#define BYTES 100000
#define PAIRS 300 /* enough for the cache to serve them */

typedef struct memory {
    CUdeviceptr driver, driver_async;
    void *runtime, *runtime_async;
} memory_t;

static memory_t served(void)
{
    memory_t memory;
    for (int i = 0; i < PAIRS; i++) {
        OK(cudaMallocAsync(&memory.runtime_async, BYTES, cudaStreamPerThread));
        OK(cudaFreeAsync(memory.runtime_async, cudaStreamPerThread));
    }
    OK(cuMemAlloc(&memory.driver, BYTES));
    OK(cuMemAllocAsync(&memory.driver_async, BYTES, CU_STREAM_PER_THREAD));
    OK(cudaMalloc(&memory.runtime, BYTES));
    OK(cudaMallocAsync(&memory.runtime_async, BYTES, cudaStreamPerThread));
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    return memory;
}

static int told(const char *call, int code)
{
    printf("%s %d\n", call, code);
    return code;
}
#define TOLD(call, ...) told(#call, (int)call(__VA_ARGS__))

static void allocate(void)
{
    CUdeviceptr p;
    void *pointer;
    if (TOLD(cuMemAllocAsync, &p, BYTES, CU_STREAM_PER_THREAD) == 0)
        OK(cuMemFreeAsync(p, CU_STREAM_PER_THREAD));
    if (TOLD(cudaMallocAsync, &pointer, BYTES, cudaStreamPerThread) == 0)
        OK(cudaFreeAsync(pointer, cudaStreamPerThread));
    (void)cudaGetLastError();
}

/* Leaves what was not freed. */
static void free_all(memory_t *memory)
{
    if (TOLD(cuMemFreeAsync, memory->driver, CU_STREAM_PER_THREAD) == 0)
        memory->driver = 0;
    if (TOLD(cuMemFreeAsync, memory->driver_async, CU_STREAM_PER_THREAD) == 0)
        memory->driver_async = 0;
    if (TOLD(cudaFreeAsync, memory->runtime, cudaStreamPerThread) == 0)
        memory->runtime = NULL;
    if (TOLD(cudaFreeAsync, memory->runtime_async, cudaStreamPerThread) == 0)
        memory->runtime_async = NULL;
    (void)cudaGetLastError();
}

static void use_and_free(const memory_t *memory)
{
    const CUdeviceptr all[] = {memory->driver, memory->driver_async,
                               (CUdeviceptr)(uintptr_t)memory->runtime,
                               (CUdeviceptr)(uintptr_t)memory->runtime_async};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        unsigned char last = 0;
        if (!all[i])
            continue;
        OK(cuMemsetD8(all[i], 7, BYTES));
        OK(cuMemcpyDtoH(&last, all[i] + BYTES - 1, 1));
        CHECK(last == 7);
        OK(cuMemFree(all[i]));
    }
}

int main(void)
{
    CUcontext primary, green;
    OK(cudaFree(NULL));
    OK(cuCtxGetCurrent(&primary));
    green = green_context();
    memory_t memory = served();
    OK(cuCtxSetCurrent(green));
    allocate();
    free_all(&memory);
    OK(cuCtxSetCurrent(primary));
    use_and_free(&memory);
    OK(cuCtxSynchronize());
    return 0;
}
