#include "shim/life/exit_output.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include "include/cachealloc.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/options.h"
#include "base/out.h"
#include "registry/journal/journal.h"
#include "registry/table/registry.h"
#include "registry/stack/stack.h"
#include "shim/life/dump_signal.h"
#include "shim/cuda/graph_memory.h"
#include "shim/life/report_destination.h"
#include "shim/life/metrics.h"
#include "shim/alloc/recorder.h"
#include "shim/upstream/pool_stats.h"
#include "shim/alloc/report_lock.h"

/* For a report that another thread is at: names of large programs take their time, and it would end
 * half written. A thread that calls _exit may have interrupted it. */
#define WAIT_MS 60000
#define QUICK_WAIT_MS 1000
#define QUICK_SIGNAL_WAIT_MS 10000 /* the thread that writes that one is none of the program's */

static _Atomic bool begun;  /* at the end of the process, once */
static _Atomic bool leaked; /* as it found */
static ca_out_t out;        /* 8 KiB that need not be on the stack of the thread that calls exit */

static void write_stats(void)
{
    ca_arena_stats_t pool, pinned;
    ca_registry_total_t live = ca_registry_total();
    size_t contexts;
    bool complete = ca_pool_stats(&pool, &contexts);
    complete &= ca_pool_stats_pinned(&pinned);
#define ROW(label, value)                                                                          \
    ca_out_printf(&out, "  %-36s %16llu\n", label, (unsigned long long)(value))
    ca_out_printf(&out, "cachealloc[%d]: statistics\n", (int)getpid());
#define CA_COUNTER(name, label) ROW(label, ca_counter_read(name));
#include "base/counters.def"
#undef CA_COUNTER
    ROW("live allocations", live.count);
    ROW("live bytes requested", live.bytes);
    ROW("live bytes requested, peak at most", ca_registry_peak_bytes());
    ROW("live bytes in blocks", pool.live_bytes);
    ROW("live bytes in blocks, peak", pool.live_peak);
    ROW("pending bytes", pool.pending_bytes);
    ROW("ready bytes", pool.ready_bytes);
    ROW("bytes kept for other processes", pool.exported_bytes);
    ROW("bytes kept for graphs", ca_graph_memory_bytes());
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
    ca_out_printf(&out, "  %-36s %16s\n", "call stacks by", ca_stack_unwinder());
    if (!complete)
        ca_out_printf(&out, "  (incomplete: an arena was in use)\n");
}

static void write_leaks(bool quick)
{
    atomic_store(&leaked, ca_report_write_at_exit(&out, quick) != 0);
}

/* What is live, as where the signal ends nothing. */
static void write_live(bool quick)
{
    (void)quick;
    int error = ca_report_dump(&out, "signal", NULL);
    if (error)
        ca_warn("dump_signal: no report: %s", strerror(-error));
}

/* The leak report alone needs the report lock. */
static void write_all(void (*write_report)(bool quick), bool quick, bool has_lock)
{
    if (has_lock)
        write_report(quick);
    else
        atomic_store(&leaked, ca_report_miss_at_exit() != 0);
    ca_recorder_write(&out);
    ca_journal_end();
    if (ca_options.stats == CA_STATS_EXIT) {
        ca_out_open(&out, ca_out_stderr());
        write_stats();
        ca_out_flush(&out);
    }
}

/* A second one waits for the first: it ends the process. */
static void report_once(void (*write_report)(bool quick), bool quick)
{
    ca_metrics_end(); /* whichever thread has the report lock */
    bool has_lock = ca_report_lock_take(quick ? QUICK_WAIT_MS : WAIT_MS);
    if (!atomic_exchange(&begun, true))
        write_all(write_report, quick, has_lock);
    if (has_lock)
        ca_report_lock_drop();
}

void ca_exit_output(bool quick)
{
    ca_dump_signal_end(quick ? QUICK_SIGNAL_WAIT_MS : WAIT_MS);
    report_once(write_leaks, quick);
}

void ca_exit_output_of_signal(void)
{
    report_once(write_live, false);
}

void ca_exit_output_leave_out(void)
{
    atomic_store(&begun, true);
}

bool ca_exit_output_leaked(void)
{
    return atomic_load(&leaked);
}

void ca_exit_output_reset_after_fork(void)
{
    atomic_store(&begun, false);
    atomic_store(&leaked, false);
}
