/* The pool of the driver's stream-ordered allocator that serves one context (backend:async), with
 * a stream of our own. */
#ifndef CA_SHIM_UPSTREAM_ASYNC_POOL_H
#define CA_SHIM_UPSTREAM_ASYNC_POOL_H

#include <stdbool.h>
#include "shim/cuda/contexts.h"

typedef struct ca_async_pool {
    CUmemoryPool pool;
    CUstream allocs; /* has nothing on it but allocations, and waits for nothing */
} ca_async_pool_t;

/* Whether the driver has all functions that this needs. */
bool ca_async_pool_possible(void);

/* Makes a pool that keeps what is freed, and tries it out; 1, 0 for not now (a stream is captured,
 * no memory), -1 for never. What was made is to be destroyed in any case. In the context. */
int ca_async_pool_make(ca_context_t *context, ca_async_pool_t *pool);
void ca_async_pool_destroy(ca_async_pool_t *pool);

/* Memory that can be used at once. In the context. */
CUresult ca_async_pool_alloc(const ca_async_pool_t *pool, CUdeviceptr *address, size_t bytes);

/* The program has given the driver a free in a stream's order; or makes graphs, whose launches may
 * have such frees and pass us unseen. */
void ca_async_pool_note_free(void);
void ca_async_pool_note_graph(void);

/* Whether that may wait, for such frees of the program's that are not done. Enters contexts. */
bool ca_async_pool_may_wait(ca_context_t *context);

void ca_async_pool_reset_after_fork(void);

#endif
