/* SIM: the race check against small programs that are ordered or not, by streams, events and
 * contexts here; runs these and those of selftest_race_memory.c, selftest_race_graph.c,
 * selftest_race_deferred.c, selftest_race_vmm.c and selftest_dead.c, one process each. The .def
 * files have the lists. With the argument --cost it prints what an operation costs. */
#include "selftest_race.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int failures;

enum { RACE = 99, LIMIT_S = 60 };

static void one_stream(void)
{
    start();
    writes(a);
    reads(a);
    writes(a);
}

static void two_streams(void)
{
    start();
    writes(a);
    writes(b);
}

static void a_read_against_a_later_write(void)
{
    start();
    reads(a);
    writes(b);
}

static void a_write_against_a_later_read(void)
{
    start();
    writes(a);
    reads(b);
}

static void readers_only(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    reads(a);
    reads(b);
    reads(c);
}

static void a_write_after_the_second_of_two_readers_only(void)
{
    start();
    reads(a);
    reads(b);
    OK(cuStreamSynchronize(b));
    writes(c);
}

/* --- events ------------------------------------------------------------------------------------*/
static void an_event_between_streams(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void events_through_a_third_stream(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(c, e, 0));
    OK(cuEventRecord(f, c));
    OK(cuStreamWaitEvent(b, f, 0));
    writes(b);
}

static void a_wait_before_the_record(void)
{
    start();
    writes(a);
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuEventRecord(e, a));
    writes(b);
}

static void a_record_before_the_write(void)
{
    start();
    OK(cuEventRecord(e, a));
    writes(a);
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_wait_that_means_an_older_record(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuEventRecord(e, c)); /* e means c's work now */
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

/* --- what the host waits for -------------------------------------------------------------------*/
static void a_stream_synchronized(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(a));
    writes(b);
}

static void another_stream_synchronized(void)
{
    start();
    writes(a);
    OK(cuStreamSynchronize(c));
    writes(b);
}

static void an_event_synchronized(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuEventSynchronize(e));
    writes(b);
}

static void an_event_queried_until_it_is_done(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    while (cuEventQuery(e) == CUDA_ERROR_NOT_READY) {
    }
    writes(b);
}

static void an_event_queried_too_early(void)
{
    static gate_t g = GATE;
    start();
    gate_hold(&g, a);
    writes(a);
    OK(cuEventRecord(e, a));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    writes(b);
    gate_open(&g);
}

static void an_event_queried_that_was_never_recorded(void)
{
    start();
    writes(a);
    OK(cuEventQuery(e));
    writes(b);
}

static void a_stream_queried_until_it_is_done(void)
{
    start();
    writes(a);
    while (cuStreamQuery(a) == CUDA_ERROR_NOT_READY) {
    }
    writes(b);
}

static void a_stream_queried_too_early(void)
{
    static gate_t g = GATE;
    start();
    gate_hold(&g, a);
    writes(a);
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    writes(b);
    gate_open(&g);
}

static void an_elapsed_time(void)
{
    CUevent begin, end;
    float ms;
    start();
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    OK(cuEventRecord(begin, a));
    writes(a);
    OK(cuEventRecord(end, a));
    while (cuEventElapsedTime(&ms, begin, end) == CUDA_ERROR_NOT_READY) {
    }
    writes(b);
}

static void a_context_synchronized(void)
{
    start();
    writes(a);
    OK(cuCtxSynchronize());
    writes(b);
}

/* --- the legacy stream -------------------------------------------------------------------------*/
static CUstream blocking(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    return s;
}

static void legacy_after_blocking(void)
{
    start();
    writes(blocking());
    writes(NULL);
}

static void blocking_after_legacy(void)
{
    start();
    CUstream s = blocking();
    writes(CU_STREAM_LEGACY);
    writes(s);
}

static void blocking_after_blocking_through_legacy(void)
{
    start();
    CUstream s = blocking(), t = blocking();
    writes(s);
    OK(cuEventRecord(e, NULL)); /* any command on it will do */
    writes(t);
}

static void blocking_after_blocking(void)
{
    start();
    CUstream s = blocking(), t = blocking();
    writes(s);
    writes(t);
}

static void legacy_after_non_blocking(void)
{
    start();
    writes(a);
    writes(NULL);
}

