/* What a unit test writes to stderr. Include cmocka first. Header-only, because every unit program
 * is linked alone. */
#ifndef CAPTURE_H
#define CAPTURE_H

#include <unistd.h>

/* stderr goes to a pipe in between. */
static int real_stderr, read_end;
static char captured[65536];

static inline void capture_start(void)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    real_stderr = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    read_end = ends[0];
}

static inline size_t capture_stop(void)
{
    size_t length = 0;
    ssize_t got;
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    while ((got = read(read_end, captured + length, sizeof captured - 1 - length)) > 0)
        length += (size_t)got;
    close(read_end);
    captured[length] = '\0';
    return length;
}

#endif
