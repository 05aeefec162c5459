/* The leak report goes to stderr, to a descriptor by one of its names in /dev, to a device, a pipe
 * or a socket, or into a new file. A file that is there already is never touched: it may be
 * another rank's or a forked child's, and a symbolic link may be somebody's trap. */
#include "shim/leak_report.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "config/cancel.h"
#include "config/log.h"
#include "config/mutation.h"
#include "config/new_file.h"
#include "config/options.h"
#include "config/path.h"
#include "config/text.h"
#include "registry/registry.h"
#include "registry/report.h"
#include "shim/driver_table.h"

#define SHOWN_PATH 400 /* bytes of a path in a message, so that the line has room for the rest */

static char settled[PATH_MAX]; /* the path, patterns of the process still in it */
static bool too_long;
static char rank[16];

void ca_leak_report_settle(void)
{
    ca_text_t text;
    const char *found = ca_path_rank();
    ca_text_init(&text, rank, sizeof rank);
    ca_text_add(&text, found ? found : "", found ? strlen(found) : 0);
    ca_text_init(&text, settled, sizeof settled);
    ca_path_settle(ca_options.leak_report, &text);
    too_long = text.length >= text.bytes;
}

static int write_report(ca_out_t *out, int fd)
{
    ca_report_options_t options = {ca_options.leak_min, ca_options.leak_max, rank};
    ca_out_open(out, fd);
    ca_report_leaks(out, &options);
    return ca_out_flush(out);
}

/* --- files ------------------------------------------------------------------------------------ */

static void shorten(char *shown, size_t bytes, const char *path)
{
    ca_text_t text;
    ca_text_init(&text, shown, bytes);
    ca_text_escape(&text, path, strlen(path), bytes - 1);
}

static int name_file(ca_whole_file_t *file, char *path, size_t bytes)
{
    char wanted[SHOWN_PATH], given[SHOWN_PATH];
    unsigned tried;
    shorten(wanted, sizeof wanted, path);
    int error = ca_new_file_name(file, settled, path, bytes, &tried);
    if (!error && tried > 1 && !ca_path_is_numbered(settled)) {
        shorten(given, sizeof given, path);
        ca_warn("leak_report: %s exists, so the report is in %s", wanted, given);
    }
    return error;
}

static int write_file(ca_out_t *out, char *path, size_t bytes)
{
    static ca_whole_file_t file;
    int error = ca_whole_file_begin(&file, path);
    if (error)
        return error;
    error = write_report(out, file.fd);
    int ended = ca_whole_file_end(&file);
    if (!error)
        error = ended;
    if (!error)
        error = name_file(&file, path, bytes);
    ca_whole_file_discard(&file);
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

/* A device, a pipe or a socket that is there. A pipe that nobody reads must not hold up the exit.
 */
static int write_special(ca_out_t *out, const char *path)
{
    struct stat found;
    int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int error = 0;
    if (fstat(fd, &found) != 0)
        error = -errno;
    else if (S_ISREG(found.st_mode)) /* put there since we looked */
        error = -EEXIST;
    if (!error)
        error = write_report(out, fd);
    close(fd);
    return error;
}

static int write_destination(ca_out_t *out, char *path, size_t bytes)
{
    struct stat found;
    int error = too_long ? -ENAMETOOLONG : ca_new_file_path(settled, 0, path, bytes);
    if (error)
        return error;
    int fd = descriptor(path);
    if (fd >= 0)
        return write_report(out, fd == STDERR_FILENO ? ca_out_stderr() : fd);
    if (lstat(path, &found) != 0 || S_ISREG(found.st_mode) || S_ISLNK(found.st_mode))
        return write_file(out, path, bytes);
    if (S_ISBLK(found.st_mode)) /* a disk is no place for a text */
        return -ENOTSUP;
    return write_special(out, path);
}

void ca_leak_report_write(ca_out_t *out)
{
    static char path[PATH_MAX]; /* not on the stack of whoever calls exit */
    char shown[SHOWN_PATH];
    if (strcmp(ca_options.leak_report, "off") == 0 ||
        (ca_registry_total().count == 0 && ca_registry_lost().count == 0))
        return;
    if (CA_MUTATED(report_calls_cuda))
        ca_driver()->cuCtxSynchronize();
    int cancel = ca_cancel_hold(); /* a temporary file would be left */
    bool is_stderr = strcmp(ca_options.leak_report, "stderr") == 0;
    int error =
        is_stderr ? write_report(out, ca_out_stderr()) : write_destination(out, path, sizeof path);
    if (error && !is_stderr) {
        shorten(shown, sizeof shown, path);
        ca_warn("leak_report: cannot write %s (%s): the report goes to stderr", shown,
                strerror(-error));
        error = write_report(out, ca_out_stderr());
    }
    if (error)
        ca_warn("leak_report: the report is not complete: %s", strerror(-error));
    ca_cancel_resume(cancel);
}
