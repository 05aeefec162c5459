/*
 * Gates: kernels that run until they are opened, then write to a place that they get
 * (facts_gate.c).
 *
 * The facts about reuse in order (order_*) use them. There is one hold (facts_hold.c) at a
 * time, which may be a host function; there are several gates, each says when it runs and when it
 * is over, without a call of the driver's. On the simulator the kernel has a body that does the
 * same.
 */
#ifndef TESTS_GPU_FACTS_GATE_H
#define TESTS_GPU_FACTS_GATE_H

#include "facts.h"

#include <stdatomic.h>

/* In pinned memory, as the kernels know it: by these offsets. */
typedef struct gate {
    _Atomic uint32_t open;  /* 0 */
    _Atomic uint32_t begun; /* 4 */
    uint64_t where;         /* 8: written once it is open */
    uint64_t bytes;         /* 16 */
    uint64_t limit_ns;      /* 24: it opens by itself then */
    uint32_t value;         /* 32 */
    _Atomic uint32_t over;  /* 36 */
    /* The host's alone. */
    uint64_t closed_at;
    _Atomic bool overran;
} gate_t;

/* Loads the kernel into the current context and runs it once; says so in a row where it cannot. */
bool gates_ready(void);
/* One with nothing to write. No more than GATES may be in use at the same time. */
#define GATES 1024
gate_t *gate_closed(void);
gate_t *gate_marking(void); /* is open: it says when the stream reaches it */
CUresult gate_launch(gate_t *gate, CUstream stream);
/* Whether it is so within that time. */
bool gate_begins(const gate_t *gate, int ms);
bool gate_ends(const gate_t *gate, int ms);
void gate_open(gate_t *gate);
/* A thread opens it after that time, unless it is open; gate_join waits for the thread. */
void gate_open_after(gate_t *gate, int ms);
void gate_join(void);
/* True where it was closed for GATE_LIMIT_MS: the watchdog has opened it then, and what was to be
 * seen while it was closed has not been seen. */
#define GATE_LIMIT_MS 1500
bool gate_overran(const gate_t *gate);

/* For kernels of other files: whether `flag` of a gate is set, within that time. */
bool flag_set(const _Atomic uint32_t *flag, int ms);

#endif