static void non_blocking_after_legacy(void)
{
    start();
    writes(NULL);
    writes(a);
}

static void legacy_after_a_destroyed_blocking_stream(void)
{
    start();
    CUstream s = blocking();
    writes(s);
    OK(cuStreamDestroy(s));
    writes(NULL);
}

static void per_thread_after_legacy(void)
{
    start();
    writes(NULL);
    writes(CU_STREAM_PER_THREAD);
}

static void *writes_per_thread(void *arg)
{
    (void)arg;
    OK(cuCtxSetCurrent(ctx));
    writes(CU_STREAM_PER_THREAD);
    return NULL;
}

static void per_thread_after_per_thread(void)
{
    start();
    writes(CU_STREAM_PER_THREAD);
    in_thread(writes_per_thread, NULL);
}

/* --- whole contexts ----------------------------------------------------------------------------*/
static void a_context_record(void)
{
    start();
    writes(a);
    OK(cuCtxRecordEvent(ctx, e));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_context_record_of_a_destroyed_stream(void)
{
    start();
    writes(a);
    OK(cuStreamDestroy(a));
    OK(cuCtxRecordEvent(ctx, e));
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_context_record_before_the_write(void)
{
    start();
    OK(cuCtxRecordEvent(ctx, e));
    writes(a);
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
}

static void a_context_record_of_another_context(void)
{
    CUevent there;
    start();
    writes(a);
    CUcontext other = second_device();
    OK(cuEventCreate(&there, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxRecordEvent(other, there));
    OK(cuStreamWaitEvent(b, there, 0));
    writes(b);
}

static void a_context_wait(void)
{
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuCtxWaitEvent(ctx, e));
    writes(b);
}

static void a_context_wait_before_the_stream_was_made(void)
{
    CUstream s;
    start();
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuCtxWaitEvent(ctx, e));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    writes(s);
}

static void a_context_wait_of_another_context(void)
{
    CUcontext other;
    start();
    OK(cuCtxCreate(&other, NULL, 0, 0));
    writes(a);
    OK(cuEventRecord(e, a));
    OK(cuCtxWaitEvent(other, e));
    writes(b);
}

/* --- "API synchronization behavior" ------------------------------------------------------------*/
static void a_copy_to_the_host(void)
{
    char to[BYTES];
    start();
    OK(cuMemcpyDtoH(to, p, BYTES));
    writes(a);
}

static void a_copy_from_pinned_memory(void)
{
    void *from;
    start();
    OK(cuMemAllocHost(&from, BYTES));
    OK(cuMemcpyHtoD(p, from, BYTES));
    writes(a);
}

static void a_copy_on_the_device(void)
{
    CUdeviceptr from;
    start();
    OK(cuMemAlloc(&from, BYTES));
    OK(cuMemcpyDtoD(p, from, BYTES));
    writes(a);
}

static void a_set_of_device_memory(void)
{
    start();
    OK(cuMemsetD8(p, 1, BYTES));
    writes(a);
}

static void a_set_of_pinned_memory(void)
{
    void *host;
    start();
    OK(cuMemAllocHost(&host, BYTES));
    p = (CUdeviceptr)host;
    OK(cuMemsetD8(p, 1, BYTES));
    writes(a);
}

static void a_copy_from_pageable_memory(void)
{
    char from[BYTES] = {0};
    start();
    OK(cuMemcpyHtoD(p, from, BYTES));
    writes(a);
}

static void a_copy_from_pageable_memory_by_the_letter(void)
{
    a_copy_from_pageable_memory();
}

/* --- running them ------------------------------------------------------------------------------*/
#define DEAD(name, by, says) void name(void);
#define LIVE(name) void name(void);
#include "selftest_dead.def"
#undef DEAD
#undef LIVE
#define ORDERED(name, keys) void name(void);
#define RACY(name, keys) void name(void);
#define SAYS(name, keys, words) void name(void);
#include "selftest_race_graph.def"
#include "selftest_race_deferred.def"
#include "selftest_race_vmm.def"
#include "selftest_race_memory.def"
#undef ORDERED
#undef RACY
#undef SAYS

static const struct {
    const char *name, *simcuda;
    void (*fn)(void);
    bool racy;
    const char *by, *says; /* of an access to memory that is not live */
} tests[] = {
#define ORDERED(name, keys) {#name, keys, name, false, NULL, NULL},
#define RACY(name, keys) {#name, keys, name, true, NULL, NULL},
#define SAYS(name, keys, words) {#name, keys, name, true, words, NULL},
#include "selftest_race.def"
#include "selftest_race_graph.def"
#include "selftest_race_deferred.def"
#include "selftest_race_vmm.def"
#include "selftest_race_memory.def"
#undef ORDERED
#undef RACY
#undef SAYS
#define DEAD(name, by, says) {#name, "", name, true, by, says},
#define LIVE(name) {#name, "", name, false, NULL, NULL},
#include "selftest_dead.def"
#undef DEAD
#undef LIVE
};

enum { COUNT = sizeof(tests) / sizeof(tests[0]) };

static int lines_of(const char *text, const char *start_of_line)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, start_of_line)); at++) {
        n += at == text || at[-1] == '\n';
    }
    return n;
}

