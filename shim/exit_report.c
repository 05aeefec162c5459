#include "shim/exit_report.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "include/cachealloc.h"
#include "config/counters.h"
#include "config/log.h"
#include "config/mem.h"
#include "config/options.h"
#include "config/out.h"
#include "registry/registry.h"
#include "registry/report.h"
#include "registry/stack.h"
#include "shim/totals.h"

static void write_stats(ca_out_t *out)
{
    ca_arena_stats_t pool, pinned;
    ca_registry_total_t live = ca_registry_total();
    size_t contexts;
    bool complete = ca_totals(&pool, &contexts);
    complete &= ca_totals_pinned(&pinned);
#define ROW(label, value) ca_out_printf(out, "  %-36s %16llu\n", label, (unsigned long long)(value))
    ca_out_printf(out, "cachealloc[%d]: statistics\n", (int)getpid());
#define CA_COUNTER(name, label) ROW(label, ca_counter_read(name));
#include "config/counters.def"
#undef CA_COUNTER
    ROW("live allocations", live.count);
    ROW("live bytes requested", live.bytes);
    ROW("live bytes requested, peak", ca_registry_peak_bytes());
    ROW("live bytes in blocks", pool.live_bytes);
    ROW("live bytes in blocks, peak", pool.live_peak);
    ROW("pending bytes", pool.pending_bytes);
    ROW("ready bytes", pool.ready_bytes);
    ROW("reserved bytes", pool.reserved_bytes);
    ROW("reserved bytes, peak", pool.reserved_peak);
    ROW("segments", pool.segments);
    ROW("blocks", pool.blocks);
    ROW("pinned bytes in blocks", pinned.live_bytes);
    ROW("pinned bytes reserved", pinned.reserved_bytes);
    ROW("pinned bytes reserved, peak", pinned.reserved_peak);
    ROW("contexts", contexts);
    ROW("call stacks", ca_stack_count());
    ROW("host bytes of our own", ca_mem_mapped());
#undef ROW
    ca_out_printf(out, "  %-36s %16s\n", "call stacks by", ca_stack_unwinder());
    if (!complete)
        ca_out_printf(out, "  (incomplete: an arena was in use)\n");
}

/* %p is the process id, %% a percent sign. */
static void expand_path(const char *pattern, char *path, size_t bytes)
{
    size_t used = 0;
    for (const char *c = pattern; *c && used + 24 < bytes; c++) {
        if (c[0] == '%' && c[1] == 'p') {
            used += (size_t)snprintf(path + used, bytes - used, "%d", (int)getpid());
            c++;
        } else {
            if (c[0] == '%' && c[1] == '%')
                c++;
            path[used++] = *c;
        }
    }
    path[used] = '\0';
}

/* The file is made only when there is something to report. */
static int open_report(void)
{
    char path[CA_STRING_MAX + 32];
    if (strcmp(ca_options.leak_report, "stderr") == 0)
        return STDERR_FILENO;
    expand_path(ca_options.leak_report, path, sizeof(path));
    /* Links are not followed (/dev/stdout is one that is meant); a FIFO that nobody reads must not
     * hold up the exit. */
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK;
    int fd = open(path, strncmp(path, "/dev/", 5) == 0 ? flags : flags | O_NOFOLLOW, 0600);
    if (fd >= 0)
        return fd;
    ca_warn("leak_report: cannot write %s (%m): the report goes to stderr", path);
    return STDERR_FILENO;
}

void ca_exit_report(void)
{
    static ca_out_t out; /* 8 KiB that need not be on the stack of whoever calls exit */
    if (strcmp(ca_options.leak_report, "off") != 0 &&
        (ca_registry_total().count > 0 || ca_registry_lost().count > 0)) {
        ca_report_options_t options = {ca_options.leak_min, ca_options.leak_max};
        int fd = open_report();
        ca_out_open(&out, fd);
        ca_report_leaks(&out, &options);
        int result = ca_out_flush(&out);
        if (result != 0)
            ca_warn("leak_report: the report is not complete: %s", strerror(-result));
        if (fd != STDERR_FILENO)
            close(fd);
    }
    if (ca_options.stats == CA_STATS_EXIT) {
        ca_out_open(&out, STDERR_FILENO);
        write_stats(&out);
        ca_out_flush(&out);
    }
}
