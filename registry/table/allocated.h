/* All that was ever allocated, freed or not, by call stack, and how much of it was temporary: freed
 * by the thread that allocated it, before that thread allocated again. Counted while the history is
 * on (base/history.h), where every call takes a lock anyway: the fast path has no place for it.
 * Thread-safe. */
#ifndef CA_REGISTRY_TABLE_ALLOCATED_H
#define CA_REGISTRY_TABLE_ALLOCATED_H

#include "registry/table/groups.h"

/* The calling thread allocated, or freed, what the record says. Its sequence number need not be
 * set. With none of our locks held. */
void ca_allocated_add(const ca_allocation_t *record);
void ca_allocated_freed(const ca_allocation_t *record);

/* Copies the groups, for ca_groups_free. 0, -ENOMEM, or -EBUSY when the very frame that a signal
 * interrupted counts. Without any they are empty. */
int ca_allocated_copy(ca_groups_t *groups);

void ca_allocated_reset_after_fork(void);

#endif
