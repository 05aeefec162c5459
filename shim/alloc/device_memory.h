/* Device memory from the pool: what driver and runtime hooks share. */
#ifndef CA_SHIM_ALLOC_DEVICE_MEMORY_H
#define CA_SHIM_ALLOC_DEVICE_MEMORY_H

#include <stdbool.h>
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"

typedef enum {
    CA_DEVICE_READY_ONLY, /* only memory that is ready now */
    CA_DEVICE_ANY,        /* the whole retry ladder */
} ca_device_effort_t;

/* Serves `bytes` from the arena of `context` and tracks them. 0, -ENOMEM, or -EIO when the arena no
 * longer serves. */
int ca_device_alloc(ca_context_t *context, size_t bytes, ca_device_effort_t effort,
                    CUdeviceptr *address);

/* The same in the order of `stream`, which the pool calls `order`. */
int ca_device_alloc_on(ca_context_t *context, ca_stream_t *order, CUstream stream, size_t bytes,
                       ca_device_effort_t effort, CUdeviceptr *address);

/* The same, tracked as another kind of device memory. */
int ca_device_alloc_kind(ca_context_t *context, ca_kind_t kind, size_t bytes,
                         ca_device_effort_t effort, CUdeviceptr *address);

/* Whether `limit` is what stands in the way of `bytes`: the user's wish, so the driver is not asked
 * then. Its refusals leave 0 in `address` (tests/gpu/results: codes_driver), and so does this one.
 */
bool ca_device_over_limit(ca_context_t *context, size_t bytes, CUdeviceptr *address);

/* Takes back the pooled block of `record`, which has been erased. An error means that the driver
 * would have refused, pinned memory for one, or is to be asked, since the address is not the pool's
 * any more (CUDA_ERROR_CONTEXT_IS_DESTROYED): put the record back then. */
CUresult ca_device_free(const ca_allocation_t *record);

/* The same by a call that never waits, behind the work of one stream alone, which is `user`'s.
 * NULL, or a stream of another context than the block's: behind all work, and where it is another
 * context's the real free, which does not wait for that, never gets it before. */
CUresult ca_device_free_on(const ca_allocation_t *record, ca_stream_t *order,
                           const ca_context_t *user);

/* The same behind all work of the context, whatever stream the memory was allocated on. */
CUresult ca_device_free_behind_all(const ca_allocation_t *record);

/* The same for the plain free, which waits with free_sync:true. The caller has asked
 * ca_context_check. */
CUresult ca_device_free_plain(const ca_allocation_t *record);

/* Whether an address without a record is in memory of the pool, so that it cannot be freed; and
 * whether one that has a record of pooled memory is the pool's no more. Both see through an end of
 * its context that is under way: ca_context_lost_address. Pinned memory needs neither: all that
 * cuMemFreeHost frees has a record, the latest of its address. */
bool ca_device_owns(CUdeviceptr address);
bool ca_device_lost(const ca_allocation_t *record);

#endif
