/* stacks ROUNDS MILLISECONDS: what the capture of a call stack of 16 frames costs, beside
 * libunwind's unw_backtrace on the same stacks. JSON, a line for each case:
 *
 *   frames_16   stacks that start at different places, 16 captures from each
 *   wrapper_N   N stacks that all start at one place, return address and stack pointer, and differ
 *               beyond it, as those do that lead through a wrapper; in an order that is not regular
 *
 * All are measured in turn, in each round, for so many milliseconds each; what the calls around a
 * capture cost is measured too, and taken off. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "registry/stack/stack.h"

#define FRAMES 16
#define SKIPPED 77
#define NOINLINE __attribute__((noinline, noclone))
#define MOST_THREADS 2
#define MOST_ROUNDS 64

typedef uint32_t capture_t(void);

static __thread volatile uint32_t sink; /* written after calls, so that none becomes a jump */
static int (*unw_backtrace)(void **frames, int most);

static NOINLINE uint32_t nothing(void)
{
    return 1;
}

static NOINLINE uint32_t unwind(void)
{
    void *frames[FRAMES];
    return (uint32_t)unw_backtrace(frames, FRAMES);
}

/* --- stacks ----------------------------------------------------------------------------------- */

#define PATHS 8
#define PER_PATH 16

static NOINLINE void at_end(capture_t *capture, unsigned way)
{
    volatile char room[64];
    room[way % 64] = 1;
    for (volatile int i = 0; i < PER_PATH; i++)
        sink += capture();
    sink += (uint32_t)room[way % 64];
}

static NOINLINE void one_way(capture_t *capture, unsigned way, unsigned levels);

static NOINLINE void other_way(capture_t *capture, unsigned way, unsigned levels)
{
    volatile char room[96];
    room[levels] = 1;
    if (levels == 0)
        at_end(capture, way);
    else if (way >> levels % 3 & 1)
        one_way(capture, way, levels - 1);
    else
        other_way(capture, way, levels - 1);
    sink += (uint32_t)room[levels];
}

static NOINLINE void one_way(capture_t *capture, unsigned way, unsigned levels)
{
    if (levels == 0)
        at_end(capture, way);
    else if (way >> levels % 3 & 1)
        other_way(capture, way, levels - 1);
    else
        one_way(capture, way, levels - 1);
    sink++;
}

static unsigned on_paths(capture_t *capture, unsigned unused)
{
    (void)unused;
    for (unsigned path = 0; path < PATHS; path++)
        one_way(capture, path, FRAMES);
    return PATHS * PER_PATH;
}

static NOINLINE void wrapper(capture_t *capture)
{
    volatile char room[32];
    room[0] = 1;
    sink += capture();
    sink += (uint32_t)room[0];
}

#define CALLER(n)                                                                                  \
    static NOINLINE void caller_##n(capture_t *capture)                                            \
    {                                                                                              \
        wrapper(capture);                                                                          \
        sink += n;                                                                                 \
    }
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define ALL(X) EIGHT(X, 1) EIGHT(X, 2) EIGHT(X, 3) EIGHT(X, 4)
ALL(CALLER)

#define NAME(n) caller_##n,
static void (*const callers[])(capture_t *) = {ALL(NAME)};

#define CALLS 256

static NOINLINE void call_some(capture_t *capture, unsigned stacks, unsigned levels)
{
    if (levels > 0) {
        call_some(capture, stacks, levels - 1);
    } else {
        uint32_t random = 1;
        for (int i = 0; i < CALLS; i++) {
            random = random * 1664525 + 1013904223;
            callers[(random >> 16) % stacks](capture);
        }
    }
    sink++;
}

static unsigned by_wrapper(capture_t *capture, unsigned stacks)
{
    call_some(capture, stacks, FRAMES);
    return CALLS;
}

