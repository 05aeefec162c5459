/* See publish.h.
 *
 * All that touches a file is done by the helper, removing it at the end too: a file system that
 * hangs then holds up only the helper, and the end of the process for END_MS. Nothing is
 * mapped and no descriptor stays open: a file that is cut off raises no SIGBUS, and programs close
 * what they do not know. A process that is killed, aborts or becomes another program by exec leaves
 * its files.
 *
 * A process whose other threads have all ended by pthread_exit is kept alive by the helper, as by
 * the driver's own threads. */
#include "shim/life/metrics.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/lock.h"
#include "base/clock.h"
#include "base/atomic_file.h"
#include "base/log.h"
#include "config/options.h"
#include "base/out.h"
#include "base/path.h"
#include "base/text.h"
#include "registry/table/timeline.h"
#include "shim/life/prometheus.h"
#include "shim/upstream/helper.h"
#include "shim/life/stats_page.h"

#define STACK_BYTES ((size_t)128 << 10)
#define PAGE_INTERVAL_NS UINT64_C(1000000000)
#define SOON_NS UINT64_C(1000000000) /* after the first time, when little has happened */
#define SHARE 50u /* all that is live is looked at: in a fiftieth of the time at most */
#define END_MS 2000
#define ENDING ".prom" /* what the collector reads */
#define NAMES_MOST 65536u
#define PAGE_VERSION 1
#define SHOWN_PATH 400 /* bytes of a path in a message */

typedef struct target {
    const char *option; /* in messages */
    bool wanted, named, warned;
    unsigned tried; /* names that were in use */
    mode_t mode;
    uint64_t interval, due; /* nanoseconds */
    ca_kept_file_t file;
} target_t;

static target_t metrics = {.option = "metrics", .mode = 0644}, page = {.option = "stats_page"};
static bool ending_added;
static char pattern[PATH_MAX]; /* of metrics: patterns of the process still in it */
static char folder[PATH_MAX];  /* where a relative path begins */
static char labels[1536], rank[16];
static uint64_t began;

static _Atomic bool started;
enum { RUNNING, STOPPING, ENDED };
static _Atomic uint32_t state; /* a futex */

void ca_metrics_configure(void)
{
    ca_text_t text;
    const char *found = ca_path_rank();
    ca_text_init(&text, rank, sizeof rank);
    ca_text_add(&text, found ? found : "", found ? strlen(found) : 0);
    page.wanted = ca_options.stats_page;
    page.mode = 0400;
    page.interval = PAGE_INTERVAL_NS;
    ca_stats_page_configure();
    metrics.wanted = strcmp(ca_options.metrics, "off") != 0;
    metrics.interval = ca_options.metrics_interval;
    if (!metrics.wanted)
        return;
    ca_text_init(&text, pattern, sizeof pattern);
    ca_path_expand(ca_options.metrics, &text);
    metrics.wanted = text.length < text.bytes;
    if (!metrics.wanted)
        ca_warn("metrics: the path is too long: there is no file");
    else if (text.length > strlen(ENDING) &&
             strcmp(pattern + text.length - strlen(ENDING), ENDING) == 0)
        pattern[text.length - strlen(ENDING)] = '\0'; /* what distinguishes names comes before it */
    else
        ending_added = true;
}

/* --- what is in the files --------------------------------------------------------------------- */

/* As the format has it: backslash and quote escaped, and nothing that could end the line. */
static void add_label(ca_text_t *text, const char *name, const char *value)
{
    char shown[256];
    ca_text_t escaped;
    ca_text_init(&escaped, shown, sizeof shown);
    ca_text_escape(&escaped, value, strlen(value), sizeof shown - 1);
    ca_text_printf(text, ",%s=\"", name);
    for (const char *at = shown; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            ca_text_add(text, "\\", 1);
        ca_text_add(text, at, 1);
    }
    ca_text_add(text, "\"", 1);
}

/* On every line: two files that have one and the same make the collector refuse both. Process ids
 * are 1 in most containers, and come again. */
static void make_labels(void)
{
    char host[256];
    ca_text_t text;
    if (gethostname(host, sizeof host) != 0)
        host[0] = '\0';
    host[sizeof host - 1] = '\0';
    ca_text_init(&text, labels, sizeof labels);
    ca_text_printf(&text, "pid=\"%d\",start=\"%llu\"", (int)getpid(),
                   (unsigned long long)ca_timeline_start_s());
    add_label(&text, "program", program_invocation_short_name);
    add_label(&text, "host", host);
    if (rank[0] != '\0')
        add_label(&text, "rank", rank);
}

static int write_text(target_t *target)
{
    static ca_out_t out;
    int error = ca_kept_file_begin(&target->file, target->mode);
    if (error)
        return error;
    ca_out_open(&out, target->file.next.fd);
    ca_out_printf(&out, "# cachealloc statistics %d pid %d began %llu every %llu ms\n",
                  PAGE_VERSION, (int)getpid(), (unsigned long long)began,
                  (unsigned long long)(target->interval / 1000000u));
    ca_prometheus_write(&out, labels);
    ca_out_printf(&out, "# EOF\n");
    error = ca_out_flush(&out);
    int ended = ca_kept_file_end(&target->file);
    return error ? error : ended;
}

/* --- where they go ---------------------------------------------------------------------------- */

static int metrics_path(char *path, size_t bytes, unsigned tried)
{
    ca_text_t text;
    ca_text_init(&text, path, bytes);
    if (pattern[0] != '/')
        ca_text_add(&text, folder, strlen(folder));
    size_t length = text.length;
    if (length + strlen(ENDING) >= bytes)
        return -ENAMETOOLONG;
    int error = ca_new_file_path(pattern, tried, path + length, bytes - length - strlen(ENDING));
    if (error)
        return error;
    length = strlen(path);
    ca_text_init(&text, path + length, bytes - length);
    ca_text_add(&text, ENDING, strlen(ENDING));
    return 0;
}

