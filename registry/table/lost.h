/* What was alive when its context was destroyed. Its records are removed, since the addresses may
 * come back at once; their groups stay for the leak report. Thread-safe. */
#ifndef CA_REGISTRY_TABLE_LOST_H
#define CA_REGISTRY_TABLE_LOST_H

#include <stddef.h>
#include "registry/table/groups.h"
#include "registry/table/registry.h"

/* Counts `dropped`, and groups the `count` records that were kept of it. */
void ca_lost_add(ca_registry_total_t dropped, const ca_allocation_t *records, size_t count);

/* Copies the groups, for ca_groups_free. 0, -ENOMEM, or -EBUSY when another thread, or the very
 * frame that a signal interrupted, stays in the middle of adding some. */
int ca_lost_copy(ca_groups_t *groups);

void ca_lost_reset_after_fork(void);

#endif
