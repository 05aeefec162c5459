/* What the calling thread keeps at hand for the fast path (shim/alloc/fast_path.h): one object,
 * since each thread-local one costs a look-up of its address.
 *
 * It is filled in after a call on the slow path, and good for as long as the process's generation
 * (shim/cuda/life_state.h) is the one that it was filled in under: whatever makes any of it untrue
 * for all threads changes that. What is the thread's own and leaves it (its counts, its cache) is
 * forgotten by the code that takes it away. */
#ifndef CA_BASE_THREAD_STATE_H
#define CA_BASE_THREAD_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include "base/record.h"

#define CA_THREAD_NO_GENERATION UINT64_MAX /* is never the process's */

typedef enum {
    CA_API_DRIVER,
    CA_API_RUNTIME,
    CA_APIS,
} ca_api_t;

typedef struct ca_thread {
    uint64_t generations[CA_APIS];   /* of each api: it may be that only one has a fast path */
    void (*get_current)(void);       /* the driver's cuCtxGetCurrent */
    const void *handle;              /* what it says while the rest holds */
    struct ca_thread_counts *counts; /* as ca_thread_counts */
    struct ca_cache *cache;          /* of the thread's, in front of that context's arena */
    struct ca_arena *arena;          /* that one */
    size_t cache_most;               /* bytes of the largest request that it may serve */
    const void *pinned_arena;        /* the same of pinned memory, as asked for last, or NULL */
    struct ca_cache *pinned_cache;
    unsigned pinned_flags;
    ca_record_origin_t origin; /* of its memory in that context */
    struct ca_context *context;
    int64_t
        sample_left; /* bytes to the thread's next sample (registry/table/sample.h); below 0: ask */
    unsigned holds;  /* of cancellation: ca_cancel_hold */
    unsigned number; /* ca_thread_number; 0 before it was asked for */
} ca_thread_t;

extern _Thread_local ca_thread_t ca_thread;

/* The calling thread's, from 1, in the order in which threads were first asked about: for what is
 * dealt out among threads. */
unsigned ca_thread_number_slow(void);
static inline unsigned ca_thread_number(void)
{
    unsigned known = ca_thread.number;
    return __builtin_expect(known != 0, 1) ? known : ca_thread_number_slow();
}

/* No fast path until it is filled in again. */
static inline void ca_thread_forget(void)
{
    for (unsigned i = 0; i < CA_APIS; i++)
        ca_thread.generations[i] = CA_THREAD_NO_GENERATION;
}

/* Thread cancellation, held off while state of ours is half changed or a lock is held around a call
 * that is a cancellation point: a thread that vanishes there would leave all others waiting. Makes
 * no system call. */

/* Returns what the matching call is to be given. They nest, and the outermost pair alone asks the C
 * library: in an order that a signal handler may interrupt. */
static inline int ca_cancel_hold(void)
{
    int before = PTHREAD_CANCEL_DISABLE;
    if (ca_thread.holds == 0)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    ca_thread.holds++;
    return before;
}

static inline void ca_cancel_resume(int before)
{
    if (--ca_thread.holds == 0)
        pthread_setcancelstate(before, NULL);
}

#endif
