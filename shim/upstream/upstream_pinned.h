/* The pool's upstream for pinned host memory: memory from cuMemHostAlloc, fences as for device
 * memory (shim/upstream/fences.c): they cover every living context, and so does pinned memory's
 * use. */
#ifndef CA_SHIM_UPSTREAM_UPSTREAM_PINNED_H
#define CA_SHIM_UPSTREAM_UPSTREAM_PINNED_H

#include "pool/upstream.h"
#include "shim/cuda/contexts.h"

/* By the flags that the memory is obtained with. The context argument of its functions is a
 * ca_context_t. */
extern const ca_upstream_t ca_upstream_pinned[CA_PINNED_KINDS];

#endif
