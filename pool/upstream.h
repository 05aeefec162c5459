/* What the pool asks of the outside world: memory and fences, as a table of function pointers, so
 * that the pool is built and tested without CUDA.
 *
 * No function of this table but `placed`, `forget` and `end` is ever called with one of our locks
 * held; debug builds assert it (CA_UPSTREAM_CALL). Every call may block.
 *
 * A fence marks all work submitted to the context before it, on every stream of it, and of other
 * contexts that can reach its memory. */
#ifndef CA_POOL_UPSTREAM_H
#define CA_POOL_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/counters.h"
#include "base/lock.h"
#include "base/record.h"

/* The wait without bound, see fence_wait. No plain free waits for another context's work, which may
 * be waiting for this very thread. */
#define CA_WAIT_OWN UINT64_MAX

/* Physical memory, and addresses that it is mapped at: for ranges that grow (pool/range/range.h). A
 * page is mapped whole, and may be at several addresses at a time. Results are those of the table
 * below. Pages belong to the process: `unmap`, `drop` and `unreserve` do without the context once
 * it was destroyed. None of these calls waits for the device. */
typedef struct ca_page {
    uint64_t handle;
    size_t bytes;
} ca_page_t;

typedef struct ca_pages {
    /* What pages and their addresses are multiples of, a power of two; 0 where memory cannot be
     * had so. */
    size_t (*unit)(void *context);
    int (*reserve)(void *context, size_t bytes, uint64_t *at);
    void (*unreserve)(void *context, uint64_t at, size_t bytes);
    int (*make)(void *context, size_t bytes, uint64_t *handle);
    void (*drop)(void *context, uint64_t handle);
    /* One behind the other from `at` on, all of them, accessible, or none. */
    int (*map)(void *context, uint64_t at, const ca_page_t *pages, size_t count);
    /* A row of pages. Nothing may be at these addresses any more, nor ever again. */
    int (*unmap)(void *context, uint64_t at, size_t bytes);
} ca_pages_t;

/* What may still be at memory that goes back. */
typedef enum {
    CA_FREE_PENDING, /* any work: the free waits for the context */
    CA_FREE_IDLE,    /* none: it need not wait */
    CA_FREE_PASSED,  /* none of its own context, but perhaps of others that can reach it, which no
                      * plain free is known to wait for */
} ca_free_t;

/* Results: 0 or a negative errno.
 *   -ENOMEM  out of memory
 *   -EAGAIN  not now (a stream is being captured); ask again later
 *   -ENOSYS  the driver has no context-wide events: use `synchronize`
 *   -EIO     the context is broken or destroyed: stop serving from it
 *   others   not now either, and no shortage: giving memory back would not help */
typedef struct ca_upstream {
    /* Gets at least `bytes` of memory, aligned to 512 B or better, 2 MiB from 2 MiB up where the
     * driver does so. */
    int (*alloc)(void *context, size_t bytes, uint64_t *address);
    int (*free)(void *context, uint64_t address, size_t bytes, ca_free_t how);
    /* By the same thread: what `alloc` gave is in the index of addresses, or is not going to be.
     * Until then the context does not end, or the next one's memory could be there already. Called
     * with the arena's lock held, as `forget` is. May be NULL. */
    void (*placed)(void *context, uint64_t address);

    /* Bytes that could be allocated now, SIZE_MAX when the driver does not know. May be NULL. */
    size_t (*available)(void *context);

    /* Makes a fence behind everything submitted so far, without waiting; with `all` behind the work
     * of every context too that memory may have been freed in the order of. The fence is owned by
     * the caller until fence_release, which may recycle it. */
    int (*fence_record)(void *context, bool all, void **fence);
    /* The same behind the work of one stream, which the caller names by `queue`. NULL: streams are
     * not distinguished, ca_arena_stream returns none. */
    int (*fence_record_on)(void *context, void *queue, void **fence);
    /* Makes what is submitted to a stream from now on wait for the fence, on the device. */
    int (*fence_join)(void *context, void *queue, void *fence);
    /* 1: passed, 0: not yet, negative: as above. */
    int (*fence_query)(void *context, void *fence);
    /* Waits at most `nanoseconds`, or without bound: CA_WAIT_OWN for the work of the memory's own
     * context, after which that of others is only asked about. 1: passed, 0: time is up, or others
     * are at work. */
    int (*fence_wait)(void *context, void *fence, uint64_t nanoseconds);
    /* Also when the context was destroyed: it must do without. */
    void (*fence_release)(void *context, void *fence);

    /* Waits for everything submitted so far to the memory's own context, and with `all` for all
     * that such a fence covers. -EAGAIN where others may still be at the memory. */
    int (*synchronize)(void *context, bool all);

    /* Asks all that cache memory on this device (other arenas, the driver's own pool) to give back
     * what is idle. Returns the bytes released. May be NULL. */
    size_t (*reclaim)(void *context, size_t bytes);

    /* The address of a block's record that is in an index is its address no more. Called
     * with the arena's lock held: it takes locks of a higher rank and no others, and makes no
     * driver call. NULL where no record is put into an index. */
    void (*forget)(ca_record_t *record);
    /* The same, and as that is called, of every block of an arena that goes: the record is about to
     * read as zeros. */
    void (*end)(ca_record_t *record);

    const ca_pages_t *pages; /* NULL where there are none */
} ca_upstream_t;

