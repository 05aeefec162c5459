/* Physical memory and its addresses (the pool's ca_pages_t) by the driver's virtual memory
 * management. The context argument is a ca_context_t. */
#ifndef CA_SHIM_PAGES_H
#define CA_SHIM_PAGES_H

#include "pool/upstream.h"

extern const ca_pages_t ca_pages_cuda;

void ca_pages_reset_after_fork(void);

#endif
