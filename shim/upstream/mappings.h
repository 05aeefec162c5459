/* Which memory of cuMemCreate is mapped where. It lives for as long as a mapping of it does, though
 * its handle was released, and so does its record: under the handle's key first, then under a key
 * of ours, as the driver may give the handle's number to other memory.
 *
 * Keys are those of the registry. No call is made under a lock of ours. */
#ifndef CA_SHIM_UPSTREAM_MAPPINGS_H
#define CA_SHIM_UPSTREAM_MAPPINGS_H

#include <stddef.h>
#include <stdint.h>
#include "registry/table/registry.h"

/* Memory that the driver has mapped. What is not tracked is not followed. */
void ca_mappings_add(uint64_t address, size_t bytes, uint64_t key);

/* What lay in the range is unmapped: records go with the last mapping. */
void ca_mappings_remove(uint64_t address, size_t bytes);

/* The last reference of a handle is about to go, and its record was taken out of the registry: puts
 * it back under a key of ours where the memory is mapped. Returns that key, or 0. */
uint64_t ca_mappings_keep(const ca_allocation_t *record);

/* The driver did not let the handle go after all. */
void ca_mappings_restore(uint64_t kept, uint64_t key);

/* The program got a handle of what is mapped at the address: one reference more, or one again. */
void ca_mappings_retain(uint64_t address, uint64_t key);

void ca_mappings_reset_after_fork(void);

#endif
