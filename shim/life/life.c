/* Start, fork and exit.
 *
 * Nothing happens before the first allocation call: the library rides in every child of the
 * program, bash and make included, and must stay silent and cheap there. The report is written from
 * our destructor: after the program's atexit handlers and static destructors, before those of the
 * libraries, which may go on freeing. Where destructors are skipped exits.c has it written. No lock
 * and no table is ever destroyed. */
#include "shim/life/life.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/lock.h"
#include "base/thread_state.h"
#include "base/history.h"
#include "base/log.h"
#include "base/mutation.h"
#include "base/out.h"
#include "base/path.h"
#include "config/options.h"
#include "pool/arena.h"
#include "registry/table/peak.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"
#include "shim/alloc/track.h"
#include "shim/cuda/life_state.h"
#include "shim/hooks/nvtx.h"
#include "shim/hooks/other_copy.h"
#include "shim/life/asked.h"
#include "shim/life/exit_output.h"
#include "shim/life/handler.h"
#include "shim/life/modules.h"

static _Atomic bool context_seen;
static pid_t started_by;

#define NOT_ASKED (-1) /* as a value of `backend` */
#define NAME CA_OPTIONS_NAME
#define ALIAS CA_OPTIONS_ALIAS

static void say(void *arg, const char *message)
{
    (void)arg;
    ca_warn("%s", message);
}

static void print_line(void *arg, const char *line)
{
    ca_out_printf(arg, "%s\n", line);
}

/* Apart from its caller, and with nothing large on the stack: the first CUDA call may come on a
 * thread that has 16 KiB of it. One thread comes here, once (CA_LIFE_STARTING). */
__attribute__((noinline)) static void show_configuration(void)
{
    static ca_out_t out;
    static char line[4096];
    ca_out_open(&out, ca_out_stderr());
    if (ca_options.help)
        ca_options_help(&ca_options, print_line, &out);
    if (ca_options.print) {
        ca_options_print(&ca_options, line, sizeof(line));
        ca_out_printf(&out, "ALLOC_CONF=%s\n", line);
    }
    ca_out_flush(&out);
}

/* Its launcher sets both for the program that it starts, as seen of versions 2025.2 and 2026.4. No
 * manual has them, but programs that step aside for it look for one of the two. */
static bool under_compute_sanitizer(void)
{
    return getenv("NV_SANITIZER_INJECTION_PORT_BASE") ||
           getenv("NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN");
}

/* It checks accesses against the driver's allocations: within a segment of the pool all are good.
 */
static void step_aside(int asked, bool heard)
{
    if (asked != NOT_ASKED || !under_compute_sanitizer())
        return;
    ca_options.backend = CA_BACKEND_OFF;
    if (heard)
        ca_warn("compute-sanitizer runs this program: backend:off, so that it sees every "
                "allocation (backend:pool to cache all the same)");
}

static void warn_of_limit(void)
{
    if (ca_options.limit.bytes != SIZE_MAX && ca_options.backend != CA_BACKEND_POOL)
        ca_warn("limit bounds the pool, and backend:%s has none: it bounds nothing",
                ca_options.backend == CA_BACKEND_OFF ? "off" : "async");
}

int ca_life_peek_reuse(void)
{
    static ca_options_t quiet;
    if (atomic_load_explicit(&ca_life_state, memory_order_acquire) == CA_LIFE_ACTIVE)
        return ca_options.reuse;
    ca_options_default(&quiet);
    if (!getauxval(AT_SECURE)) {
        ca_options_parse(&quiet, NAME, getenv(NAME), NULL, NULL);
        ca_options_parse(&quiet, ALIAS, getenv(ALIAS), NULL, NULL);
        if (quiet.reuse == CA_REUSE_ORDER) /* its end may be logged before anything is allocated */
            ca_log_set_level((ca_log_level_t)quiet.log);
    }
    return quiet.reuse;
}

/* It is asked in every process that is started, so one without the word pays for no more. */
int ca_life_peek_nvtx(void)
{
    static ca_options_t quiet;
    const char *conf = getenv(NAME), *alias = getenv(ALIAS);
    if (getauxval(AT_SECURE) ||
        !((conf && strstr(conf, "nvtx")) || (alias && strstr(alias, "nvtx"))))
        return CA_NVTX_FALSE;
    ca_options_default(&quiet);
    ca_options_parse(&quiet, NAME, conf, NULL, NULL);
    ca_options_parse(&quiet, ALIAS, alias, NULL, NULL);
    return quiet.nvtx;
}

