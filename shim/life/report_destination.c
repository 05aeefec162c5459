/* The leak report goes to stderr, to a descriptor by one of its names in /dev, to a device, a pipe
 * or a socket, or into a new file for each format. A file that is there already is never touched:
 * it may be another rank's or a forked child's, and a symbolic link may be a trap. */
#include "shim/life/report_destination.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/thread_state.h"
#include "base/log.h"
#include "base/mutation.h"
#include "base/atomic_file.h"
#include "config/options.h"
#include "base/path.h"
#include "base/text.h"
#include "registry/table/registry.h"
#include "registry/report/formats.h"
#include "shim/cuda/driver_table.h"
#include "shim/life/report_collect.h"

#define SHOWN_PATH 400 /* bytes of a path in a message, so that the line has room for the rest */

/* Where there is no path for a report that is no text. */
#define ASIDE "cachealloc.%p"

/* What a path leads to. */
typedef enum { TO_STDERR, TO_SPECIAL, TO_FILES } place_t;

/* Where reports are to go. */
typedef struct target {
    char pattern[PATH_MAX]; /* the path, patterns of the process still in it */
    bool too_long;
    const ca_format_t *own; /* the format whose ending it has, or NULL */
    const char *aside;      /* for what cannot go there, patterns of the process still in it */
} target_t;

typedef struct report {
    ca_out_t *out;
    const ca_model_t *model;
    const target_t *target;
    const ca_format_t *format;
    char *path; /* where it goes, PATH_MAX bytes */
} report_t;

static target_t configured; /* what leak_report says */
static char aside[PATH_MAX];
static char rank[16];

/* `later`: the working folder may be another one when the report is written. */
static void expand(const char *path, target_t *target, bool later)
{
    ca_text_t text;
    ca_text_init(&text, target->pattern, sizeof target->pattern);
    ca_path_expand(path, &text);
    if (later && strcmp(target->pattern, "stderr") != 0) {
        ca_text_init(&text, target->pattern, sizeof target->pattern);
        ca_path_expand_here(path, &text);
    }
    target->aside = later ? aside : ASIDE;
    target->too_long = text.length >= text.bytes;
    target->own = ca_format_of_path(target->pattern);
}

void ca_report_destination_configure(void)
{
    ca_text_t text;
    const char *found = ca_path_rank();
    ca_text_init(&text, rank, sizeof rank);
    ca_text_add(&text, found ? found : "", found ? strlen(found) : 0);
    expand(ca_options.leak_report, &configured, true);
    ca_text_init(&text, aside, sizeof aside);
    ca_path_expand_here(ASIDE, &text);
}

static int write_report(const report_t *report, int fd)
{
    ca_out_open(report->out, fd);
    report->format->write(report->out, report->model);
    return ca_out_flush(report->out);
}

/* --- files ------------------------------------------------------------------------------------ */

static void shorten(char *shown, size_t bytes, const char *path)
{
    ca_text_t text;
    ca_text_init(&text, shown, bytes);
    ca_text_escape(&text, path, strlen(path), bytes - 1);
}

static int name_file(const report_t *report, ca_atomic_file_t *file, const char *pattern)
{
    char wanted[SHOWN_PATH], used[SHOWN_PATH];
    unsigned tried;
    shorten(wanted, sizeof wanted, report->path);
    int error = ca_new_file_name(file, pattern, report->path, PATH_MAX, &tried);
    if (!error && tried > 1 && !ca_path_is_numbered(pattern)) {
        shorten(used, sizeof used, report->path);
        ca_warn("leak_report: %s exists, so the report is in %s%s", wanted, used,
                ca_path_rank() ? " (%r in the path is the rank)" : "");
    }
    return error;
}

