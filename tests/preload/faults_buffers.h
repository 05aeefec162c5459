/* The buffers of tests/preload/faults.c: allocated by one of six calls, filled, checked, freed. */
#ifndef CA_TESTS_PRELOAD_FAULTS_BUFFERS_H
#define CA_TESTS_PRELOAD_FAULTS_BUFFERS_H

#include "faults.h"

#define STREAMS 3

enum kind { PLAIN, LARGE, PITCHED, PINNED, MANAGED, ASYNC, KINDS };

typedef struct buffer {
    void *pointer; /* NULL: nothing there */
    size_t bytes;
    enum kind kind;
    unsigned char value;
    bool known; /* the value was written */
} buffer_t;

static cudaStream_t streams[STREAMS];
static bool no_async_free; /* the driver has no cuMemFreeAsync */

/* --- buffers ---------------------------------------------------------------------------------- */
static cudaError_t allocate(buffer_t *b, uint64_t random)
{
    size_t pitch;
    b->bytes = ((size_t)256 << random % 12) + random % 1000;
    b->pointer = NULL;
    switch (b->kind) {
    case PLAIN:
        return cudaMalloc(&b->pointer, b->bytes);
    case LARGE:
        b->bytes += (size_t)3 << 20;
        return cudaMalloc(&b->pointer, b->bytes);
    case PITCHED:
        b->bytes = 512 * 16;
        return cudaMallocPitch(&b->pointer, &pitch, 500, 16);
    case PINNED:
        b->bytes = b->bytes % 16384 + 1;
        return random & 4096 ? cudaMallocHost(&b->pointer, b->bytes)
                             : cudaHostAlloc(&b->pointer, b->bytes, 0);
    case MANAGED:
        return cudaMallocManaged(&b->pointer, b->bytes, cudaMemAttachGlobal);
    default:
        return cudaMallocAsync(&b->pointer, b->bytes, streams[0]);
    }
}

static cudaError_t release(const buffer_t *b)
{
    if (b->kind == PINNED)
        return cudaFreeHost(b->pointer);
    return b->kind == ASYNC && !no_async_free ? cudaFreeAsync(b->pointer, streams[0])
                                              : cudaFree(b->pointer);
}

/* Of a large one only the ends: simulated memory costs time to touch. */
static cudaError_t fill(const buffer_t *b, unsigned char value, bool async, cudaStream_t stream)
{
    size_t head = b->bytes < 8192 ? b->bytes : 512;
    char *to[] = {b->pointer, (char *)b->pointer + b->bytes - head};
    for (size_t i = 0; i < (head == b->bytes ? 1 : 2); i++) {
        cudaError_t code =
            async ? cudaMemsetAsync(to[i], value, head, stream) : cudaMemset(to[i], value, head);
        if (code != cudaSuccess)
            return code;
    }
    return cudaSuccess;
}

static void birth(buffer_t *b, uint64_t random)
{
    b->kind = random % 16 < 10 ? PLAIN : (enum kind)(random % 16 - 10);
    if (!WORKED(allocate(b, random >> 8))) {
        b->pointer = NULL;
        return;
    }
    HOLDS(b->pointer);
    b->value = (unsigned char)(random >> 32);
    cudaStream_t stream = b->kind == ASYNC ? streams[0] : streams[random % STREAMS];
    b->known = WORKED(fill(b, b->value, random % 8 == 0 || b->kind == ASYNC, stream));
}

static void check_contents(const buffer_t *b)
{
    unsigned char first = 0, last = 0;
    const char *from = b->pointer;
    if (!b->known)
        return;
    /* The legacy stream: all of ours are before it. */
    if (WORKED(cudaMemcpy(&first, from, 1, cudaMemcpyDefault)) &&
        WORKED(cudaMemcpy(&last, from + b->bytes - 1, 1, cudaMemcpyDefault)) &&
        (first != b->value || last != b->value))
        BROKEN("%zu bytes of %#x hold %#x and %#x", b->bytes, b->value, first, last);
}

static void death(buffer_t *b, uint64_t random)
{
    check_contents(b);
    /* Freed with work in flight. */
    if (b->kind <= LARGE && random % 8 == 1)
        (void)WORKED(fill(b, 0xDD, true, streams[random % STREAMS]));
    (void)RETRIED(release(b));
    b->pointer = NULL;
}

#endif
