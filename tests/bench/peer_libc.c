/* The C library's malloc, the limit: an allocator that knows nothing of devices, streams and leaks.
 * It stands in for pinned memory too. */
#include "peer.h"

#include <stdlib.h>
#include <string.h>

bool peer_open(const char *name)
{
    return strcmp(name, "glibc") == 0;
}

bool peer_has(peer_memory_t memory)
{
    return memory != PEER_STREAM;
}

void *peer_alloc(size_t bytes)
{
    return malloc(bytes);
}

void peer_free(void *block, size_t bytes)
{
    (void)bytes;
    free(block);
}

void *peer_stream_alloc(size_t bytes, cudaStream_t stream)
{
    (void)bytes, (void)stream;
    return NULL;
}

void peer_stream_free(void *block, size_t bytes, cudaStream_t stream)
{
    (void)block, (void)bytes, (void)stream;
}

void *peer_pinned_alloc(size_t bytes)
{
    return malloc(bytes);
}

void peer_pinned_free(void *block, size_t bytes)
{
    (void)bytes;
    free(block);
}

bool peer_trim(void)
{
    return false;
}
