/* One allocator under test. Each program of the bench links one file that defines these functions
 * (peer_*.c, peer_*.cc) with the same objects of everything else, so that a pair costs every
 * allocator the same two calls on top of its own. All may be called from any thread, except open.
 */
#ifndef CA_TESTS_BENCH_PEER_H
#define CA_TESTS_BENCH_PEER_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum peer_memory { PEER_PLAIN, PEER_STREAM, PEER_PINNED } peer_memory_t;

/* Makes the allocator `name` of this program; false where there is none. */
bool peer_open(const char *name);

/* Whether it can allocate such memory at all. */
bool peer_has(peer_memory_t memory);

/* NULL where there is no memory left. `bytes` of a free are those of its allocation. A block of a
 * stream is freed on the stream that it was allocated on. */
void *peer_alloc(size_t bytes);
void peer_free(void *block, size_t bytes);
void *peer_stream_alloc(size_t bytes, cudaStream_t stream);
void peer_stream_free(void *block, size_t bytes, cudaStream_t stream);
void *peer_pinned_alloc(size_t bytes);
void peer_pinned_free(void *block, size_t bytes);

/* Gives everything that is cached back to the driver, so that the next allocation is a miss. False
 * where that cannot be asked for. */
bool peer_trim(void);

/* For allocators of one kind of memory. */
#define PEER_WITHOUT(kind)                                                                         \
    void *peer_##kind##_alloc(size_t bytes)                                                        \
    {                                                                                              \
        (void)bytes;                                                                               \
        return NULL;                                                                               \
    }                                                                                              \
    void peer_##kind##_free(void *block, size_t bytes)                                             \
    {                                                                                              \
        (void)block, (void)bytes;                                                                  \
    }

#ifdef __cplusplus
}
#endif

#endif
