/* The leak report.
 *
 * A snapshot is folded into groups, the groups are sorted in place. Both live in mapped memory:
 * thousands of leaks must not go through the host's heap at exit. Only the names of the listed
 * frames do (symbols.c), and only as many groups as are listed are named. */
#include "registry/report.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "config/cancel.h"
#include "registry/groups.h"
#include "registry/lost.h"
#include "registry/stack.h"
#include "registry/symbols.h"

#define NAME_BYTES 1024

typedef bool ca_before_t(const ca_group_t *a, const ca_group_t *b);

/* Fills `groups` with the live records' groups. 0 or -ENOMEM. */
static int collect(ca_groups_t *groups, unsigned *busy)
{
    ca_record_t *records;
    size_t count;
    memset(groups, 0, sizeof *groups);
    int result = ca_registry_snapshot(&records, &count, busy);
    for (size_t i = 0; i < count; i++)
        ca_groups_add(groups, &records[i]);
    ca_registry_snapshot_free(records, count);
    ca_groups_pack(groups);
    return result;
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

static void write_total(ca_out_t *out, const char *title, ca_groups_t *groups)
{
    const ca_group_t *entries = groups->entries;
    size_t stacks = 0;
    sort(groups, by_stack);
    for (size_t i = 0; i < groups->count; i++)
        if (entries[i].stack != 0 && (i == 0 || entries[i].stack != entries[i - 1].stack))
            stacks++;
    ca_out_printf(out, "%s: ", title);
    write_amount(out, groups->total.bytes, groups->total.count);
    ca_out_printf(out, ", %zu stacks\n", stacks);
}

static void write_places(ca_out_t *out, ca_groups_t *groups)
{
    const ca_group_t *entries = groups->entries;
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

static void write_header(ca_out_t *out, const char *rank)
{
    bool has_rank = rank && rank[0] != '\0';
    ca_out_printf(out, "cachealloc[%d]: leak report%s%s\n", (int)getpid(),
                  has_rank ? ", rank " : "", has_rank ? rank : "");
}

static void write_live(ca_out_t *out, ca_groups_t *groups, unsigned busy,
                       const ca_report_options_t *options)
{
    write_total(out, "LEAK SUMMARY", groups);
    if (busy != 0)
        ca_out_printf(out, "(incomplete: %u of %d shards were in use)\n", busy, CA_REGISTRY_SHARDS);
    write_places(out, groups);
    write_groups(out, groups, options);
}

static void write_lost(ca_out_t *out, const ca_report_options_t *options)
{
    ca_groups_t groups;
    int result = ca_lost_copy(&groups);
    if (result != 0)
        groups.total = ca_registry_lost();
    ca_groups_pack(&groups);
    write_total(out, "ALIVE WHEN THEIR CONTEXT WAS DESTROYED", &groups);
    if (result != 0)
        ca_out_printf(out, "(incomplete: these groups cannot be read: %s)\n", strerror(-result));
    write_groups(out, &groups, options);
    ca_groups_free(&groups);
}

long ca_report_leaks(ca_out_t *out, const ca_report_options_t *options)
{
    ca_groups_t groups;
    unsigned busy;
    int before = ca_cancel_hold(); /* libdw opens and reads files */
    long result = collect(&groups, &busy);
    ca_registry_total_t lost = ca_registry_lost();
    if (result == 0) {
        result = (long)(groups.total.count + lost.count);
        if (result != 0 || busy != 0) {
            write_header(out, options->rank);
            write_live(out, &groups, busy, options);
        }
        if (lost.count != 0)
            write_lost(out, options);
    }
    ca_groups_free(&groups);
    ca_cancel_resume(before);
    return result;
}
