/* backend:async: plain device memory from the driver's own stream-ordered allocator, by an explicit
 * pool for each context that keeps freed memory. The program's own pools are not touched. The
 * context's entry owns the back end. Bytes. From any thread, with no lock held. */
#ifndef CA_SHIM_UPSTREAM_BACKEND_ASYNC_H
#define CA_SHIM_UPSTREAM_BACKEND_ASYNC_H

#include <stdbool.h>
#include "pool/arena.h"
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"

/* Serves `bytes`, which the caller tracks on `stream`: by that a free knows where they came from
 * (ca_backend_async_gave). False when cuMemAlloc has to: another back end is in use, the
 * driver lacks something, a stream is being captured, the context's memory is open to peers, or
 * there is no memory left even after all that was freed before has come back. */
bool ca_backend_async_alloc(ca_context_t *context, CUdeviceptr *address, size_t bytes,
                            CUstream *stream);

/* Takes back what could not be tracked. */
void ca_backend_async_untracked(ca_context_t *context, CUdeviceptr address);

/* Whether the memory of a record, which has been erased, came from this back end. */
bool ca_backend_async_gave(const ca_allocation_t *record);

/* The plain free: the memory is handed out again after all work submitted before on any context.
 * Does not wait for that. An error means that the driver would have refused: the caller then
 * restores the record. */
CUresult ca_backend_async_free(const ca_allocation_t *record);

/* Whether `address` was freed, and is not released yet. */
bool ca_backend_async_holds(uint64_t address);

/* Bytes that the pool of a context keeps for later. */
size_t ca_backend_async_idle(ca_context_t *context);

/* Releases them to the device. Where there are none, with CA_TRIM_SHORTAGE, the driver's own pool
 * is trimmed, or work in flight is waited for, as before an out-of-memory. Returns the bytes
 * released. */
size_t ca_backend_async_trim(ca_context_t *context, ca_trim_t how);

/* Peer access: `device` reaches what was allocated on the context so far; later allocations come
 * from cuMemAlloc. NULL for a context without an entry: then that holds for every context. */
void ca_backend_async_open_to(ca_context_t *context, CUdevice device);

/* The context is destroyed, and its streams and events with it. */
void ca_backend_async_destroyed(ca_context_t *context);

void ca_backend_async_reset_after_fork(void);

#endif