/* --- measuring -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    unsigned (*walk)(capture_t *capture, unsigned stacks); /* returns how many captures it made */
    unsigned stacks;
    unsigned threads;
} cases[] = {
    {"frames_16", on_paths, 0, 1},   {"frames_16", on_paths, 0, 2},
    {"wrapper_8", by_wrapper, 8, 1}, {"wrapper_32", by_wrapper, 32, 1},
    {"wrapper_8", by_wrapper, 8, 2}, {"wrapper_32", by_wrapper, 32, 2},
};
#define CASES (sizeof cases / sizeof cases[0])

enum { FLOOR, OURS, THEIRS, WHATS };
static capture_t *const captures[WHATS] = {nothing, ca_stack_capture, unwind};

enum { WALL, CORE, CLOCKS };
static const clockid_t clocks[CLOCKS] = {CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID};

static unsigned rounds;
static double slot_ns;
static pthread_barrier_t start;
static double times[MOST_THREADS][CASES][WHATS][MOST_ROUNDS][CLOCKS];

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void measure(size_t which, int what, double ns[CLOCKS])
{
    double begun[CLOCKS], done = 0;
    for (int clock = 0; clock < CLOCKS; clock++)
        begun[clock] = now(clocks[clock]);
    do {
        for (int i = 0; i < 8; i++)
            done += cases[which].walk(captures[what], cases[which].stacks);
    } while (now(CLOCK_MONOTONIC) - begun[WALL] < slot_ns);
    for (int clock = 0; clock < CLOCKS; clock++)
        ns[clock] = (now(clocks[clock]) - begun[clock]) / done;
}

static void *work(void *arg)
{
    uintptr_t thread = (uintptr_t)arg;
    double unused[CLOCKS];
    for (size_t which = 0; which < CASES; which++) /* what is to be remembered is */
        for (int what = 0; what < WHATS; what++)
            measure(which, what, unused);
    for (unsigned round = 0; round < rounds; round++)
        for (size_t which = 0; which < CASES; which++)
            for (int i = 0; i < WHATS; i++) {
                int what = (int)((round + (unsigned)i) % WHATS);
                pthread_barrier_wait(&start);
                if (thread < cases[which].threads)
                    measure(which, what, times[thread][which][what][round]);
            }
    return NULL;
}

static void print(size_t which)
{
    static const char *const names[WHATS] = {"floor", "ours", "unw_backtrace"};
    static const char *const clock_names[CLOCKS] = {"wall", "core"};
    printf("{\"case\": \"%s\", \"threads\": %u", cases[which].name, cases[which].threads);
    for (int what = 0; what < WHATS; what++)
        for (int clock = 0; clock < CLOCKS; clock++) {
            printf(", \"%s_%s\": [", names[what], clock_names[clock]);
            for (unsigned round = 0; round < rounds; round++) {
                double sum = 0;
                for (unsigned thread = 0; thread < cases[which].threads; thread++)
                    sum += times[thread][which][what][round][clock];
                printf("%s%.2f", round ? ", " : "", sum / cases[which].threads);
            }
            printf("]");
        }
    printf("}\n");
}

int main(int argc, char **argv)
{
    pthread_t threads[MOST_THREADS];
    uintptr_t frames[CA_STACK_MAX];
    rounds = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
    slot_ns = argc == 3 ? atof(argv[2]) * 1e6 : 0;
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: stacks ROUNDS MILLISECONDS, with at most %d rounds\n", MOST_ROUNDS);
        return 2;
    }
    void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    unw_backtrace = library ? (int (*)(void **, int))dlsym(library, "unw_backtrace") : NULL;
    if (!unw_backtrace) {
        fprintf(stderr, "no libunwind\n");
        return SKIPPED;
    }
    ca_stack_start(FRAMES);
    pthread_barrier_init(&start, NULL, MOST_THREADS);
    for (uintptr_t i = 0; i < MOST_THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0)
            return 2;
    for (int i = 0; i < MOST_THREADS; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t id = 1; id <= ca_stack_count(); id++)
        if (ca_stack_frames(id, frames, CA_STACK_MAX) != FRAMES) {
            fprintf(stderr, "stack %u has not %d frames\n", id, FRAMES);
            return 2;
        }
    for (size_t which = 0; which < CASES; which++)
        print(which);
    return 0;
}
