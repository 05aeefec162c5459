/* Reports while threads allocate and free: dumps DIRECTORY COUNT
 *
 * Two threads hold 500 blocks each for good and allocate and free others without a pause. Written
 * to stdout: for each report the allocations and bytes that it must have at least and at most, by
 * what the threads counted before and after it, the longest call meanwhile, and how long the
 * report took, in nanoseconds. Left out of a call's time is that for which the thread was ready to
 * run and had no core, by /proc/thread-self/schedstat. For every fourth report the threads rest
 * between two calls: what it must have is then known to the byte. After each of the others
 * the same time is spent without a report, by this thread's doing nothing of use: the longest call
 * meanwhile, the last figure of the line (0 where there was none), is what threads on few cores do
 * to each other. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define NOINLINE __attribute__((noinline))
#define THREADS 2
#define HELD 500
#define WINDOW 16

typedef struct count {
    atomic_ullong calls, bytes;
} count_t;

/* Both begin before the call and are done after it. */
static struct {
    count_t alloc_begun, alloc_done, free_begun, free_done;
} counted[THREADS];

static atomic_ullong longest;
static atomic_int ready, resting;
static atomic_bool stop, rest;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void add(count_t *count, size_t bytes)
{
    atomic_fetch_add(&count->calls, 1);
    atomic_fetch_add(&count->bytes, bytes);
}

/* How long the thread was ready to run and had no core, in nanoseconds: the second figure. */
static uint64_t without_core(int schedstat)
{
    char text[64] = "";
    unsigned long long ran, stood = 0;
    if (schedstat >= 0 && pread(schedstat, text, sizeof text - 1, 0) > 0)
        CHECK(sscanf(text, "%llu %llu", &ran, &stood) == 2);
    return stood;
}

typedef struct moment {
    uint64_t time, stood;
} moment_t;

static _Thread_local int schedstat;

/* Both of one moment: not off its core between them. */
static moment_t now(void)
{
    moment_t moment;
    do {
        moment.stood = without_core(schedstat);
        moment.time = now_ns();
    } while (without_core(schedstat) != moment.stood);
    return moment;
}

static void note_call(moment_t begin)
{
    unsigned long long took = now_ns() - begin.time, most = atomic_load(&longest);
    if (took <= most)
        return;
    moment_t end = now();
    took = (end.time - begin.time) - (end.stood - begin.stood);
    while (took > most && !atomic_compare_exchange_weak(&longest, &most, took))
        ;
}

static NOINLINE void hold(size_t self)
{
    for (size_t i = 0; i < HELD; i++) {
        void *pointer;
        size_t bytes = 1 + i * 37 % 9000;
        add(&counted[self].alloc_begun, bytes);
        OK(cudaMalloc(&pointer, bytes));
        add(&counted[self].alloc_done, bytes);
    }
}

static NOINLINE void exchange(size_t self, void **pointer, size_t *bytes, size_t next)
{
    if (*pointer) {
        add(&counted[self].free_begun, *bytes);
        moment_t begin = now();
        OK(cudaFree(*pointer));
        note_call(begin);
        add(&counted[self].free_done, *bytes);
    }
    *bytes = next;
    add(&counted[self].alloc_begun, next);
    moment_t begin = now();
    OK(cudaMalloc(pointer, next));
    note_call(begin);
    add(&counted[self].alloc_done, next);
}

static void *work(void *arg)
{
    size_t self = (size_t)(uintptr_t)arg, bytes[WINDOW] = {0};
    void *pointers[WINDOW] = {NULL};
    uint64_t seed = self + 1;
    schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    hold(self);
    for (size_t i = 0; !atomic_load(&stop); i++) {
        uint64_t random = next_random(&seed);
        exchange(self, &pointers[i % WINDOW], &bytes[i % WINDOW], 1 + random % (600u << 10));
        if (i == WINDOW)
            atomic_fetch_add(&ready, 1);
        if (atomic_load(&rest)) {
            atomic_fetch_add(&resting, 1);
            while (atomic_load(&rest))
                sched_yield();
            atomic_fetch_sub(&resting, 1);
        }
    }
    for (size_t i = 0; i < WINDOW; i++)
        OK(cudaFree(pointers[i]));
    if (schedstat >= 0)
        close(schedstat);
    return NULL;
}

typedef struct sums {
    long long least_calls, most_calls, least_bytes, most_bytes;
} sums_t;

/* `sign` 1: as counted before the report, what must be in it; -1: after it, what may not. */
static void sum_up(sums_t *sums, bool before)
{
#define READ(which, what) ((long long)atomic_load(&counted[i].which.what))
    for (size_t i = 0; i < THREADS; i++) {
        if (before) {
            sums->least_calls += READ(alloc_done, calls);
            sums->least_bytes += READ(alloc_done, bytes);
            sums->most_calls -= READ(free_done, calls);
            sums->most_bytes -= READ(free_done, bytes);
        } else {
            sums->least_calls -= READ(free_begun, calls);
            sums->least_bytes -= READ(free_begun, bytes);
            sums->most_calls += READ(alloc_begun, calls);
            sums->most_bytes += READ(alloc_begun, bytes);
        }
    }
#undef READ
}

/* As long as a report took. */
static uint64_t wait_amid_nothing(uint64_t took)
{
    uint64_t begin = now_ns();
    atomic_store(&longest, 0);
    while (now_ns() - begin < took)
        ;
    return atomic_load(&longest);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    char path[4096];
    void *first;
    CHECK(argc == 3);
    OK(cudaMalloc(&first, 1)); /* until the unwinder is there, others go without stacks */
    OK(cudaFree(first));
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i));
    while (atomic_load(&ready) < THREADS)
        sched_yield();
    for (int n = 0; n < atoi(argv[2]); n++) {
        sums_t sums = {0};
        atomic_store(&rest, n % 4 == 3);
        while (atomic_load(&resting) != (n % 4 == 3 ? THREADS : 0))
            sched_yield();
        snprintf(path, sizeof path, "%s/report-%d", argv[1], n);
        atomic_store(&longest, 0);
        sum_up(&sums, true);
        errno = 1234;
        uint64_t begin = now_ns();
        OK(cachealloc_dump(path));
        CHECK(errno == 1234);
        uint64_t took = now_ns() - begin;
        sum_up(&sums, false);
        unsigned long long wait = atomic_load(&longest);
        printf("%lld %lld %lld %lld %llu %llu %llu\n", sums.least_calls, sums.most_calls,
               sums.least_bytes, sums.most_bytes, wait, (unsigned long long)took,
               n % 4 == 3 ? 0 : (unsigned long long)wait_amid_nothing(took));
    }
    atomic_store(&rest, false);
    atomic_store(&stop, true);
    for (size_t i = 0; i < THREADS; i++)
        OK(pthread_join(threads[i], NULL));
    return 0;
}
