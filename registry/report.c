/* The leak report.
 *
 * A snapshot is folded into groups with a hash table, the groups are sorted in place. Both live in
 * mapped memory: thousands of leaks must not go through the host's heap at exit. Only the names of
 * the listed frames do (symbols.c), and only as many groups as are listed are named. */
#include "registry/report.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "config/mem.h"
#include "registry/stack.h"
#include "registry/symbols.h"

#define NAME_BYTES 1024

typedef struct ca_group {
    uint32_t stack;
    uint8_t device;
    uint8_t kind;
    uint64_t count; /* 0: a free entry of the hash table */
    uint64_t bytes;
    uint64_t first; /* sequence number of its earliest allocation */
} ca_group_t;

typedef struct ca_groups {
    ca_group_t *entries;
    size_t capacity; /* a power of two */
    size_t count;
    ca_registry_total_t total;
} ca_groups_t;

typedef bool ca_before_t(const ca_group_t *a, const ca_group_t *b);

/* --- grouping --------------------------------------------------------------------------------- */

static ca_group_t *group_of(ca_groups_t *groups, const ca_record_t *record)
{
    uint64_t key = (uint64_t)record->stack << 16 | (uint64_t)record->device << 8 | record->kind;
    size_t mask = groups->capacity - 1;
    for (size_t at = (key * 0x9e3779b97f4a7c15u >> 24) & mask;; at = (at + 1) & mask) {
        ca_group_t *group = &groups->entries[at];
        if (group->count == 0) {
            group->stack = record->stack;
            group->device = (uint8_t)record->device;
            group->kind = (uint8_t)record->kind;
            group->first = record->sequence;
            groups->count++;
            return group;
        }
        if (group->stack == record->stack && group->device == record->device &&
            group->kind == record->kind)
            return group;
    }
}

/* Fills `groups` with the live records' groups, packed at its start. 0 or -ENOMEM. */
static int collect(ca_groups_t *groups)
{
    ca_record_t *records;
    size_t count;
    int result = ca_registry_snapshot(&records, &count);
    if (result != 0)
        return result;
    memset(groups, 0, sizeof *groups);
    groups->capacity = 16;
    while (groups->capacity < count * 2)
        groups->capacity *= 2;
    groups->entries = ca_mem_map(groups->capacity * sizeof(ca_group_t));
    for (size_t i = 0; groups->entries && i < count; i++) {
        ca_group_t *group = group_of(groups, &records[i]);
        group->count++;
        group->bytes += records[i].bytes;
        if (records[i].sequence < group->first)
            group->first = records[i].sequence;
        groups->total.count++;
        groups->total.bytes += records[i].bytes;
    }
    ca_registry_snapshot_free(records, count);
    if (!groups->entries)
        return -ENOMEM;
    size_t packed = 0;
    for (size_t i = 0; packed < groups->count; i++)
        if (groups->entries[i].count != 0)
            groups->entries[packed++] = groups->entries[i];
    return 0;
}

/* --- sorting ---------------------------------------------------------------------------------- */

/* The earlier group first among equals: an order that two runs of a program share, which
 * addresses and stack ids are not. */
static bool larger(const ca_group_t *a, const ca_group_t *b)
{
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes;
    if (a->count != b->count)
        return a->count > b->count;
    return a->first < b->first;
}

static bool by_stack(const ca_group_t *a, const ca_group_t *b)
{
    return a->stack < b->stack;
}

static bool by_device(const ca_group_t *a, const ca_group_t *b)
{
    return a->device != b->device ? a->device < b->device : a->kind < b->kind;
}

static void sift_down(ca_group_t *groups, size_t at, size_t count, ca_before_t *before)
{
    for (size_t child = at * 2 + 1; child < count; child = at * 2 + 1) {
        if (child + 1 < count && before(&groups[child], &groups[child + 1]))
            child++;
        if (!before(&groups[at], &groups[child]))
            return;
        ca_group_t swap = groups[at];
        groups[at] = groups[child];
        groups[child] = swap;
        at = child;
    }
}