/* The child's status, and what it said on stderr. */
static int run(int i, char *text, size_t size)
{
    int status = -1, pipes[2];
    char keys[256];
    snprintf(keys, sizeof(keys), "racecheck:1%s%s", *tests[i].simcuda ? "," : "", tests[i].simcuda);
    fflush(stdout);
    if (pipe(pipes)) {
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        setenv("SIMCUDA", keys, 1);
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        alarm(LIMIT_S);
        execl("/proc/self/exe", "selftest_race", tests[i].name, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(pipes[0], text + n, size - 1 - n)) > 0;) {
        n += (size_t)got;
    }
    text[n] = 0;
    close(pipes[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

static bool as_wanted(int i)
{
    static char text[1 << 16];
    int status = run(i, text, sizeof(text)), said = lines_of(text, "simcuda: race: ");
    bool ok = tests[i].racy ? status == RACE && said > 0 : status == 0 && said == 0;
    if (tests[i].says) { /* once, and no check of the program failed */
        ok = ok && said == 1 && strstr(text, "is not inside live memory: ") &&
             strstr(text, tests[i].by) && strstr(text, tests[i].says) && !strstr(text, ".c:");
    }
    if (tests[i].by && !tests[i].says) {
        ok = ok && strstr(text, tests[i].by);
    }
    if (strcmp(tests[i].name, "a_hundred_times") == 0) {
        ok = ok && said == 20 && strstr(text, "\nsimcuda: 100 races\n");
    }
    if (!ok) {
        fprintf(stderr, "  %s: exit status %d\n%s", tests[i].name, status, text);
    }
    return ok;
}

static double per_operation(int live)
{
    enum { OPERATIONS = 200000, STREAMS = 8 };
    CUstream s[STREAMS];
    struct timespec from, to;
    start();
    OK(cuMemAlloc(&p, (size_t)live * 1024));
    for (int i = 0; i < STREAMS; i++) {
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    }
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (unsigned i = 0; i < OPERATIONS; i++) {
        unsigned place = i * 2654435761u % (unsigned)live;
        OK(cuMemsetD8Async(p + place * 1024, 1, 700, s[place % STREAMS]));
        if (i % 64 == 0) {
            OK(cuCtxSynchronize());
        }
    }
    OK(cuCtxSynchronize());
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           OPERATIONS;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--cost") == 0) {
        for (int live = 10; live <= 100000; live *= 100) {
            printf("%d pieces: %.0f ns an operation\n", live, per_operation(live));
        }
        return failures != 0;
    }
    if (argc > 1) {
        for (int i = 0; i < COUNT; i++) {
            if (strcmp(tests[i].name, argv[1]) == 0) {
                tests[i].fn();
                return failures ? 1 : 0;
            }
        }
        return 2;
    }
    int bad = 0;
    for (int i = 0; i < COUNT; i++) {
        bool ok = as_wanted(i);
        printf("%s %s %s\n", ok ? "ok  " : "FAIL",
               tests[i].racy ? "racy:   " : "ordered:", tests[i].name);
        bad += !ok;
    }
    printf("%d tests, %d failed, 0 skipped\n", (int)COUNT, bad);
    return bad != 0;
}
