/* The program's own virtual memory: which memory of cuMemCreate is mapped where. Such memory lives
 * for as long as a mapping of it does, though its handle was released, and so does its allocation
 * record: under the handle's key first, then under a key of this module's, since the driver may use
 * the handle's number for other memory.
 *
 * Keys are those of the registry; addresses and bytes as in CUDA. From any thread, with no lock
 * held. */
#ifndef CA_SHIM_DRIVER_MAPPINGS_H
#define CA_SHIM_DRIVER_MAPPINGS_H

#include <stddef.h>
#include <stdint.h>
#include "registry/table/registry.h"

/* The driver has mapped the memory. Untracked memory is ignored. */
void ca_mappings_add(uint64_t address, size_t bytes, uint64_t key);

/* The range is unmapped: a record is erased with its last mapping. */
void ca_mappings_remove(uint64_t address, size_t bytes);

/* The last reference of a handle is about to be released, and its record was erased from the
 * registry: where the memory is mapped, adds it again under a key of this module's. Returns that
 * key, or 0. */
uint64_t ca_mappings_keep(const ca_allocation_t *record);

/* The driver has refused to release the handle. */
void ca_mappings_restore(uint64_t kept, uint64_t key);

/* The program got a handle of the memory that is mapped at the address: counts one more reference,
 * or the first one again. */
void ca_mappings_retain(uint64_t address, uint64_t key);

void ca_mappings_reset_after_fork(void);

#endif
