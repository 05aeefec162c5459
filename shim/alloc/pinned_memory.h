/* Pinned host memory from the pool: what driver and runtime hooks share. An arena for each
 * combination of flags, made at first use: memory keeps the flags that it was obtained with. */
#ifndef CA_SHIM_ALLOC_PINNED_MEMORY_H
#define CA_SHIM_ALLOC_PINNED_MEMORY_H

#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"
#include "shim/alloc/device_memory.h"

/* Serves `bytes` of pinned memory with `flags` (CU_MEMHOSTALLOC_*) from the pool of `context` and
 * tracks them. 0, -ENOMEM, or -EIO when the pool does not serve: flags that it does not know, a
 * context that is broken or not pooled. */
int ca_pinned_alloc(ca_context_t *context, unsigned flags, size_t bytes, ca_device_effort_t effort,
                    void **address);

/* Takes back what the pool served, as the plain free: `record` has been erased, ca_context_check
 * asked. Waits for the context's work, as that does, where too much would stay pinned. An error
 * means that the driver would have refused, device memory too: put the record back then. */
CUresult ca_pinned_free_plain(const ca_allocation_t *record);

#endif