static void read_configuration(void)
{
    static ca_options_t quiet;
    ca_options_default(&ca_options);
    /* Set-user-id programs run with the rights of another: their caller configures nothing. */
    if (getauxval(AT_SECURE)) {
        ca_modules_configure();
        return;
    }
    const char *conf = getenv(NAME);
    const char *alias = getenv(ALIAS);
    /* A first pass without complaints finds `log`, which decides whether they are heard, and
     * whether `backend` is asked for. */
    ca_options_default(&quiet);
    quiet.backend = NOT_ASKED;
    ca_options_parse(&quiet, NAME, conf, NULL, NULL);
    ca_options_parse(&quiet, ALIAS, alias, NULL, NULL);
    ca_log_set_level((ca_log_level_t)quiet.log);
    /* A launcher gives all its ranks one configuration: a thousand times the same is noise. */
    bool heard = ca_path_speaks_for_host() || quiet.log >= CA_LOG_INFO;
    ca_complain_t complain = heard && !ca_asked_reported(conf, alias) ? say : NULL;
    ca_options_parse(&ca_options, NAME, conf, complain, NULL);
    ca_options_parse(&ca_options, ALIAS, alias, complain, NULL);
    step_aside(quiet.backend, heard);
    if (heard)
        warn_of_limit();
    ca_modules_configure();
    if (heard && (ca_options.help || ca_options.print))
        show_configuration();
}

static void in_child(void)
{
    ca_modules_fork_asleep();
    if (atomic_load(&ca_life_state) == CA_LIFE_ASLEEP)
        return;
    if (atomic_load(&ca_life_state) == CA_LIFE_STARTING) /* by a thread that does not exist here */
        atomic_store(&ca_life_state, CA_LIFE_ASLEEP);
    /* CUDA does not survive a fork. Without a context the parent's start is as good as ours. */
    if (atomic_load(&context_seen) && !CA_MUTATED(fork_child_serves))
        atomic_store(&ca_life_state, CA_LIFE_PASSIVE);
    else
        atomic_store(&ca_life_page.same_process, true);
    started_by = getpid();
    ca_modules_fork_child();
}

static uint64_t reserved_bytes(void)
{
    size_t now, peak;
    ca_pool_reserved(false, &now, &peak);
    return now;
}

static void report_early(void)
{
    ca_exit_output(false);
}

static void start(void)
{
    read_configuration();
    ca_other_copy_warn();
    ca_track_start();
    ca_mutation_read();
    if (CA_MUTATED(report_too_early))
        atexit(report_early);
    started_by = getpid();
    ca_timeline_start(reserved_bytes);
    if (ca_options.peak != CA_PEAK_OFF)
        ca_peak_listen(ca_fast_invalidate);
    if (ca_history_start(ca_options.history, ca_timeline_now) != 0)
        ca_warn("history: no host memory for %u events: none are kept", ca_options.history);
    atomic_store(&ca_life_page.same_process, true);
    (void)madvise(&ca_life_page, sizeof ca_life_page, MADV_WIPEONFORK);
}

bool ca_life_wake(void)
{
    if (atomic_load_explicit(&ca_life_state, memory_order_acquire) == CA_LIFE_PASSIVE)
        return false;
    int asleep = CA_LIFE_ASLEEP;
    if (atomic_compare_exchange_strong(&ca_life_state, &asleep, CA_LIFE_STARTING)) {
        int cancel =
            ca_cancel_hold(); /* a thread that vanishes here would leave all others waiting */
        start();
        ca_fast_invalidate(); /* before another thread can have anything to say about that */
        ca_cancel_resume(cancel);
        atomic_store_explicit(&ca_life_state, CA_LIFE_ACTIVE, memory_order_release);
        return true;
    }
    /* Another thread reads the configuration: short, and it takes no lock that we may hold. */
    for (unsigned tries = 0;
         atomic_load_explicit(&ca_life_state, memory_order_acquire) == CA_LIFE_STARTING; tries++)
        ca_backoff(tries);
    return atomic_load_explicit(&ca_life_state, memory_order_acquire) == CA_LIFE_ACTIVE;
}

void ca_life_context_in_use(void)
{
    atomic_store(&context_seen, true);
}

/* Before any thread can be in start(), so that no fork goes unnoticed, and before the program opens
 * its first file. */
__attribute__((constructor)) static void at_load(void)
{
    ca_out_note_stderr();
    ca_asked_answer();
    ca_nvtx_at_load();
    pthread_atfork(NULL, NULL, in_child);
}

/* A child made by vfork or clone shares or copies our memory but is not the process that started
 * us: it must not report, and must not touch anything. A passive one did nothing. */
bool ca_life_reports(void)
{
    /* In a process id namespace of its own a child may even have our process's id. */
    bool is_it = started_by == getpid() && atomic_load(&ca_life_page.same_process);
    return atomic_load(&ca_life_state) == CA_LIFE_ACTIVE && (is_it || CA_MUTATED(pid_unchecked));
}

__attribute__((destructor)) static void at_exit(void)
{
    if (!ca_life_reports())
        return;
    int cancel = ca_cancel_hold(); /* a thread that is to be cancelled may call exit: it must end */
    if (!CA_MUTATED(report_too_early))
        ca_handler_call(ca_exit_output);
    if (CA_MUTATED(tables_end))
        ca_registry_reset_after_fork();
    ca_cancel_resume(cancel);
}
