/* Which stream-ordered allocations go through to the driver: those of a program that has customised
 * the pool that they come from, and of contexts that it created. */
#ifndef CA_SHIM_UPSTREAM_MEMPOOLS_H
#define CA_SHIM_UPSTREAM_MEMPOOLS_H

#include <stdbool.h>
#include <stddef.h>
#include "shim/cuda/contexts.h"

/* Whether memory of this context may stand for that of the device's current memory pool: it is the
 * driver's default one, nothing was ever set on that but high-water marks, and the context is a
 * primary one. The pool's memory goes with its context, the driver's outlives one that is destroyed
 * (tests/gpu/results: "What the H200 said"). The device has pools at all, or the call is not
 * supported, as without us: the driver is asked, once for each. */
bool ca_mempool_served(const ca_context_t *context);

/* The program has a pool of its own for the device by now: what the cache holds is memory beside
 * that. It goes back when the pool is chosen; where some was still in use or in flight then, with
 * later allocations, before the driver is asked for them. */
void ca_mempool_before_driver(const ca_context_t *context);

/* Stream-ordered memory of the cache was freed. */
void ca_mempool_freed(const ca_context_t *context);

/* The device whose default pool it is; CU_DEVICE_INVALID for any other pool. */
CUdevice ca_mempool_device(CUmemoryPool pool);

/* Bytes that the pool has and that are not in use, as far as the driver tells; and gives them back,
 * as many as that says. A context of its device has been entered. */
size_t ca_mempool_kept(CUmemoryPool pool);
size_t ca_mempool_trim(CUmemoryPool pool);

#endif
