/* bench ALLOCATOR CASE THREADS [busy]: a case of cases.h with one allocator.
 *
 * Reads lines with a number of pairs, and answers each with the nanoseconds that they took, how
 * many pairs all threads did together, and the nanoseconds for which the main thread had a core.
 * Ends with status 77 where the allocator has no such memory. The caller decides when each process
 * runs, so that several can take turns; a process that waits for its next line does nothing. */
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include "cases.h"

#define MAX_THREADS 64
#define DEPTH 40 /* frames: call stacks are as deep as any that the shim is asked for here */

static bench_case_t what;
static worker_t workers[MAX_THREADS];
static uint64_t starts[MAX_THREADS], ends[MAX_THREADS];
static pthread_barrier_t barrier;
static int threads;
static uint64_t pairs; /* 0: the end */
static bool busy;
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

static void measure(worker_t *worker)
{
    worker->excluded_ns = 0;
    starts[worker->index] = now_ns();
    run_at_depth(worker, depth);
    ends[worker->index] = now_ns();
}

/* A single thread stays on the last core that it may use. Several are left to the scheduler, which
 * moves them away from cores that others use. */
static void pin(void)
{
    cpu_set_t allowed;
    if (threads > 1 || sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    for (int cpu = 0, left = CPU_COUNT(&allowed); cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && --left > 0)
            CPU_CLR(cpu, &allowed);
    }
    sched_setaffinity(0, sizeof allowed, &allowed);
}

static void *work(void *argument)
{
    worker_t *worker = argument;
    if (what.open)
        what.open(worker);
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
static uint64_t run_all(uint64_t count)
{
    uint64_t first = UINT64_MAX, last = 0, excluded = 0;
    pairs = count;
    if (threads > 1)
        pthread_barrier_wait(&barrier);
    measure(&workers[0]);
    if (threads > 1)
        pthread_barrier_wait(&barrier);
    for (int i = 0; i < threads; i++) {
        first = starts[i] < first ? starts[i] : first;
        last = ends[i] > last ? ends[i] : last;
        excluded += workers[i].excluded_ns;
    }
    return last - first - excluded / (uint64_t)threads;
}

int main(int argc, char **argv)
{
    CHECK(argc > 3);
    CHECK(case_find(argv[2], &what));
    threads = atoi(argv[3]);
    busy = argc > 4;
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
    pin();
    if (busy)
        busy_open();
    if (what.open)
        what.open(&workers[0]);
    if (threads > 1)
        pthread_barrier_wait(&barrier);

    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        uint64_t count = strtoull(line, NULL, 10);
        CHECK(count > 0);
        uint64_t core = clock_ns(CLOCK_THREAD_CPUTIME_ID), took = run_all(count);
        core = clock_ns(CLOCK_THREAD_CPUTIME_ID) - core;
        printf("%llu %llu %llu\n", (unsigned long long)took,
               (unsigned long long)(what.together ? count : count * (uint64_t)threads),
               (unsigned long long)core);
        fflush(stdout);
    }
    pairs = 0;
    if (threads > 1)
        pthread_barrier_wait(&barrier);
    for (int i = 1; i < threads; i++)
        pthread_join(ids[i], NULL);
    if (what.close)
        what.close(&workers[0]);
    return 0;
}