/* The pool's own way to the table: each asserts that no lock is held, and counts. A page that is
 * made or mapped counts as an allocation upstream, one that is dropped and a row that is unmapped
 * as a free. */
#define CA_UPSTREAM_CALL(type, name, parameters, ...)                                              \
    static inline type ca_upstream_##name parameters                                               \
    {                                                                                              \
        ca_lock_assert_none("upstream " #name);                                                    \
        __VA_ARGS__;                                                                               \
    }
#define CA_UPSTREAM const ca_upstream_t *upstream, void *context

CA_UPSTREAM_CALL(int, alloc, (CA_UPSTREAM, size_t bytes, uint64_t *at), ca_count(upstream_allocs);
                 return upstream->alloc(context, bytes, at))
CA_UPSTREAM_CALL(int, free, (CA_UPSTREAM, uint64_t at, size_t bytes, ca_free_t how),
                 ca_count(upstream_frees);
                 return upstream->free(context, at, bytes, how))
CA_UPSTREAM_CALL(size_t, available, (CA_UPSTREAM),
                 return upstream->available ? upstream->available(context) : SIZE_MAX)
CA_UPSTREAM_CALL(int, fence_record_on, (CA_UPSTREAM, void *queue, void **fence),
                 ca_count(fence_records);
                 return upstream->fence_record_on(context, queue, fence))
CA_UPSTREAM_CALL(int, fence_join, (CA_UPSTREAM, void *queue, void *fence), ca_count(fence_joins);
                 return upstream->fence_join(context, queue, fence))
CA_UPSTREAM_CALL(int, fence_query, (CA_UPSTREAM, void *fence), ca_count(fence_queries);
                 return upstream->fence_query(context, fence))
CA_UPSTREAM_CALL(int, fence_wait, (CA_UPSTREAM, void *fence, uint64_t ns), ca_count(fence_waits);
                 return upstream->fence_wait(context, fence, ns))
CA_UPSTREAM_CALL(void, fence_release, (CA_UPSTREAM, void *fence),
                 upstream->fence_release(context, fence))
CA_UPSTREAM_CALL(int, synchronize, (CA_UPSTREAM, bool all), ca_count(fence_waits);
                 return upstream->synchronize(context, all))
CA_UPSTREAM_CALL(size_t, reclaim, (CA_UPSTREAM, size_t bytes),
                 return upstream->reclaim ? upstream->reclaim(context, bytes) : 0)
CA_UPSTREAM_CALL(size_t, page_unit, (CA_UPSTREAM),
                 return upstream->pages ? upstream->pages->unit(context) : 0)
CA_UPSTREAM_CALL(int, reserve, (CA_UPSTREAM, size_t bytes, uint64_t *at),
                 return upstream->pages->reserve(context, bytes, at))
CA_UPSTREAM_CALL(void, unreserve, (CA_UPSTREAM, uint64_t at, size_t bytes),
                 upstream->pages->unreserve(context, at, bytes))
CA_UPSTREAM_CALL(int, make, (CA_UPSTREAM, size_t bytes, uint64_t *handle),
                 ca_count(upstream_allocs);
                 return upstream->pages->make(context, bytes, handle))
CA_UPSTREAM_CALL(void, drop, (CA_UPSTREAM, uint64_t handle), ca_count(upstream_frees);
                 upstream->pages->drop(context, handle))
CA_UPSTREAM_CALL(int, map, (CA_UPSTREAM, uint64_t at, const ca_page_t *pages, size_t count),
                 ca_count_add(upstream_allocs, count);
                 return upstream->pages->map(context, at, pages, count))
CA_UPSTREAM_CALL(int, unmap, (CA_UPSTREAM, uint64_t at, size_t bytes), ca_count(upstream_frees);
                 return upstream->pages->unmap(context, at, bytes))

int ca_upstream_fence_record(CA_UPSTREAM, bool all, void **fence);

#endif
