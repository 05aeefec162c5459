/*
 * Rows of the fact script, and clocks.
 *
 * A row is built in one buffer and leaves by one write(2): a fact that crashes or is stopped keeps
 * every row before that, and destructors can still report after stdio is closed.
 */
#include "facts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char row[16384];
static size_t row_len;

static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int n = vsnprintf(row + row_len, sizeof row - row_len, format, args);
    va_end(args);
    if (n > 0 && row_len + (size_t)n < sizeof row)
        row_len += (size_t)n;
}

void json_string(char *out, size_t bytes, const char *value)
{
    size_t at = 0;

    out[at++] = '"';
    for (const char *c = value; *c && at + 8 < bytes; c++) {
        if (*c == '"' || *c == '\\')
            out[at++] = '\\';
        out[at++] = (unsigned char)*c < 0x20 ? ' ' : *c;
    }
    out[at++] = '"';
    out[at] = 0;
}

static void key_of(const char *key)
{
    put("%s\"%s\": ", row[row_len - 1] == '{' ? "" : ", ", key);
}

void row_begin(void)
{
    row_len = 0;
    put("ROW {");
}

void row_str(const char *key, const char *value)
{
    char quoted[1024];

    json_string(quoted, sizeof quoted, value ? value : "NULL");
    key_of(key);
    put("%s", quoted);
}

void row_int(const char *key, long long value)
{
    key_of(key);
    put("%lld", value);
}

void row_num(const char *key, double value)
{
    key_of(key);
    put("%.1f", value);
}

void row_bool(const char *key, bool value)
{
    key_of(key);
    put("%s", value ? "true" : "false");
}

static void row_code(const char *key, const char *name, int code)
{
    char text[160];

    snprintf(text, sizeof text, "%s (%d)", name ? name : "?", code);
    row_str(key, text);
}

void row_drv(const char *key, CUresult code)
{
    const char *name = NULL;

    cuGetErrorName(code, &name);
    row_code(key, name, (int)code);
}

void row_rt(const char *key, cudaError_t code)
{
    row_code(key, cudaGetErrorName(code), (int)code);
}

void row_end(void)
{
    put("}\n");
    for (size_t at = 0; at < row_len;) {
        ssize_t n = write(STDOUT_FILENO, row + at, row_len - at);
        if (n <= 0)
            return;
        at += (size_t)n;
    }
}

void row_note(const char *text)
{
    row_begin();
    row_str("note", text);
    row_end();
}

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

    nanosleep(&t, NULL);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

spread_t spread_of(double *samples, int count)
{
    if (count == 0)
        return (spread_t){0, 0};
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    return (spread_t){samples[count / 2], samples[count * 9 / 10]};
}

void row_spread(const char *key, spread_t s)
{
    char name[64];

    snprintf(name, sizeof name, "%s_median_ns", key);
    row_num(name, s.median_ns);
    snprintf(name, sizeof name, "%s_p90_ns", key);
    row_num(name, s.p90_ns);
}
