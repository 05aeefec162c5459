/* Text to a descriptor that the host program owns: it may be full, closed, or a pipe that its
 * reader has closed, and none of that may hurt the host. A pipe or a socket that is not read is
 * waited for so long, also where it blocks, and not again until it takes something. A terminal that
 * its user has stopped is waited for as long as that takes, as the program's own text would be. */
#include "base/out.h"

#include "base/thread_state.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* How long a report waits for a descriptor that does not block. */
#define REPORT_WAIT_MS 2000
/* How long anything waits for one that blocks: it was made so in order to lose nothing. */
#define BLOCKED_WAIT_MS 5000

/* What goes into a full pipe at a time. The rest of the pipe's page has room for a message: the
 * kernel adds what is short to the last page, even when there is no other page to be had. */
#define PIECE (PIPE_BUF - 1024)

static bool no_stderr;
static _Atomic uint64_t stalled;   /* the file that was waited for in vain, or 0 */
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

/* All at once where a pipe has room for it and more, so that no other writer's text gets between;
 * otherwise a piece, of whole lines where there are any. */
static size_t piece_of(int fd, const char *text, size_t length)
{
    int queued = 0, space = fcntl(fd, F_GETPIPE_SZ);
    if (length <= PIECE || (ioctl(fd, FIONREAD, &queued) == 0 && space > queued &&
                            (size_t)(space - queued) >= length + 2 * (size_t)PIPE_BUF))
        return length;
    const char *newline = memrchr(text, '\n', PIECE);
    return newline ? (size_t)(newline - text) + 1 : PIECE;
}

/* Before Linux 6.4, whose pipes know no RWF_NOWAIT: one that blocks is opened anew. Where that
 * cannot be, what poll sees must do, though another writer may take the room before us. */
static ssize_t write_pipe_anew(int fd, const char *text, size_t length)
{
    char path[32];
    ca_text_t name;
    ca_text_init(&name, path, sizeof path);
    ca_text_printf(&name, "/proc/self/fd/%d", fd);
    bool blocks = (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
    int own = blocks ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY) : -1;
    if (own < 0 && blocks) {
        length = length < PIECE ? length : PIECE;
        if (poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
    }
    ssize_t written = write(own < 0 ? fd : own, text, length);
    int code = errno;
    if (own >= 0)
        close(own);
    errno = code;
    return written;
}

/* As much of it as a pipe takes without a wait, whatever flags it has. */
static ssize_t write_pipe(int fd, const char *text, size_t length)
{
    struct iovec piece = {.iov_base = (void *)text, .iov_len = piece_of(fd, text, length)};
    ssize_t written = pwritev2(fd, &piece, 1, -1, RWF_NOWAIT);
    if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL))
        return written;
    return write_pipe_anew(fd, text, piece.iov_len);
}

static ssize_t write_some(int fd, mode_t mode, const char *text, size_t length)
{
    if (S_ISFIFO(mode))
        return write_pipe(fd, text, length);
    if (S_ISSOCK(mode))
        return send(fd, text, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(fd, text, length);
}

static int write_all(int fd, mode_t mode, const char *text, size_t length, int wait_ms)
{
    while (length > 0) {
        ssize_t written = write_some(fd, mode, text, length);
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

/* Once waited for in vain is enough: a report has many parts, and messages follow it. */
static int write_bounded(int fd, const char *text, size_t length, int wait_ms)
{
    struct stat file;
    if (fstat(fd, &file) != 0)
        return -errno;
    uint64_t id = (uint64_t)file.st_ino ^ (uint64_t)file.st_dev << 48;
    bool blocks = (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0;
    if (atomic_load(&stalled) == id)
        wait_ms = 0;
    else if (blocks)
        wait_ms = (int)ca_bound_ms(BLOCKED_WAIT_MS);
    int rc = write_all(fd, file.st_mode, text, length, wait_ms);
    if (rc == -EAGAIN && wait_ms > 0)
        atomic_store(&stalled, id);
    else if (rc == 0)
        atomic_compare_exchange_strong(&stalled, &id, 0);
    return rc;
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

    int rc = write_bounded(fd, text, length, wait_ms);

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

/* The last that it takes, at the begin of a line. The writer of any other file reports it. */
static void warn_cut(const ca_out_t *out)
{
    if (out->fd != STDERR_FILENO)
        return;
    ca_out_write(out->fd, "\n", 1, 0);
    ca_warn(
        "cut here: nobody reads this stderr, and it is full (leak_report:PATH writes reports to "
        "a file)");
}

int ca_out_flush(ca_out_t *out)
{
    int wait_ms = (int)ca_bound_ms(REPORT_WAIT_MS);
    if (out->used && !out->error) {
        out->error = -ca_out_write(out->fd, out->buffer, out->used, wait_ms);
        if (out->error == EAGAIN)
            warn_cut(out);
    }
    out->used = 0;
    return -out->error;
}

/* Appends to the buffer; false, with nothing appended, where it does not fit. */
static bool append(ca_out_t *out, const char *format, va_list args)
{
    size_t space = sizeof out->buffer - out->used;
    int length = vsnprintf(out->buffer + out->used, space, format, args);
    if (length < 0)
        return true; /* cannot be shown, now or later */
    if ((size_t)length >= space)
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
        size_t space = sizeof out->buffer - out->used;
        size_t copied = length < space ? length : space;
        memcpy(out->buffer + out->used, at, copied);
        out->used += copied;
        at += copied;
        length -= copied;
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
