/* Buffered output to a file descriptor, for the reports: no stdio, no heap. Not thread-safe;
 * one writer each. A write error (full disk, closed descriptor) is remembered, never raised. */
#ifndef CA_BASE_OUT_H
#define CA_BASE_OUT_H

#include <stddef.h>

typedef struct ca_out {
    int fd;
    int error; /* errno of the first failed write, or 0 */
    size_t used;
    char buffer[8192];
} ca_out_t;

void ca_out_open(ca_out_t *out, int fd);
/* At most what the buffer holds at a time: a longer piece ends in `...`, its newline kept. */
void ca_out_printf(ca_out_t *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Any bytes, as many as there are. */
void ca_out_bytes(ca_out_t *out, const void *data, size_t length);
/* For a writer that cannot write all that belongs there: from now on nothing is written, and
 * flushing fails with `error`, a negative errno, unless something else failed before. */
void ca_out_fail(ca_out_t *out, int error);
/* Writes what is buffered. Returns 0 or the negative errno of the first failure. Where stderr takes
 * no more, a message ends it. Under no lock of ours. */
int ca_out_flush(ca_out_t *out);

/* Where stderr is, or -1, which takes nothing: a program that was started without one gets another
 * file under its number, the next that it opens. */
int ca_out_stderr(void);
/* Once, at load. */
void ca_out_note_stderr(void);

/* Writes all of it, unbuffered. A descriptor that does not block is waited for, `wait_ms` in all, a
 * pipe or a socket that blocks for 5 s, neither of them where that was in vain before: -EAGAIN. A
 * reader that went away raises no SIGPIPE, a limit on the size of files no SIGXFSZ. Returns 0 or a
 * negative errno; preserves errno. */
int ca_out_write(int fd, const char *text, size_t length, int wait_ms);

#endif
