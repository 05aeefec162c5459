#include "registry/table/groups.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

#define LEAST_CAPACITY 64

static bool same(const ca_group_t *a, const ca_group_t *b)
{
    return a->stack == b->stack && a->thread == b->thread && a->device == b->device &&
           a->kind == b->kind;
}

/* The entry of the same group as `like`, or the free one where it belongs. */
static ca_group_t *probe(const ca_groups_t *groups, const ca_group_t *like)
{
    uint64_t key = (uint64_t)like->stack << 16 | (uint64_t)like->device << 8 | like->kind;
    size_t mask = groups->capacity - 1;
    key = (key ^ (uint64_t)like->thread << 32) * 0x9e3779b97f4a7c15u;
    for (size_t at = (key >> 24) & mask;; at = (at + 1) & mask) {
        ca_group_t *group = &groups->entries[at];
        if (group->count == 0 || same(group, like))
            return group;
    }
}

/* Doubles the table. Without memory the old one stays in use. */
static void grow(ca_groups_t *groups)
{
    ca_groups_t bigger = *groups;
    bigger.capacity = groups->capacity ? groups->capacity * 2 : LEAST_CAPACITY;
    bigger.entries = ca_mem_map(bigger.capacity * sizeof(ca_group_t));
    if (!bigger.entries)
        return;
    for (size_t i = 0; i < groups->capacity; i++)
        if (groups->entries[i].count != 0)
            *probe(&bigger, &groups->entries[i]) = groups->entries[i];
    ca_mem_unmap(groups->entries, groups->capacity * sizeof(ca_group_t));
    *groups = bigger;
}

/* Counts a record in its group. */
static void count_in(ca_group_t *group, const ca_allocation_t *record)
{
    uint64_t stream = ca_registry_stream(record);
    group->count++;
    group->bytes += record->bytes;
    if (record->bytes < group->smallest)
        group->smallest = record->bytes;
    if (record->bytes > group->largest)
        group->largest = record->bytes;
    if (record->sequence < group->first)
        group->first = record->sequence;
    if (record->sequence > group->last)
        group->last = record->sequence;
    if (stream != 0 && record->sequence >= group->stream_at) {
        group->stream = stream;
        group->stream_at = record->sequence;
    }
}

static ca_group_t group_of(const ca_allocation_t *record)
{
    return (ca_group_t){
        .stack = record->stack,
        .thread = record->thread,
        .device = (uint8_t)record->device,
        .kind = (uint8_t)record->kind,
        .smallest = UINT64_MAX,
        .first = UINT64_MAX,
    };
}

void ca_groups_add(ca_groups_t *groups, const ca_allocation_t *record)
{
    ca_group_t fresh = group_of(record);
    groups->total.count++;
    groups->total.bytes += record->bytes;
    if (groups->count * 2 >= groups->capacity)
        grow(groups);
    if (groups->count + 1 >= groups->capacity) /* one entry must stay free */
        return;
    ca_group_t *group = probe(groups, &fresh);
    if (group->count == 0) {
        *group = fresh;
        groups->count++;
    }
    count_in(group, record);
}

ca_group_t *ca_groups_find(const ca_groups_t *groups, const ca_allocation_t *record)
{
    ca_group_t like = group_of(record);
    ca_group_t *group = groups->capacity ? probe(groups, &like) : NULL;
    return group && group->count != 0 ? group : NULL;
}

void ca_groups_pack(ca_groups_t *groups)
{
    size_t packed = 0;
    for (size_t i = 0; packed < groups->count; i++)
        if (groups->entries[i].count != 0)
            groups->entries[packed++] = groups->entries[i];
}

int ca_groups_copy(ca_groups_t *copy, const ca_groups_t *groups)
{
    memset(copy, 0, sizeof *copy);
    if (groups->capacity != 0) {
        size_t bytes = groups->capacity * sizeof(ca_group_t);
        ca_group_t *entries = ca_mem_map(bytes);
        if (!entries)
            return -ENOMEM;
        memcpy(entries, groups->entries, bytes);
        *copy = *groups;
        copy->entries = entries;
    } else {
        copy->total = groups->total;
    }
    return 0;
}

void ca_groups_free(ca_groups_t *groups)
{
    ca_mem_unmap(groups->entries, groups->capacity * sizeof(ca_group_t));
    memset(groups, 0, sizeof *groups);
}
