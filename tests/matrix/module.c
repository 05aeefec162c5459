/* A module that uses the runtime: linked with that of CUDA 12 or 13, or with the static one. */
#include "tests/matrix/module.h"
#include "tests/matrix/work.h"

static int version(void)
{
    int number;
    OK(cudaRuntimeGetVersion(&number));
    return number;
}

static void *allocate(size_t bytes)
{
    void *memory;
    OK(cudaMalloc(&memory, bytes));
    OK(cudaMemset(memory, 1, bytes));
    return memory;
}

static void release(void *memory)
{
    OK(cudaFree(memory));
}

static void leave_error(void)
{
    void *memory;
    ANSWERS(cudaErrorMemoryAllocation, cudaMalloc(&memory, (size_t)1 << 50));
}

static int take_error(void)
{
    return (int)cudaGetLastError();
}

__attribute__((visibility("default")))
const module_t module = {version, work, allocate, release, leave_error, take_error};
