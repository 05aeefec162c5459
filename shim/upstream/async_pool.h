/* The pool of the driver's stream-ordered allocator that serves one context (backend:async), and a
 * stream for its allocations. A ca_async_pool_t belongs to its back end
 * (shim/upstream/backend_async.c). Bytes; answers are the driver's errors. */
#ifndef CA_SHIM_UPSTREAM_ASYNC_POOL_H
#define CA_SHIM_UPSTREAM_ASYNC_POOL_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

typedef struct ca_async_pool {
    CUmemoryPool pool;
    CUstream allocs; /* carries allocations alone, and waits for nothing */
} ca_async_pool_t;

/* Whether the driver has all functions that this needs. From any thread. */
bool ca_async_pool_possible(void);

/* Makes a pool that keeps freed memory, and tries it out: 1; 0: not now (a stream is captured, no
 * memory); -1: never. The caller destroys what was made in any case. The context has been entered.
 */
int ca_async_pool_make(ca_context_t *context, ca_async_pool_t *pool);
void ca_async_pool_destroy(ca_async_pool_t *pool);

/* Allocates memory that can be used at once. The context has been entered. */
CUresult ca_async_pool_alloc(const ca_async_pool_t *pool, CUdeviceptr *address, size_t bytes);

/* The program has freed memory in a stream's order; or makes graphs, whose launches may contain
 * such frees that no wrapper sees. From any thread. */
void ca_async_pool_note_free(void);
void ca_async_pool_note_graph(void);

/* Whether an allocation may wait, for such frees of the program's that are not done. Enters
 * contexts. */
bool ca_async_pool_may_wait(ca_context_t *context);

void ca_async_pool_reset_after_fork(void);

#endif