static bool is_directory(const char *path)
{
    struct stat found;
    return lstat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

/* Puts the format's ending behind the first `length` bytes of a pattern. */
static int add_ending(const report_t *report, const char *pattern, size_t length, ca_text_t *name)
{
    ca_text_add(name, pattern, length);
    ca_text_add(name, report->format->ending, strlen(report->format->ending));
    int error = name->length < name->bytes ? 0 : -ENAMETOOLONG;
    if (!error)
        error = ca_new_file_path(name->buffer, 0, report->path, PATH_MAX);
    bool is_bare = length == 0 || pattern[length - 1] == '/'; /* the ending alone is no name */
    return !error && (is_bare || is_directory(report->path)) ? -EISDIR : error;
}

static int write_file(const report_t *report, const char *pattern, size_t length)
{
    static ca_atomic_file_t file;
    static char name[PATH_MAX];
    ca_text_t text;
    ca_text_init(&text, name, sizeof name);
    int error = add_ending(report, pattern, length, &text);
    if (!error)
        error = ca_atomic_file_begin(&file, report->path);
    if (error)
        return error;
    error = write_report(report, file.fd);
    int closed = ca_atomic_file_end(&file);
    if (!error)
        error = closed;
    if (!error)
        error = name_file(report, &file, name);
    ca_atomic_file_discard(&file);
    return error;
}

/* For a format that cannot go where leak_report says. */
static int write_aside(const report_t *report)
{
    char shown[SHOWN_PATH], used[SHOWN_PATH];
    shorten(used, sizeof used, report->path);
    int error = write_file(report, report->target->aside, strlen(report->target->aside));
    if (!error) {
        shorten(shown, sizeof shown, report->path);
        ca_warn("leak_report: %s takes the text alone: the %s report is in %s; leak_report:PATH "
                "puts it elsewhere",
                used, report->format->name, shown);
    }
    return error;
}

/* --- what is no file -------------------------------------------------------------------------- */

/* The descriptor that a path means, or -1. To open such a path would begin a redirected file from
 * the start again, over what the program wrote there. */
static int descriptor(const char *path)
{
    if (strcmp(path, "stderr") == 0 || strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    const char *number = path + strlen("/dev/fd/");
    size_t digits = strncmp(path, "/dev/fd/", 8) == 0 ? strspn(number, "0123456789") : 0;
    return digits > 0 && digits < 7 && number[digits] == '\0' ? atoi(number) : -1;
}

/* A device, a pipe or a socket that is there. A pipe without a reader must not hold up the exit.
 */
static int write_special(const report_t *report)
{
    struct stat found;
    int fd = descriptor(report->path);
    if (fd >= 0)
        return write_report(report, fd == STDERR_FILENO ? ca_out_stderr() : fd);
    fd = open(report->path, O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int error = 0;
    if (fstat(fd, &found) != 0)
        error = -errno;
    else if (S_ISREG(found.st_mode)) /* put there since we looked */
        error = -EEXIST;
    else if (S_ISBLK(found.st_mode)) /* a disk is no place for a report */
        error = -ENOTSUP;
    if (!error)
        error = write_report(report, fd);
    close(fd);
    return error;
}

/* --- places ----------------------------------------------------------------------------------- */

/* A directory is where no file can be written, and beside which one of another format can. */
static place_t place_of(const char *path)
{
    struct stat found;
    if (strcmp(path, "stderr") == 0)
        return TO_STDERR;
    if (descriptor(path) >= 0)
        return TO_SPECIAL;
    bool is_special = lstat(path, &found) == 0 && !S_ISREG(found.st_mode) &&
                      !S_ISLNK(found.st_mode) && !S_ISDIR(found.st_mode);
    return is_special ? TO_SPECIAL : TO_FILES;
}

/* `alone`: no other format goes to the same place. */
static int write_format(const report_t *report, bool alone)
{
    bool is_text = report->format == &ca_formats[CA_FORMAT_TEXT];
    const target_t *target = report->target;
    const ca_format_t *own = target->own;
    memcpy(report->path, target->pattern, sizeof target->pattern);
    int error = target->too_long ? -ENAMETOOLONG
                                 : ca_new_file_path(target->pattern, 0, report->path, PATH_MAX);
    if (error)
        return error;
    switch (place_of(report->path)) {
    case TO_STDERR:
        return is_text ? write_report(report, ca_out_stderr()) : write_aside(report);
    case TO_SPECIAL:
        return is_text || alone ? write_special(report) : write_aside(report);
    default:
        return write_file(report, target->pattern,
                          strlen(target->pattern) - (own ? strlen(own->ending) : 0));
    }
}

/* Warns of what could not be written. What leaked must be reported somewhere: `reported` says
 * that a text did. */
static void fall_back(report_t *report, int error, bool reported)
{
    char shown[SHOWN_PATH];
    if (strcmp(report->path, "stderr") != 0) {
        shorten(shown, sizeof shown, report->path);
        ca_warn("leak_report: cannot write %s (%s)%s", shown, strerror(-error),
                reported ? "" : ": the report goes to stderr");
        report->format = &ca_formats[CA_FORMAT_TEXT];
        error = reported ? 0 : write_report(report, ca_out_stderr());
    }
    if (error && error != -EAGAIN) /* which was reported where it was cut */
        ca_warn("leak_report: the report is not complete: %s", strerror(-error));
}

/* A path that is a format's own asks for that one, where no other is asked for. */
static unsigned chosen_formats(const target_t *target)
{
    const ca_format_t *own = target->own;
    unsigned chosen = ca_options.report_format;
    return own && chosen == 1u << CA_FORMAT_TEXT ? 1u << (own - ca_formats) : chosen;
}

/* Returns the first error. `falls_back`: warns of what could not be written. */
static int write_formats(report_t *report, bool falls_back)
{
    unsigned chosen = chosen_formats(report->target);
    bool reported = false;
    int first = 0;
    for (int i = 0; i < CA_FORMATS; i++) {
        if (!(chosen >> i & 1))
            continue;
        report->format = &ca_formats[i];
        int error = write_format(report, chosen == 1u << i);
        if (error && falls_back)
            fall_back(report, error, reported);
        reported |= error || i == CA_FORMAT_TEXT;
        first = first ? first : error;
    }
    return first;
}

static uint64_t leaks_in(const ca_model_t *model)
{
    return model->sections[CA_SECTION_LEAKED].count + model->sections[CA_SECTION_DESTROYED].count;
}

/* Behind the report, in the words of a package manager: what would have made it better. */
static void say_what_is_missing(const ca_model_t *model)
{
    if (model->lacks_lines && leaks_in(model) != 0)
        ca_warn_once("leak_report: libdw.so.1 was not found, so functions have no files and lines: "
                     "the package libdw1 (elfutils-libs) adds them");
}

static uint64_t leaks_now(void)
{
    return ca_registry_total().count + ca_registry_lost().count;
}

/* Whether there may be a report of so many at exit. One of nothing is for a process that allocated:
 * a child of a fork or a shell in a script has nothing to say. */
static bool is_wanted(uint64_t leaks)
{
    return strcmp(ca_options.leak_report, "off") != 0 &&
           (leaks != 0 || (ca_registry_sequence() != 0 && ca_report_even_empty()));
}

uint64_t ca_report_miss_at_exit(void)
{
    uint64_t leaks = leaks_now();
    if (is_wanted(leaks))
        ca_warn("leak_report: there is none of the end: another report is not done yet (%llu "
                "allocations are live)",
                (unsigned long long)leaks);
    return leaks;
}

uint64_t ca_report_write_at_exit(ca_out_t *out, bool quick)
{
    static char path[PATH_MAX]; /* not on the stack of the thread that calls exit */
    uint64_t leaks = leaks_now();
    bool wanted = is_wanted(leaks);
    /* Where nothing is written the exit status still wants to know what rules do not excuse. */
    if (!wanted && (leaks == 0 || ca_options.leak_exitcode == 0))
        return leaks;
    if (CA_MUTATED(report_calls_cuda))
        ca_driver()->cuCtxSynchronize();
    int cancel = ca_cancel_hold(); /* a temporary file would be left */
    ca_model_t *model = ca_report_collect(NULL, rank, quick);
    report_t report = {.out = out, .model = model, .target = &configured, .path = path};
    if (!model) {
        ca_warn("leak_report: the report cannot be made: %s", strerror(ENOMEM));
    } else if (wanted && !ca_model_is_empty(model)) {
        write_formats(&report, true);
        say_what_is_missing(model);
    }
    leaks = model ? leaks_in(model) : leaks;
    ca_model_free(model);
    ca_cancel_resume(cancel);
    return leaks;
}

int ca_report_write_model(ca_out_t *out, const ca_model_t *model, const char *path,
                          const ca_path_process_t *process)
{
    static char finished[PATH_MAX];
    static target_t asked;
    report_t report = {.out = out, .model = model, .target = &asked, .path = finished};
    int error = path ? ca_path_check(path, strlen(path), NULL) : 0;
    if (error || !model)
        return error ? error : -ENOMEM;
    ca_path_set_process(process);
    if (path)
        expand(path, &asked, false);
    else if (strcmp(ca_options.leak_report, "off") == 0)
        expand("stderr", &asked, true);
    else if (process)
        expand(ca_options.leak_report, &asked, true);
    else
        report.target = &configured;
    error = write_formats(&report, !path);
    say_what_is_missing(model);
    ca_path_set_process(NULL);
    return path ? error : 0; /* without a path it is on stderr now */
}

int ca_report_dump(ca_out_t *out, const char *cause, const char *path)
{
    int cancel = ca_cancel_hold();
    ca_model_t *model = ca_report_collect(cause, rank, false);
    int error = ca_report_write_model(out, model, path, NULL);
    ca_model_free(model);
    ca_cancel_resume(cancel);
    return error;
}
