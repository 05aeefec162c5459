/* See fence_order.h. */
#include "pool/fence/fence_order.h"

_Atomic uint64_t ca_fence_last;
_Thread_local ca_fence_freed_t ca_fence_freed[CA_FENCE_CONTEXTS];
