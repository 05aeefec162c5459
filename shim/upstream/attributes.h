/* Attributes that a program sets on memory and that must not stay with it when it is reused. */
#ifndef CA_SHIM_UPSTREAM_ATTRIBUTES_H
#define CA_SHIM_UPSTREAM_ATTRIBUTES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern _Atomic size_t ca_attributes_marks; /* written under a lock of its own */

/* Whether any memory of ours has such an attribute now. */
static inline bool ca_attributes_any(void)
{
    return atomic_load_explicit(&ca_attributes_marks, memory_order_relaxed) != 0;
}

/* The allocation at `address` is being freed: SYNC_MEMOPS, which the program set, is unset. */
void ca_attributes_clear(uint64_t address);

/* The context with this number is gone, and its memory with it. */
void ca_attributes_drop_context(uint16_t context);

void ca_attributes_reset_after_fork(void);

#endif
