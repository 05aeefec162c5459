/* A program that lives long: threads that come and go, in rounds. See soak.c. */
#ifndef CA_TESTS_SOAK_H
#define CA_TESTS_SOAK_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "tests/preload/check.h"
#include "tests/preload/shim_stats.h"

typedef enum {
    ROUND_PLAIN,  /* every call must succeed, or say that memory is short */
    ROUND_FAULTS, /* calls of the driver fail at random; all devices are reset at the end */
    ROUND_RESETS, /* the last device is reset now and then; on it, codes for that are allowed */
} round_kind_t;

typedef struct round {
    round_kind_t kind;
    int devices;
    uint64_t operations; /* for each thread */
    atomic_bool over;    /* for those that go on until the others are done */
} round_t;

typedef struct worker {
    round_t *round;
    uint64_t random;
    void (*work)(struct worker *worker);
} worker_t;

/* What a thread may be told to do. Each leaves nothing behind but buffers in the exchange. */
typedef struct role {
    const char *name;
    void (*work)(worker_t *worker);
    unsigned kinds;  /* of rounds, bits 1 << round_kind_t */
    bool background; /* until the others are done */
} role_t;

extern const role_t roles[];
extern const size_t role_count;

extern _Atomic uint64_t operations; /* of all threads */
extern _Atomic uint64_t contexts;   /* that there ever were */

/* Frees what threads left for others to free. Nobody else is at work. */
void exchange_empty(const round_t *round);

/* No call fails any more. */
void faults_off(void);

#endif
