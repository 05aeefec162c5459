/* backend:async: plain device memory from the driver's own stream-ordered allocator, by an explicit
 * pool for each context that keeps what is freed. The program's own pools are not touched. */
#ifndef CA_SHIM_UPSTREAM_BACKEND_ASYNC_H
#define CA_SHIM_UPSTREAM_BACKEND_ASYNC_H

#include <stdbool.h>
#include "pool/arena.h"
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"

/* Serves `bytes` and tracks them. False when cuMemAlloc has to: another back end is in use, the
 * driver lacks something, a stream is being captured, the context's memory is open to peers, or
 * there is no memory left even after all that was freed before has come back. */
bool ca_backend_async_alloc(ca_context_t *context, CUdeviceptr *address, size_t bytes);

/* Whether the memory of a record, which has been erased, came from there. */
bool ca_backend_async_gave(const ca_allocation_t *record);

/* Takes it back, for the plain free: it is handed out again after all work submitted before on any
 * context. Does not wait for that. An error means that the driver would have refused: put the
 * record back then. */
CUresult ca_backend_async_free(const ca_allocation_t *record);

/* Whether `address` was freed, and the driver does not know yet. */
bool ca_backend_async_holds(uint64_t address);

/* Bytes that the pool of a context keeps for later. */
size_t ca_backend_async_idle(ca_context_t *context);

/* They go back to the device. Where there are none, with CA_TRIM_SHORTAGE, so does what the
 * driver's own pool keeps, or what work in flight lets go of, as before an out-of-memory. Returns
 * how many. */
size_t ca_backend_async_trim(ca_context_t *context, ca_trim_t how);

/* Peer access: `device` is to reach what was allocated on the context so far; what comes after this
 * is cuMemAlloc's. NULL for a context without an entry: what comes after is so on all. */
void ca_backend_async_open_to(ca_context_t *context, CUdevice device);

/* The context is destroyed, and its streams and events with it. */
void ca_backend_async_destroyed(ca_context_t *context);

void ca_backend_async_reset_after_fork(void);

#endif
