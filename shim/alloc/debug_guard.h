/* The guard behind an allocation: what is wrong with it, and the check of all guards at the end. */
#ifndef CA_SHIM_ALLOC_DEBUG_GUARD_H
#define CA_SHIM_ALLOC_DEBUG_GUARD_H

#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/cuda/cuda_decls.h"
#include "shim/cuda/life_state.h"

typedef enum { CA_GUARD_FREE, CA_GUARD_EXIT, CA_GUARD_CONTEXT } ca_guard_when_t;

/* Reports where `guard`, a copy of what lies behind the allocation, was written to, and when that
 * was found: as the caller frees it, at exit, before its context may be destroyed. With no lock
 * held; may wait for a second. */
void ca_guard_check(const ca_allocation_t *record, const unsigned char *guard,
                    ca_guard_when_t when);

/* A guard was made: all that are there are checked when the process exits. */
void ca_guard_made(void);

/* The context may be about to be destroyed: looks at what is alive in it. With no lock held; waits
 * for its work, for a second at most. */
void ca_guard_inspect(CUcontext handle);
static inline void ca_guard_before_end(CUcontext handle)
{
    /* Before the first allocation another thread may be reading the options right now. */
    if (atomic_load_explicit(&ca_life_state, memory_order_acquire) == CA_LIFE_ACTIVE &&
        __builtin_expect(ca_options.debug & CA_DEBUG_REDZONE, 0))
        ca_guard_inspect(handle);
}

#endif