/* With the collector's folder for a path the file would lie beside it, or be hidden in it. */
static int find_metrics(char *path, size_t bytes)
{
    struct stat found;
    int error = metrics_path(path, bytes, 0);
    if (error || !ending_added)
        return error;
    char *ending = path + strlen(path) - strlen(ENDING);
    *ending = '\0';
    if (stat(path, &found) == 0 && S_ISDIR(found.st_mode))
        return -EISDIR;
    *ending = ENDING[0];
    return 0;
}

static int find_path(target_t *target)
{
    return target == &page ? ca_stats_page_path(page.file.path, sizeof page.file.path)
                           : find_metrics(metrics.file.path, sizeof metrics.file.path);
}

static int put(target_t *target)
{
    ca_kept_file_t *file = &target->file;
    int error = ca_kept_file_put(file);
    for (unsigned tried = 1;
         error == -EEXIST && !target->named && target == &metrics && tried < NAMES_MOST; tried++) {
        error = metrics_path(file->path, sizeof file->path, tried);
        if (!error)
            error = ca_kept_file_put(file);
        target->tried = tried;
    }
    return error;
}

static void warn_of(target_t *target, int error)
{
    char shown[SHOWN_PATH];
    ca_text_t text;
    ca_text_init(&text, shown, sizeof shown);
    ca_text_escape(&text, target->file.path, strlen(target->file.path), sizeof shown - 1);
    if (error == 0 && target->tried > 0 && !target->named && !ca_path_is_numbered(pattern))
        ca_warn("%s: the file that was asked for exists, so it is %s", target->option, shown);
    if (error == 0 || target->warned)
        return;
    target->warned = true;
    if (error == -EEXIST)
        ca_warn("%s: %s is another file than the one written last, and is left alone",
                target->option, shown);
    else if (target == &page && error == -EPERM)
        ca_warn("%s: %s is not this user's alone; accepted: a folder of the user's own, mode 0700",
                target->option, shown);
    else
        ca_warn("%s: cannot write %s (%s)", target->option, shown, strerror(-error));
}

static void refresh(target_t *target)
{
    int error = target->named ? 0 : find_path(target);
    if (!error)
        error = write_text(target);
    if (!error)
        error = put(target);
    ca_kept_file_discard(&target->file);
    warn_of(target, error);
    target->named |= error == 0;
}

/* --- the thread ------------------------------------------------------------------------------- */

static uint64_t spent_ns(void)
{
    return ca_clock_of(CLOCK_THREAD_CPUTIME_ID);
}

/* Does what is due; when the next is. */
static uint64_t round_of(target_t *target, uint64_t next)
{
    uint64_t now = ca_clock_ns(), before = spent_ns();
    if (!target->wanted)
        return next;
    if (target->due <= now && atomic_load(&state) == RUNNING) {
        uint64_t pause =
            target->due == 0 && target->interval > SOON_NS ? SOON_NS : target->interval;
        refresh(target);
        uint64_t least = (spent_ns() - before) * SHARE;
        target->due = now + (pause > least ? pause : least);
    }
    return target->due < next ? target->due : next;
}

static void wait_until(uint64_t due)
{
    uint64_t now = ca_clock_ns(), left = due > now ? due - now : 0;
    struct timespec time = {.tv_sec = (time_t)(left / 1000000000u),
                            .tv_nsec = (long)(left % 1000000000u)};
    syscall(SYS_futex, &state, FUTEX_WAIT_PRIVATE, RUNNING, &time, NULL, 0);
}

static void *run(void *arg)
{
    pthread_setname_np(pthread_self(), "cachealloc");
    began = ca_stats_page_began();
    make_labels();
    while (atomic_load(&state) == RUNNING)
        wait_until(round_of(&page, round_of(&metrics, UINT64_MAX)));
    ca_kept_file_remove(&metrics.file);
    ca_kept_file_remove(&page.file);
    atomic_store(&state, ENDED);
    return arg;
}

void ca_metrics_start(void)
{
    if (!(metrics.wanted || page.wanted) || atomic_exchange(&started, true))
        return;
    if (!getcwd(folder, sizeof folder - 1))
        folder[0] = '\0'; /* which the thread may leave no more than any other */
    else
        strcat(folder, "/"); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): has room */
    int code = ca_helper_start(run, NULL, STACK_BYTES);
    if (code != 0) {
        atomic_store(&started, false);
        ca_warn_once("metrics, stats_page: no thread could be made: there are none");
    }
}

void ca_metrics_end(void)
{
    int saved = errno;
    if (atomic_load(&started) && atomic_exchange(&state, STOPPING) == RUNNING) {
        syscall(SYS_futex, &state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        uint64_t begin = ca_clock_ns();
        while (atomic_load(&state) != ENDED &&
               ca_clock_ns() - begin < ca_bound(UINT64_C(1000000) * END_MS))
            ca_sleep(500000);
    }
    errno = saved;
}

static void forget(target_t *target)
{
    target->named = target->warned = target->file.made = false;
    target->file.next = (ca_atomic_file_t){.fd = -1};
    target->tried = 0;
    target->due = 0;
}

void ca_metrics_reset_after_fork(void)
{
    atomic_store(&started, false);
    atomic_store(&state, RUNNING);
    forget(&metrics);
    forget(&page);
    ca_prometheus_reset_after_fork();
}
