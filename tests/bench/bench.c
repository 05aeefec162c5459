/* bench ALLOCATOR CASE THREADS [STREAMS]: a case of cases.h with one allocator, with kernels in
 * flight on so many streams of each thread.
 *
 * Reads lines with a number of pairs, and answers each with the nanoseconds that they took, how
 * many pairs all threads did together, the nanoseconds for which the main thread had a core, and
 * those of a fixed piece of work on the slowest core, just before or after (fixed_work). Ends with
 * status 77 where the allocator has no such memory. The caller decides when each process runs, so
 * that several can take turns; a process that waits for its next line does nothing. */
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include "cases.h"

#define MAX_THREADS 64
#define FIXED_WORK 1000000
#define DEPTH 40 /* frames: call stacks are as deep as any that the shim is asked for here */

/* Of a thread's latest repetition, in ns. */
typedef struct timing {
    uint64_t start, end;
    uint64_t core;  /* for which the thread had one between them */
    uint64_t fixed; /* what fixed_work took */
} timing_t;

static bench_case_t what;
static worker_t workers[MAX_THREADS];
static timing_t timings[MAX_THREADS];
static pthread_barrier_t barrier;
static int threads;
static uint64_t pairs; /* 0: the end */
static size_t busy;    /* streams */
static volatile int depth = DEPTH;

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

static void wait_for_all(void)
{
    if (threads > 1)
        pthread_barrier_wait(&barrier);
}

static __attribute__((noinline)) void run_at_depth(worker_t *worker, int frames)
{
    if (frames > 0)
        run_at_depth(worker, frames - 1);
    else if (busy)
        busy_run(worker, pairs);
    else
        what.run(worker, pairs);
    __asm__ volatile("" ::: "memory"); /* or the call above becomes a jump */
}

/* What keeps a core busy all by itself, and touches no memory, in all threads at once. The ns of
 * the thread's core that it took: double where the machine runs two cores of ours as the two halves
 * of one, which virtual machines do by turns. */
static uint64_t fixed_work(void)
{
    uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
    wait_for_all();
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < FIXED_WORK; i++) {
        a++, b++, c++, d++, e++, f++;
        __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
    }
    return clock_ns(CLOCK_THREAD_CPUTIME_ID) - start;
}

static void measure(worker_t *worker)
{
    timing_t *timing = &timings[worker->index];
    uint64_t before = fixed_work();
    worker->excluded_ns = 0;
    wait_for_all();
    timing->core = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    timing->start = now_ns();
    run_at_depth(worker, depth);
    timing->end = now_ns();
    timing->core = clock_ns(CLOCK_THREAD_CPUTIME_ID) - timing->core;
    timing->fixed = fixed_work();
    if (timing->fixed < before)
        timing->fixed = before;
}

/* Each thread stays on one of the cores that it may use, from the last one down. Left to the
 * scheduler, threads that wake together share a core for the first milliseconds of a repetition. */
static void pin(int index)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    int left = CPU_COUNT(&allowed) - index % CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && --left != 0)
            CPU_CLR(cpu, &allowed);
    }
    sched_setaffinity(0, sizeof allowed, &allowed);
}

static void open_case(worker_t *worker)
{
    if (what.open)
        what.open(worker);
    if (busy)
        busy_open(worker, busy);
}

static void *work(void *argument)
{
    worker_t *worker = argument;
    pin(worker->index);
    open_case(worker);
    pthread_barrier_wait(&barrier); /* open */
    for (;;) {
        pthread_barrier_wait(&barrier); /* `pairs` is set */
        if (!pairs)
            break;
        measure(worker);
        pthread_barrier_wait(&barrier); /* done */
    }
    if (what.close)
        what.close(worker);
    return NULL;
}

/* All threads, the main one among them: a process of one thread is one, for allocators that know.
 */
static void run_all(uint64_t count)
{
    pairs = count;
    wait_for_all();
    measure(&workers[0]);
    wait_for_all();
}

static void answer(uint64_t count)
{
    uint64_t first = UINT64_MAX, last = 0, excluded = 0, fixed = 0;
    for (int i = 0; i < threads; i++) {
        first = timings[i].start < first ? timings[i].start : first;
        last = timings[i].end > last ? timings[i].end : last;
        fixed = timings[i].fixed > fixed ? timings[i].fixed : fixed;
        excluded += workers[i].excluded_ns;
    }
    printf("%llu %llu %llu %llu\n",
           (unsigned long long)(last - first - excluded / (uint64_t)threads),
           (unsigned long long)(what.together ? count : count * (uint64_t)threads),
           (unsigned long long)timings[0].core, (unsigned long long)fixed);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    CHECK(argc > 3);
    CHECK(case_find(argv[2], &what));
    threads = atoi(argv[3]);
    busy = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    CHECK(threads >= 1 && threads <= MAX_THREADS && (!what.together || threads == 2));
    OK(cudaFree(NULL)); /* the context */
    if (!peer_open(argv[1]) || !peer_has(what.memory))
        return 77;

    pthread_t ids[MAX_THREADS] = {0};
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        workers[i] = (worker_t){.what = &what, .index = i, .random = (uint64_t)i * 7919 + 11};
    for (int i = 1; i < threads; i++)
        CHECK(pthread_create(&ids[i], NULL, work, &workers[i]) == 0);
    pin(0);
    open_case(&workers[0]);
    wait_for_all();

    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t count = strtoull(line, NULL, 10);
        CHECK(count > 0);
        run_all(count);
        answer(count);
    }
    pairs = 0;
    wait_for_all();
    for (int i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
    if (what.close)
        what.close(&workers[0]);
    return 0;
}
