/* The pool's source of pinned host memory (pool/upstream.h) over the driver: segments from
 * cuMemHostAlloc, fences as for device memory (shim/upstream/fences.h), but of every living
 * context, since any of them may use pinned memory. Results are 0 or a negative errno, sizes bytes.
 * From any thread, with no lock held. */
#ifndef CA_SHIM_UPSTREAM_UPSTREAM_PINNED_H
#define CA_SHIM_UPSTREAM_UPSTREAM_PINNED_H

#include <stdbool.h>
#include <stddef.h>
#include "pool/upstream.h"
#include "shim/cuda/contexts.h"

/* Indexed by the flags of cuMemHostAlloc. The context argument of the functions is a ca_context_t.
 */
extern const ca_upstream_t ca_upstream_pinned[CA_PINNED_KINDS];

/* The context's arena for `flags`; where it is missing it is made if `create` says so. */
ca_arena_t *ca_pinned_arena(ca_context_t *context, unsigned flags, bool create);

/* The context was destroyed, and its pinned memory with it. */
void ca_pinned_retire_begin(ca_context_t *context);
void ca_pinned_retire_end(ca_context_t *context);

/* As ca_arena_revive. */
bool ca_pinned_revive(ca_context_t *context);

/* Releases idle pinned memory of all contexts, until `bytes` are released. Returns the bytes
 * released: none while the device is at work. */
size_t ca_pinned_trim(size_t bytes);

#endif
