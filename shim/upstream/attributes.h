/* Attributes of the pool's memory: those that a program sets on it and that must not stay with it
 * when it is reused, and its ranges. */
#ifndef CA_SHIM_UPSTREAM_ATTRIBUTES_H
#define CA_SHIM_UPSTREAM_ATTRIBUTES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"

extern _Atomic size_t ca_attributes_marks; /* written under a lock of its own */

/* Whether any memory of ours has such an attribute now. */
static inline bool ca_attributes_any(void)
{
    return atomic_load_explicit(&ca_attributes_marks, memory_order_relaxed) != 0;
}

/* The allocation at `address` is being freed: SYNC_MEMOPS, which the program set, is unset. */
void ca_attributes_clear(uint64_t address);

/* The context with this number was destroyed, and its memory with it. */
void ca_attributes_drop_context(const ca_context_t *context);

void ca_attributes_reset_after_fork(void);

/* The live allocation of the pool's that an address is in. False: in none. */
bool ca_address_find(uint64_t address, ca_allocation_t *record);

/* The same, where its range is its own and not its segment's: of pinned memory, and of memory in an
 * expandable segment. */
bool ca_address_range_own(uint64_t address, ca_allocation_t *record);

#endif
