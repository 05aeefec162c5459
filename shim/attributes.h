/* Attributes that a program sets on memory and that must not stay with it when it is reused. */
#ifndef CA_SHIM_ATTRIBUTES_H
#define CA_SHIM_ATTRIBUTES_H

#include <stdint.h>

/* The allocation at `address` is being freed: SYNC_MEMOPS, which the program set, is unset. */
void ca_attributes_clear(uint64_t address);

void ca_attributes_reset_after_fork(void);

#endif