/* Heap sort: qsort takes memory from the host's heap. */
static void sort(ca_groups_t *groups, ca_before_t *before)
{
    ca_group_t *entries = groups->entries;
    for (size_t i = groups->count / 2; i-- > 0;)
        sift_down(entries, i, groups->count, before);
    for (size_t end = groups->count; end-- > 1;) {
        ca_group_t swap = entries[0];
        entries[0] = entries[end];
        entries[end] = swap;
        sift_down(entries, 0, end, before);
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

static void write_amount(ca_out_t *out, uint64_t bytes, uint64_t count)
{
    ca_out_printf(out, "%llu bytes in %llu allocations", (unsigned long long)bytes,
                  (unsigned long long)count);
}

static void write_place(ca_out_t *out, const ca_group_t *group)
{
    ca_out_printf(out, "device %u, %s memory", group->device, ca_kind_name((ca_kind_t)group->kind));
}

static void write_summary(ca_out_t *out, ca_groups_t *groups)
{
    const ca_group_t *entries = groups->entries;
    size_t stacks = 0;
    sort(groups, by_stack);
    for (size_t i = 0; i < groups->count; i++)
        if (entries[i].stack != 0 && (i == 0 || entries[i].stack != entries[i - 1].stack))
            stacks++;
    ca_out_printf(out, "LEAK SUMMARY: ");
    write_amount(out, groups->total.bytes, groups->total.count);
    ca_out_printf(out, ", %zu stacks\n", stacks);

    sort(groups, by_device);
    for (size_t i = 0; i < groups->count;) {
        ca_group_t sum = entries[i];
        for (i++; i < groups->count && !by_device(&sum, &entries[i]); i++) {
            sum.count += entries[i].count;
            sum.bytes += entries[i].bytes;
        }
        ca_out_printf(out, "  ");
        write_place(out, &sum);
        ca_out_printf(out, ": ");
        write_amount(out, sum.bytes, sum.count);
        ca_out_printf(out, "\n");
    }
}

static void write_stack(ca_out_t *out, uint32_t stack, ca_symbols_t *symbols)
{
    uintptr_t frames[CA_STACK_MAX];
    char name[NAME_BYTES];
    size_t count = ca_stack_frames(stack, frames, CA_STACK_MAX);
    if (count == 0)
        ca_out_printf(out, "    (no call stack)\n");
    for (size_t i = 0; i < count; i++) {
        ca_symbols_name(symbols, frames[i], name, sizeof name);
        ca_out_printf(out, "    %s\n", name);
    }
}

/* Totals `count` groups that are not listed because of the option `reason`. */
static void write_omitted(ca_out_t *out, const ca_group_t *groups, size_t count, const char *reason,
                          size_t value)
{
    unsigned long long bytes = 0;
    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        bytes += groups[i].bytes;
    ca_out_printf(out, "(%zu more groups, %llu bytes, not listed: %s:%zu)\n", count, bytes, reason,
                  value);
}

static void write_groups(ca_out_t *out, ca_groups_t *groups, const ca_report_options_t *options)
{
    const ca_group_t *entries = groups->entries;
    size_t large = 0; /* groups that leak_min lets through: they come first */
    sort(groups, larger);
    while (large < groups->count && entries[large].bytes >= options->least_bytes)
        large++;
    size_t listed = large < options->most_groups ? large : options->most_groups;

    ca_symbols_t *symbols = ca_symbols_open();
    for (size_t i = 0; i < listed; i++) {
        ca_out_printf(out, "#%zu: ", i + 1);
        write_amount(out, entries[i].bytes, entries[i].count);
        ca_out_printf(out, ", ");
        write_place(out, &entries[i]);
        ca_out_printf(out, "\n");
        write_stack(out, entries[i].stack, symbols);
    }
    ca_symbols_close(symbols);
    write_omitted(out, entries + listed, large - listed, "leak_max", options->most_groups);
    write_omitted(out, entries + large, groups->count - large, "leak_min", options->least_bytes);
}

long ca_report_leaks(ca_out_t *out, const ca_report_options_t *options)
{
    ca_groups_t groups;
    int result = collect(&groups);
    if (result != 0)
        return result;
    if (groups.count != 0) {
        ca_out_printf(out, "cachealloc[%d]: leak report\n", (int)getpid());
        write_summary(out, &groups);
        write_groups(out, &groups, options);
    }
    ca_mem_unmap(groups.entries, groups.capacity * sizeof(ca_group_t));
    return (long)groups.total.count;
}
