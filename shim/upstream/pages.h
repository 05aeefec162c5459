/* Physical memory and its addresses (the pool's ca_pages_t) by the driver's virtual memory
 * management. The context argument is a ca_context_t. */
#ifndef CA_SHIM_UPSTREAM_PAGES_H
#define CA_SHIM_UPSTREAM_PAGES_H

#include "pool/upstream.h"
#include "shim/cuda/contexts.h"

extern const ca_pages_t ca_pages_cuda;

/* What ranges of the context hold, and are going to hold, is open to the device from now on. The
 * driver's error where it is not. */
CUresult ca_pages_open_to(ca_context_t *context, CUdevice device);

void ca_pages_reset_after_fork(void);

#endif
