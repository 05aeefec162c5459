/* Where reuse in order (pool/fence/order.h) may begin, and what ends it. */
#ifndef CA_SHIM_UPSTREAM_ORDER_H
#define CA_SHIM_UPSTREAM_ORDER_H

#include "shim/cuda/contexts.h"

/* The pool has made an arena for this context: reuse in order begins there, or ends where another
 * context has one. From any thread, with no lock held. */
void ca_order_consider(ca_context_t *context);

#endif
