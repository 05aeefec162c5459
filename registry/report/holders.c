#include "registry/report/holders.h"

#include <string.h>

#include "registry/stack/stack.h"

static bool is_pinned(const ca_allocation_t *record)
{
    return record->kind == CA_KIND_PINNED || record->kind == CA_KIND_REGISTERED;
}

static bool is_meant(const ca_allocation_t *record, unsigned device, bool host)
{
    if (host || is_pinned(record))
        return host && is_pinned(record);
    return record->device == device && record->kind != CA_KIND_EXTERNAL;
}

void ca_holders_read(ca_holders_t *holders, unsigned device, bool host)
{
    ca_allocation_t *records;
    size_t count;
    unsigned busy;
    memset(holders, 0, sizeof *holders);
    holders->incomplete = ca_registry_snapshot(&records, &count, &busy) != 0 || busy != 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_meant(&records[i], device, host))
            continue;
        records[i].thread = 0; /* stacks alone tell groups apart */
        ca_groups_add(&holders->groups, &records[i]);
        if (!records[i].owner)
            holders->unpooled += records[i].bytes;
    }
    ca_registry_snapshot_free(records, count);
    ca_groups_pack(&holders->groups);
}

void ca_holders_free(ca_holders_t *holders)
{
    ca_groups_free(&holders->groups);
}

void ca_holders_write_stack(uint32_t stack, ca_out_t *out, ca_symbols_t *symbols)
{
    uintptr_t frames[CA_STACK_MAX];
    uint32_t epoch = ca_stack_epoch(stack);
    size_t count = ca_stack_frames(stack, frames, CA_STACK_MAX);
    if (count == 0)
        ca_out_printf(out, "    (no call stack)\n");
    for (size_t i = 0; i < count; i++)
        ca_out_printf(out, "    %s\n", ca_symbols_frame(symbols, frames[i], epoch)->frame.text);
}

/* Moves the largest of the entries from `at` on to `at`; the earliest among equals. */
static void bring_largest(ca_groups_t *groups, size_t at)
{
    size_t best = at;
    for (size_t i = at + 1; i < groups->count; i++) {
        const ca_group_t *one = &groups->entries[i], *other = &groups->entries[best];
        if (one->bytes > other->bytes || (one->bytes == other->bytes && one->first < other->first))
            best = i;
    }
    ca_group_t swap = groups->entries[at];
    groups->entries[at] = groups->entries[best];
    groups->entries[best] = swap;
}

void ca_holders_write(ca_holders_t *holders, unsigned most, ca_out_t *out, ca_symbols_t *symbols)
{
    ca_groups_t *groups = &holders->groups;
    for (size_t i = 0; i < groups->count && i < most; i++) {
        bring_largest(groups, i);
        const ca_group_t *group = &groups->entries[i];
        ca_out_printf(out, "#%zu: %llu bytes in %llu allocations, %s memory\n", i + 1,
                      (unsigned long long)group->bytes, (unsigned long long)group->count,
                      ca_kind_name((ca_kind_t)group->kind));
        ca_holders_write_stack(group->stack, out, symbols);
    }
    if (groups->count > most)
        ca_out_printf(out, "(%zu more groups)\n", groups->count - most);
}
