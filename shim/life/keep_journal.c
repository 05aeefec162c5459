#include "shim/life/keep_journal.h"
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/lock.h"
#include "base/thread_state.h"
#include "base/log.h"
#include "config/options.h"
#include "base/out.h"
#include "base/path.h"
#include "base/text.h"
#include "include/cachealloc.h"
#include "registry/journal/journal.h"
#include "registry/stack/modules.h"
#include "registry/stack/stack.h"
#include "shim/hooks/api_struct.h"
#include "shim/life/exit_output.h"
#include "shim/life/report_destination.h"
#include "shim/cuda/life_state.h"
#include "shim/life/report_collect.h"
#include "shim/alloc/report_lock.h"

#define SHOWN_PATH 400 /* bytes of a path in a message */
#define WAIT_MS 10000  /* for another thread's report */

static char pattern[PATH_MAX], rank[16]; /* patterns of the process still in the path */
enum { NOT_YET, STARTING, STARTED };
static _Atomic int state = STARTED;

void ca_keep_journal_configure(void)
{
    ca_text_t text;
    if (strcmp(ca_options.journal, "off") == 0)
        return;
    const char *found = ca_path_rank();
    ca_text_init(&text, rank, sizeof rank);
    ca_text_add(&text, found ? found : "", found ? strlen(found) : 0);
    ca_text_init(&text, pattern, sizeof pattern);
    ca_path_expand(ca_options.journal, &text);
    if (text.length < text.bytes)
        atomic_store(&state, NOT_YET);
    else
        ca_warn("journal: the path is too long: there is none");
}

static void escape(char shown[SHOWN_PATH], const char *path)
{
    ca_text_t text;
    ca_text_init(&text, shown, SHOWN_PATH);
    ca_text_escape(&text, path, strlen(path), SHOWN_PATH - 1);
}

static void begin(void)
{
    static char path[PATH_MAX], shown[SHOWN_PATH]; /* one thread comes here */
    const ca_journal_about_t about = {
        .expanded = pattern,
        .version = cachealloc_version(),
        .rank = rank,
        .stack_depth = ca_options.stack_depth,
        .sampled = ca_options.stacks.bytes,
    };
    unsigned tried = 0;
    int error = ca_journal_start(&about, path, sizeof path, &tried);
    escape(shown, path);
    if (error)
        ca_warn("journal: cannot make %s (%s): there is none", shown, strerror(-error));
    else if (tried > 1 && !ca_path_is_numbered(pattern))
        ca_warn("journal: the file that was asked for exists, so the journal is in %s", shown);
}

void ca_keep_journal_start(void)
{
    int expected = NOT_YET;
    if (atomic_load_explicit(&state, memory_order_acquire) == STARTED)
        return;
    if (!atomic_compare_exchange_strong(&state, &expected, STARTING)) {
        for (unsigned tries = 0; atomic_load_explicit(&state, memory_order_acquire) == STARTING;
             tries++)
            ca_backoff(tries);
        return;
    }
    int cancel = ca_cancel_hold(), saved = errno;
    begin();
    if (atomic_load(&ca_journal_on)) {
        ca_journal_add_all();
        ca_fast_invalidate();
    }
    errno = saved;
    ca_cancel_resume(cancel);
    atomic_store_explicit(&state, STARTED, memory_order_release);
}

void ca_keep_journal_reset_after_fork(void)
{
    ca_journal_reset_after_fork();
    if (strcmp(ca_options.journal, "off") != 0 && pattern[0] != '\0')
        atomic_store(&state, NOT_YET);
}

/* --- the report of one ------------------------------------------------------------------------ */

static int report(const char *journal, const char *path)
{
    static ca_out_t out;
    static ca_journal_read_t read;
    char reason[256] = "", shown[SHOWN_PATH];
    ca_text_t why;
    ca_text_init(&why, reason, sizeof reason);
    escape(shown, journal);
    int error = ca_journal_read(journal, &read, &why);
    if (error) {
        ca_warn("%s cannot be read: %s", shown, reason[0] ? reason : strerror(-error));
        return error;
    }
    ca_exit_output_leave_out(); /* of this process */
    if (read.lost || read.unlogged)
        ca_warn("%s had no room for %llu allocations, live or freed since, and for %llu stacks and "
                "names",
                shown, (unsigned long long)read.lost, (unsigned long long)read.unlogged);
    if (read.missing)
        ca_warn("%s is not whole: %u of its parts were cut off or changed, and what is live may be "
                "missing in the report",
                shown, read.missing);
    ca_model_t *model = ca_report_collect_of(&read.origin);
    const ca_path_process_t process = {
        .pid = read.origin.pid, .rank = read.rank, .program = read.program, .host = read.host};
    error = ca_report_write_model(&out, model, path, &process);
    ca_model_free(model);
    ca_journal_read_end(&read);
    return error;
}

static bool may_name_a_report(const char *path)
{
    char reason[256], shown[SHOWN_PATH];
    ca_text_t why;
    ca_text_init(&why, reason, sizeof reason);
    if (ca_path_check(path, strlen(path), &why) == 0)
        return true;
    escape(shown, path);
    ca_warn("%s %s", shown, reason);
    return false;
}

CA_PUBLIC int cachealloc_report_journal(const char *journal, const char *path)
{
    bool awake = ca_life_active() || ca_life_wake();
    if (!journal || (path && !may_name_a_report(path)))
        return EINVAL;
    if (!awake || ca_registry_total().count != 0 || ca_stack_count() != 0 ||
        ca_modules_are_foreign())
        return EBUSY;
    int saved = errno, error = -EBUSY;
    int cancel = ca_cancel_hold(); /* a thread that vanishes would keep the lock */
    if (ca_report_lock_take(WAIT_MS)) {
        error = report(journal, path);
        ca_report_lock_drop();
    }
    ca_cancel_resume(cancel);
    errno = saved;
    return -error;
}
