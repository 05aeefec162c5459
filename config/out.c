/* Text to a descriptor that the host program owns: it may be full, closed, or a pipe whose reader
 * has gone, and none of that may hurt the host. */
#include "config/out.h"

#include "config/cancel.h"
#include "config/clock.h"
#include "config/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* How long a report waits for a descriptor that does not block. */
#define REPORT_WAIT_MS 2000

static bool no_stderr;
static struct stat stderr_at_load; /* zeros until it is noted */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

void ca_out_note_stderr(void)
{
    int saved = errno;
    no_stderr = fstat(STDERR_FILENO, &stderr_at_load) != 0;
    errno = saved;
}

/* Another file than at load may be the one that a program has its messages in now, or one that it
 * reads as well: its data, which has the number because the program closed its stderr. */
static bool may_be_stderr(const struct stat *now)
{
    struct stat out;
    if (S_ISSOCK(now->st_mode) || S_ISBLK(now->st_mode))
        return false;
    return !S_ISREG(now->st_mode) || (fcntl(STDERR_FILENO, F_GETFL) & O_ACCMODE) != O_RDWR ||
           (fstat(STDOUT_FILENO, &out) == 0 && same_file(now, &out));
}

int ca_out_stderr(void)
{
    struct stat now;
    int saved = errno;
    bool there =
        !no_stderr && fstat(STDERR_FILENO, &now) == 0 &&
        (stderr_at_load.st_mode == 0 || same_file(&now, &stderr_at_load) || may_be_stderr(&now));
    errno = saved;
    return there ? STDERR_FILENO : -1;
}

static int write_all(int fd, const char *text, size_t length, int wait_ms)
{
    while (length > 0) {
        ssize_t written = write(fd, text, length);
        if (written > 0) {
            text += written;
            length -= (size_t)written;
        } else if (written == 0) { /* a device, or a file system in a program, that takes nothing */
            return -EIO;
        } else if (errno == EAGAIN && wait_ms > 0) {
            int slice = wait_ms < 50 ? wait_ms : 50;
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, slice);
            wait_ms -= slice;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* Takes a pending signal off, unless it was there `before` we wrote and so is the host's own. */
static void take_off(int signal, const sigset_t *before)
{
    sigset_t set;
    if (sigismember(before, signal) == 1)
        return;
    sigemptyset(&set);
    sigaddset(&set, signal);
    while (sigtimedwait(&set, NULL, &(struct timespec){0}) < 0 && errno == EINTR) {
    }
}

int ca_out_write(int fd, const char *text, size_t length, int wait_ms)
{
    int saved = errno;
    int cancel = ca_cancel_hold(); /* write and poll are cancellation points */
    sigset_t raised, before, pending;

    /* A broken pipe, or a file that has the size it may have (ulimit -f), must not end a program
     * that wrote nothing itself: the signals are held back and taken off again. Nor may a terminal
     * stop it (stty tostop), which lets a program write that holds SIGTTOU back. */
    sigemptyset(&raised);
    sigaddset(&raised, SIGPIPE);
    sigaddset(&raised, SIGXFSZ);
    sigaddset(&raised, SIGTTOU);
    sigemptyset(&pending);
    pthread_sigmask(SIG_BLOCK, &raised, &before);
    sigpending(&pending);

    int rc = write_all(fd, text, length, wait_ms);

    if (rc == -EPIPE)
        take_off(SIGPIPE, &pending);
    if (rc == -EFBIG)
        take_off(SIGXFSZ, &pending);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ca_cancel_resume(cancel);
    errno = saved;
    return rc;
}

void ca_out_open(ca_out_t *out, int fd)
{
    out->fd = fd;
    out->error = 0;
    out->used = 0;
}

int ca_out_flush(ca_out_t *out)
{
    if (out->used && !out->error)
        out->error =
            -ca_out_write(out->fd, out->buffer, out->used, (int)ca_bound_ms(REPORT_WAIT_MS));
    out->used = 0;
    return -out->error;
}

/* Appends to the buffer; false, with nothing appended, where it does not fit. */
static bool append(ca_out_t *out, const char *format, va_list args)
{
    size_t room = sizeof out->buffer - out->used;
    int length = vsnprintf(out->buffer + out->used, room, format, args);
    if (length < 0)
        return true; /* cannot be shown, now or later */
    if ((size_t)length >= room)
        return false;
    out->used += (size_t)length;
    return true;
}

void ca_out_bytes(ca_out_t *out, const void *data, size_t length)
{
    const char *at = data;
    while (length > 0) {
        if (out->used == sizeof out->buffer)
            ca_out_flush(out);
        size_t room = sizeof out->buffer - out->used;
        size_t taken = length < room ? length : room;
        memcpy(out->buffer + out->used, at, taken);
        out->used += taken;
        at += taken;
        length -= taken;
    }
}

void ca_out_fail(ca_out_t *out, int error)
{
    ca_out_flush(out);
    if (!out->error)
        out->error = -error;
}

void ca_out_printf(ca_out_t *out, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);

    if (!append(out, format, args)) {
        ca_out_flush(out);
        va_end(args);
        va_copy(args, again);
        if (!append(out, format, args)) {
            size_t format_bytes = strlen(format);
            bool newline = format_bytes > 0 && format[format_bytes - 1] == '\n';
            ca_text_t text;
            ca_text_init(&text, out->buffer, sizeof out->buffer - newline);
            ca_text_vprintf(&text, format, again);
            ca_text_mark_cut(&text);
            ca_text_t whole = {out->buffer, sizeof out->buffer, text.length};
            ca_text_add(&whole, "\n", newline);
            out->used = whole.length;
        }
    }
    va_end(again);
    va_end(args);
}
