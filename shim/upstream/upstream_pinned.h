/* The pool's source of pinned host memory (pool/upstream.h) over the driver: segments from
 * cuMemHostAlloc, fences as for device memory (shim/upstream/fences.h), but of every living
 * context, since any of them may use pinned memory. Results are 0 or a negative errno, sizes bytes.
 * From any thread, with no lock held. */
#ifndef CA_SHIM_UPSTREAM_UPSTREAM_PINNED_H
#define CA_SHIM_UPSTREAM_UPSTREAM_PINNED_H

#include "pool/upstream.h"
#include "shim/cuda/contexts.h"

/* Indexed by the flags of cuMemHostAlloc. The context argument of the functions is a ca_context_t.
 */
extern const ca_upstream_t ca_upstream_pinned[CA_PINNED_KINDS];

#endif
