/* Totals of allocations by call stack, thread, device and kind: what reports are made of.
 *
 * A hash table in mapped memory that grows with the number of different groups. Not thread-safe:
 * the owner guards it. All zero is an empty one. */
#ifndef CA_REGISTRY_TABLE_GROUPS_H
#define CA_REGISTRY_TABLE_GROUPS_H

#include <stddef.h>
#include <stdint.h>
#include "registry/table/registry.h"

typedef struct ca_group {
    uint32_t stack;
    uint32_t thread;
    uint8_t device;
    uint8_t kind;
    uint64_t count; /* 0: a free entry of the hash table */
    uint64_t bytes;
    uint64_t smallest, largest; /* bytes of one */
    uint64_t first, last;       /* sequence numbers of the earliest and the latest */
    uint64_t stream, stream_at; /* of the latest that was given one, and its sequence number */
    uint64_t temporaries;       /* see registry/table/allocated.h; not counted here */
} ca_group_t;

typedef struct ca_groups {
    ca_group_t *entries;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
    ca_registry_total_t total; /* of everything added, with a group or without */
} ca_groups_t;

/* Counts a record. Without host memory for a new group it is in the total alone. */
void ca_groups_add(ca_groups_t *groups, const ca_allocation_t *record);

/* The group that such a record is counted in, or NULL. */
ca_group_t *ca_groups_find(const ca_groups_t *groups, const ca_allocation_t *record);

/* Moves the groups to the first `count` entries. Nothing can be added any more. */
void ca_groups_pack(ca_groups_t *groups);

/* Makes `copy` the same as `groups`. 0 or -ENOMEM, and `copy` is then empty. */
int ca_groups_copy(ca_groups_t *copy, const ca_groups_t *groups);

/* Gives the memory back; the groups are then empty. */
void ca_groups_free(ca_groups_t *groups);

#endif
