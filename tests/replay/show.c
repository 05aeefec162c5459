/* Lines, table and JSON: see show.h. */
#include "tests/replay/show.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A published cost of a driver's allocation or free on an idle device, in nanoseconds; under load
 * it is more. */
#define CALL_NS 50000.0

const char *policy_name(policy_t policy)
{
    static const char *const names[] = {"cachealloc", "pytorch", "driver"};
    return names[policy];
}

static const pass_t *last(const row_t *row)
{
    return &row->figures.pass[row->figures.passes - 1];
}

static size_t live_peak(const row_t *row)
{
    size_t peak = 0;
    for (unsigned i = 0; i < row->figures.passes; i++)
        if (row->figures.pass[i].live_peak > peak)
            peak = row->figures.pass[i].live_peak;
    return peak;
}

double row_efficiency(const row_t *row)
{
    size_t upstream = last(row)->upstream_peak;
    return row->figures.counted && upstream ? (double)live_peak(row) / (double)upstream : 0;
}

static double ns_per_op(const row_t *row)
{
    double ns = 0, operations = (double)row->figures.operations * row->figures.passes;
    for (unsigned i = 0; i < row->figures.passes; i++)
        ns += (double)row->figures.pass[i].ns;
    return operations > 0 ? ns / operations : 0;
}

static double stall_ms(const row_t *row)
{
    double calls = 0;
    for (unsigned i = 0; i < row->figures.passes; i++)
        calls += (double)row->figures.pass[i].upstream_calls;
    return calls * CALL_NS / 1e6;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void show_lines(const row_t *row)
{
    const figures_t *figures = &row->figures;
    for (unsigned i = 0; i < figures->passes; i++) {
        const pass_t *pass = &figures->pass[i];
        printf("%s: pass %u: %u allocations, peak live %zu bytes", row->path, i + 1,
               figures->allocations, pass->live_peak);
        if (figures->counted)
            printf(", peak upstream %zu bytes, upstream calls %llu, hits %llu", pass->upstream_peak,
                   (unsigned long long)pass->upstream_calls, (unsigned long long)pass->hits);
        else
            printf(", no shim");
        printf(", %llu ns per operation\n",
               (unsigned long long)(figures->operations ? pass->ns / figures->operations : 0));
    }
    printf("%s: %s: %.0f ns per operation", row->path, policy_name(row->policy), ns_per_op(row));
    if (figures->counted)
        printf(", efficiency %.3f, upstream calls would stall %.1f ms, %llu waits",
               row_efficiency(row), stall_ms(row), (unsigned long long)last(row)->waits);
    if (row->least)
        printf(", finishes with %zu bytes of device memory", row->least);
    printf("\n");
}

static void json_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

void show_json(const row_t *rows, size_t count)
{
    printf("[");
    for (const row_t *row = rows; row < rows + count; row++) {
        printf("%s\n  {\"trace\": ", row == rows ? "" : ",");
        json_string(base_name(row->path));
        printf(", \"policy\": \"%s\", \"efficiency\": ", policy_name(row->policy));
        if (row->figures.counted)
            printf("%.4f", row_efficiency(row));
        else
            printf("null");
        printf(", \"upstream_calls\": [");
        for (unsigned i = 0; i < row->figures.passes; i++)
            printf("%s%llu", i ? ", " : "",
                   (unsigned long long)row->figures.pass[i].upstream_calls);
        printf("], \"ns_per_op\": %.1f, \"allocations\": %u, \"peak_live_bytes\": %zu, "
               "\"peak_upstream_bytes\": %zu, \"stall_ms\": %.2f, \"waits\": %llu",
               ns_per_op(row), row->figures.allocations, live_peak(row), last(row)->upstream_peak,
               stall_ms(row), (unsigned long long)last(row)->waits);
        if (row->least)
            printf(", \"least_memory_bytes\": %zu", row->least);
        printf("}");
    }
    printf("%s]\n", count ? "\n" : "");
}

static void show_calls(const row_t *row)
{
    char text[64];
    size_t at = 0;
    for (unsigned i = 0; i < row->figures.passes && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%llu", i ? "/" : "",
                               (unsigned long long)row->figures.pass[i].upstream_calls);
    printf("%14s", text);
}

void show_table(const row_t *rows, size_t count)
{
    double log_ours = 0, log_reference = 0;
    size_t traces = 0, reached = 0;
    bool least = false;
    for (size_t i = 0; i < count; i++)
        least = least || rows[i].least > 0;
    printf("%-40s %9s %9s %9s %14s %14s %7s%s\n", "trace", "live MiB", "cachealloc", "pytorch",
           "calls", "pytorch's", "ns/op", least ? " least MiB pytorch's" : "");
    for (size_t i = 0; i + 1 < count; i += 2) {
        const row_t *ours = &rows[i], *reference = &rows[i + 1];
        bool enough = row_efficiency(ours) >= row_efficiency(reference);
        printf("%-40s %9.1f %9.3f%s %9.3f", base_name(ours->path),
               (double)live_peak(ours) / (1 << 20), row_efficiency(ours), enough ? " " : "<",
               row_efficiency(reference));
        show_calls(ours);
        printf(" ");
        show_calls(reference);
        printf(" %7.0f", ns_per_op(ours));
        if (least)
            printf(" %9zu %9zu", ours->least >> 20, reference->least >> 20);
        printf("\n");
        log_ours += log(row_efficiency(ours));
        log_reference += log(row_efficiency(reference));
        reached += enough;
        traces++;
    }
    if (traces)
        printf("%-40s %9s %9.3f  %9.3f  at least the reference on %zu of %zu\n", "geometric mean",
               "", exp(log_ours / (double)traces), exp(log_reference / (double)traces), reached,
               traces);
}
