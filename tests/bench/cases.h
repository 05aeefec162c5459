/* What the bench measures. A case is a loop of pairs over the calls of peer.h; bench.c runs it in
 * threads and holds the clock. */
#ifndef CA_TESTS_BENCH_CASES_H
#define CA_TESTS_BENCH_CASES_H

#include <stdint.h>
#include "peer.h"
#include "tests/preload/check.h"

#define MAX_STREAMS 32

typedef struct worker worker_t;

typedef struct bench_case {
    void (*open)(worker_t *worker);                /* may be NULL */
    void (*run)(worker_t *worker, uint64_t pairs); /* any number of times */
    void (*close)(worker_t *worker);               /* frees what open and run left; may be NULL */
    peer_memory_t memory;
    size_t bytes; /* of each block; 0: 256 B to 1 MiB, log-uniform */
    size_t live;
    size_t streams;
    bool together; /* the threads work on the same pairs */
} bench_case_t;

typedef struct slot {
    void *block;
    size_t bytes;
} slot_t;

struct worker {
    const bench_case_t *what;
    int index;
    uint64_t random;
    slot_t *slots;
    size_t next;          /* slot */
    uint64_t excluded_ns; /* of the latest run, that was not the allocator's */
    cudaStream_t streams[MAX_STREAMS];
    struct busy *busy; /* kernels in flight that this thread launches */
} __attribute__((aligned(128)));

/* Fills in the case called `name`, for example "hot_1KiB"; false where there is none. */
bool case_find(const char *name, bench_case_t *found);

/* Two threads: the first allocates, the second frees. */
void prodcons_run(worker_t *worker, uint64_t pairs);

/* worker->what->run with kernels in flight all the time on so many streams, those of the case where
 * it has some; what they take is excluded. After the case is open. */
void busy_open(worker_t *worker, size_t streams);
void busy_run(worker_t *worker, uint64_t pairs);

uint64_t now_ns(void);

static inline void *must(void *block)
{
    if (__builtin_expect(!block, 0))
        FAIL("out of memory");
    return block;
}

#endif
