/* What the Python frames of each captured stack take in a program as it runs: linked into a library
 * that is otherwise libcachealloc.so, in front of the calls of registry/python/python.h that
 * a capture makes (ld's --wrap). At the end, one line of JSON goes into the file that PYTHON_PART
 * names: for each kind of capture how many there were, and the nanoseconds of some quantiles, less
 * what reading the clock takes. That is measured beside each capture, around a function that does
 * nothing: amid a program it takes 20 ns more than in a loop, and the first reading, whose code the
 * program has displaced, more still.
 *
 *   known    found by the words of its Python frames
 *   new      merged, from the look-up that failed on
 *   none     of a thread that has no Python frames, as of those that run backwards
 *   all      of these
 *
 * Where PYTHON_PART_OF says `capture`, it is the whole capture instead, native frames and all, to
 * be compared with a run that has no Python frames:
 *
 *   first    of the process's first thread
 *   others   of the others
 *   all      of these
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "registry/python/python.h"
#include "registry/stack/stack.h"

uint32_t __real_ca_stack_capture(void);
uint32_t __wrap_ca_stack_capture(void);

ca_python_at_t __real_ca_python_here(void);
ca_python_at_t __wrap_ca_python_here(void);
uint32_t __real_ca_python_find(ca_python_thread_t *thread, const ca_python_at_t *at,
                               uint32_t native);
uint32_t __wrap_ca_python_find(ca_python_thread_t *thread, const ca_python_at_t *at,
                               uint32_t native);
void __real_ca_python_keep(ca_python_thread_t *thread, uint32_t native, uint32_t id);
void __wrap_ca_python_keep(ca_python_thread_t *thread, uint32_t native, uint32_t id);

enum { KNOWN, NEW, NONE, FIRST, OTHERS, ALL, KINDS };
static const char *const kinds[KINDS] = {"known", "new", "none", "first", "others", "all"};
static bool is_whole; /* of the whole capture */

#define TICKS 65536u /* those that take more count as so many */
static _Atomic uint32_t times[KINDS][TICKS];
static _Thread_local uint64_t empty;  /* of one reading around nothing, before this capture */
static _Thread_local uint64_t before; /* what the calls before took of this capture */
static _Thread_local uint64_t began;

/* Ordered: neither what is before nor what comes after runs beside it. */
static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    __builtin_ia32_lfence();
    uint64_t now = __builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    return now;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

/* Of the call that `began`. */
static uint64_t took_so_far(void)
{
    uint64_t took = ticks() - began;
    return took > empty ? took - empty : 0;
}

static void note(int kind)
{
    uint64_t took = before + took_so_far();
    took = took < TICKS ? took : TICKS - 1;
    atomic_fetch_add_explicit(&times[kind][took], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&times[ALL][took], 1, memory_order_relaxed);
}

static __attribute__((noinline)) void nothing(void)
{
    __asm__ volatile("");
}

static void read_clock(void)
{
    for (int reading = 0; reading < 2; reading++) { /* the first one displaces nothing any more */
        began = ticks();
        nothing();
        empty = ticks() - began;
    }
    before = 0;
    began = ticks();
}

uint32_t __wrap_ca_stack_capture(void)
{
    static _Thread_local enum { UNKNOWN, IS_FIRST, IS_OTHER } thread;
    if (!is_whole)
        return __real_ca_stack_capture();
    if (thread == UNKNOWN)
        thread = syscall(SYS_gettid) == getpid() ? IS_FIRST : IS_OTHER;
    read_clock();
    uint32_t id = __real_ca_stack_capture();
    note(thread == IS_FIRST ? FIRST : OTHERS);
    return id;
}

ca_python_at_t __wrap_ca_python_here(void)
{
    if (is_whole)
        return __real_ca_python_here();
    read_clock();
    ca_python_at_t at = __real_ca_python_here();
    if (at.frame == 0)
        note(NONE);
    else
        before = took_so_far();
    return at;
}

uint32_t __wrap_ca_python_find(ca_python_thread_t *thread, const ca_python_at_t *at,
                               uint32_t native)
{
    if (is_whole)
        return __real_ca_python_find(thread, at, native);
    began = ticks();
    uint32_t id = __real_ca_python_find(thread, at, native);
    if (id != 0)
        note(KNOWN);
    return id;
}

void __wrap_ca_python_keep(ca_python_thread_t *thread, uint32_t native, uint32_t id)
{
    __real_ca_python_keep(thread, native, id);
    if (!is_whole)
        note(NEW);
}

static double ns_of_tick;

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

__attribute__((constructor)) static void calibrate(void)
{
    double from_ns = now_ns();
    uint64_t from = ticks();
    while (now_ns() - from_ns < 5e6)
        continue;
    double to_ns = now_ns();
    ns_of_tick = (to_ns - from_ns) / (double)(ticks() - from);
    const char *of = getenv("PYTHON_PART_OF");
    is_whole = of && strcmp(of, "capture") == 0;
}

static uint64_t count_of(int kind)
{
    uint64_t count = 0;
    for (size_t took = 0; took < TICKS; took++)
        count += times[kind][took];
    return count;
}

static double quantile(int kind, uint64_t count, double part)
{
    uint64_t seen = 0;
    size_t took = 0;
    while (took < TICKS - 1 && (seen += times[kind][took]) <= (uint64_t)((double)count * part))
        took++;
    return (double)took * ns_of_tick;
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("PYTHON_PART");
    bool any = count_of(ALL) != 0; /* its children have none */
    FILE *to = path && any ? fopen(path, "we") : NULL;
    if (!to)
        return;
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t count = count_of(kind);
        fprintf(to, "%s\"%s\": {\"captures\": %llu, \"median_ns\": %.1f, \"p90_ns\": %.1f}",
                kind ? ", " : "{", kinds[kind], (unsigned long long)count,
                quantile(kind, count, 0.5), quantile(kind, count, 0.9));
    }
    fprintf(to, "}\n");
    fclose(to);
}
