/* The last records that were taken out of the table, so that an invalid free is reported with what
 * was there: a ring, overwritten as it goes. Thread-safe, no lock; safe anywhere. */
#ifndef CA_REGISTRY_TABLE_FREED_H
#define CA_REGISTRY_TABLE_FREED_H

#include <stdbool.h>
#include <stdint.h>
#include "registry/table/registry.h"

#define CA_FREED_MOST 4096u /* records */
#define CA_FREED_FEW 256u   /* that many are kept unless more are asked for */

typedef struct ca_freed {
    ca_allocation_t record;
    uint32_t stack;  /* of the free; 0 where it was not noted */
    uint32_t thread; /* that freed; 0 for the same */
} ca_freed_t;

/* How many are kept from now on, CA_FREED_MOST at most. Before any is noted. */
void ca_freed_keep(unsigned records);

/* A record was taken out, and its memory has not gone back yet: the thread that is given the
 * address next comes later. */
void ca_freed_note(const ca_allocation_t *record, uint32_t stack, uint32_t thread);

/* The latest record whose bytes `address` lies in. False where none is kept. */
bool ca_freed_find(uint64_t address, ca_freed_t *freed);

void ca_freed_reset_after_fork(void);

#endif
