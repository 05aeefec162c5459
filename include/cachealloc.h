/* cachealloc: the public interface of libcachealloc.so.
 *
 * A program needs none of this to run under LD_PRELOAD=libcachealloc.so. One that wants to ask or
 * steer declares these functions weak (define CACHEALLOC_WEAK before the include) and finds them
 * only when the library is preloaded:
 *
 *     #define CACHEALLOC_WEAK
 *     #include <cachealloc.h>
 *     if (cachealloc_trim)
 *         cachealloc_trim();
 *
 * Every function is thread-safe. Sizes are bytes.
 */
#ifndef CACHEALLOC_H
#define CACHEALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef CACHEALLOC_WEAK
#define CACHEALLOC_API __attribute__((weak))
#else
#define CACHEALLOC_API
#endif

#define CACHEALLOC_STATS_VERSION 1

/* Figures of the whole process, all contexts together. */
typedef struct cachealloc_stats {
    size_t size;      /* set by the caller to sizeof(struct cachealloc_stats) */
    unsigned version; /* set by the call to CACHEALLOC_STATS_VERSION */
    uint64_t alloc_calls;
    uint64_t free_calls;
    uint64_t hits;   /* served from memory that the pool already had */
    uint64_t misses; /* served after the pool asked the driver for a segment */
    uint64_t upstream_allocs;
    uint64_t upstream_frees;
    uint64_t live_bytes; /* requested bytes of live allocations of every kind */
    uint64_t live_peak_bytes;
    uint64_t reserved_bytes; /* device memory that the pool holds from the driver */
    uint64_t reserved_peak_bytes;
    uint64_t fence_records;
    uint64_t fence_queries;
    uint64_t fence_waits;
} cachealloc_stats_t;

/* Fills `stats`. Returns 0, or EINVAL when `stats` is NULL or its `size` is not set; a smaller
 * `size`, from a program built with an older header, gets that many bytes; what a larger one has
 * more is zeroed. Makes no CUDA call. */
CACHEALLOC_API int cachealloc_get_stats(cachealloc_stats_t *stats);

/* Gives all idle memory of the pool back to the driver. Returns the bytes given. The driver may
 * wait for work on the device. Never call it from a host function on a stream. */
CACHEALLOC_API size_t cachealloc_trim(void);

/* The library's version, "MAJOR.MINOR.PATCH"; static storage. */
CACHEALLOC_API const char *cachealloc_version(void);

#ifdef __cplusplus
}
#endif

#endif
