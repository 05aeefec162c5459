/* Somebody else's interposer of the runtime: each call goes on to the next one, and comes back. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include "check.h"

static int calls;

#define EXPORT __attribute__((visibility("default")))

static void *next(const char *name, void *own)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found || found == own)
        FAIL("the next %s is %p, this one %p", name, found, own);
    return found;
}

EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    cudaError_t (*call)(void **, size_t) =
        (cudaError_t(*)(void **, size_t))next("cudaMalloc", (void *)cudaMalloc);
    cudaError_t code = call(pointer, bytes);
    calls++; /* no tail call: it is this code that asks */
    return code;
}

EXPORT cudaError_t cudaFree(void *pointer)
{
    cudaError_t (*call)(void *) = (cudaError_t(*)(void *))next("cudaFree", (void *)cudaFree);
    cudaError_t code = call(pointer);
    calls++;
    return code;
}
