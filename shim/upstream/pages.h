/* The pool's source of virtual memory (ca_pages_t of pool/upstream.h): makes and maps the physical
 * memory of expandable segments by the driver's virtual memory management. The context argument of
 * its functions is a ca_context_t; results are 0 or a negative errno, sizes bytes. From any thread,
 * with no lock held. */
#ifndef CA_SHIM_UPSTREAM_PAGES_H
#define CA_SHIM_UPSTREAM_PAGES_H

#include "pool/upstream.h"
#include "shim/cuda/contexts.h"

extern const ca_pages_t ca_pages_cuda;

/* Opens the pages that ranges of the context hold, and all later ones, to the device. Returns the
 * driver's error where that fails. */
CUresult ca_pages_open_to(ca_context_t *context, CUdevice device);

void ca_pages_reset_after_fork(void);

#endif
