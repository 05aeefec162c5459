/* A recorded trace of allocations, plain text or gzip: a header line `op,id,size,stream,t`, then
 * rows in replay order; `a` allocates `size` bytes under `id`, `f` frees `id`. The whole file is
 * read and checked before anything is replayed. Knows nothing of CUDA. */
#ifndef REPLAY_TRACE_H
#define REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct step {
    size_t bytes;  /* of a free: what its allocation asked for */
    uint32_t slot; /* the allocation that it makes or frees, numbered in order of appearance */
    uint32_t line : 31;
    uint32_t allocates : 1;
} step_t;

typedef struct trace {
    const char *name; /* the caller's */
    step_t *steps;
    size_t count, room;
    uint32_t slots;
    size_t live, live_peak; /* requested bytes: at the end, and at most */
} trace_t;

/* 0, or -1 with a message on stderr. In both cases trace_end is due. */
int trace_read(trace_t *trace, const char *name);
void trace_end(trace_t *trace);

/* Makes every size larger or smaller by the same factor, so that about `bytes` are live at most. */
void trace_scale(trace_t *trace, size_t bytes);

/* Says what is wrong with a line, and gives -1. `text` may be NULL. Says nothing while quiet. */
extern bool trace_quiet;
int trace_complain(const trace_t *trace, unsigned long line, const char *what, const char *text);

#endif
