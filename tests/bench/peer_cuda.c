/* The CUDA runtime's own calls: the plain driver, and under LD_PRELOAD the shim. The allocator
 * `ordered` is the driver's stream-ordered pool in the place of cudaMalloc, and gives nothing back.
 */
#include "peer.h"

#include <stdint.h>
#include <string.h>

extern size_t cachealloc_trim(void) __attribute__((weak));

static bool ordered;

bool peer_open(const char *name)
{
    ordered = strcmp(name, "ordered") == 0;
    if (!ordered)
        return strcmp(name, "cuda") == 0;
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    return cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess &&
           cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all) == cudaSuccess;
}

bool peer_has(peer_memory_t memory)
{
    (void)memory;
    return true;
}

void *peer_alloc(size_t bytes)
{
    void *block = NULL;
    if (ordered)
        return peer_stream_alloc(bytes, NULL);
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : NULL;
}

void peer_free(void *block, size_t bytes)
{
    if (ordered)
        peer_stream_free(block, bytes, NULL);
    else
        cudaFree(block);
}

void *peer_stream_alloc(size_t bytes, cudaStream_t stream)
{
    void *block = NULL;
    return cudaMallocAsync(&block, bytes, stream) == cudaSuccess ? block : NULL;
}

void peer_stream_free(void *block, size_t bytes, cudaStream_t stream)
{
    (void)bytes;
    cudaFreeAsync(block, stream);
}

void *peer_pinned_alloc(size_t bytes)
{
    void *block = NULL;
    return cudaMallocHost(&block, bytes) == cudaSuccess ? block : NULL;
}

void peer_pinned_free(void *block, size_t bytes)
{
    (void)bytes;
    cudaFreeHost(block);
}

/* The plain driver keeps nothing: all its allocations are misses. */
bool peer_trim(void)
{
    if (cachealloc_trim)
        cachealloc_trim();
    return true;
}
