/* The pool of the driver's stream-ordered allocator that serves one context (backend:async), with
 * two streams of our own. */
#ifndef CA_SHIM_ASYNC_POOL_H
#define CA_SHIM_ASYNC_POOL_H

#include <stdbool.h>
#include "shim/contexts.h"

typedef struct ca_async_pool {
    CUmemoryPool pool;
    CUstream allocs; /* has nothing on it but allocations, and waits for nothing */
    CUstream frees;  /* waits for what the frees on it wait for */
} ca_async_pool_t;

/* Whether the driver has all functions that this needs. */
bool ca_async_pool_possible(void);

/* Makes a pool that keeps what is freed, and tries it out; 1, 0 for not now (a stream is captured,
 * no memory), -1 for never. What was made is to be destroyed in any case. In the context. */
int ca_async_pool_make(ca_context_t *context, ca_async_pool_t *pool);
void ca_async_pool_destroy(ca_async_pool_t *pool);

/* Memory that can be used at once. In the context. */
CUresult ca_async_pool_alloc(const ca_async_pool_t *pool, CUdeviceptr *address, size_t bytes);

/* Bytes that could be allocated now, were they not in pieces. Enters the context. */
size_t ca_async_pool_room(ca_context_t *context, const ca_async_pool_t *pool);

#endif
