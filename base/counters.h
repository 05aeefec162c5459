/* Counts of events for the whole process. Each thread keeps its own, so that counting costs the
 * fast path no cache line that another thread writes. They are read for reports, never for
 * decisions. A thread without counts of its own adds to the common ones. */
#ifndef CA_BASE_COUNTERS_H
#define CA_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include "base/thread_state.h"

typedef struct ca_counters {
#define CA_COUNTER(name, label) _Atomic uint64_t name;
#include "base/counters.def"
#undef CA_COUNTER
} ca_counters_t;

/* Written by its thread alone, read by all. It outlives its thread and is then another's, which
 * counts on from there. */
typedef struct ca_thread_counts {
    /* Of the fast path. A call is counted by its api alone, instead of as each of the things that
     * it is: ca_counter_sum adds it to those. */
    _Atomic uint64_t fast_allocs[CA_APIS], fast_frees[CA_APIS];
    /* The registry's (registry/table/live.h). */
    _Atomic uint64_t
        live; /* allocations less frees, without the fast path's; wraps where others allocated */
    _Atomic uint64_t credit; /* live bytes that this thread may add without publishing them */
    uint64_t credit_most;    /* its own; 0: not known yet */
    uint64_t ahead;          /* its own; bytes to publish in advance: see registry/table/live.h */
    /* Numbers for its allocations, as they lie in a record's state: the latest, the last of them.
     */
    _Atomic uint64_t sequence, last;
    ca_counters_t counters;
    struct ca_thread_counts *next, *next_left;
} ca_thread_counts_t;

extern ca_thread_counts_t ca_thread_counts_common;
/* The calling thread's, or NULL. */
extern _Thread_local ca_thread_counts_t *ca_thread_counts;

/* Gives the calling thread one if it has none. Takes a lock; must not be called under one. Without
 * memory, or without a way to learn that the thread ends, none. */
void ca_thread_counts_join(void);

/* Threads that have one, 1 at least. */
extern _Atomic unsigned ca_thread_counts_count;
static inline unsigned ca_thread_counts_threads(void)
{
    unsigned count = atomic_load_explicit(&ca_thread_counts_count, memory_order_relaxed);
    return count ? count : 1;
}

/* All but the common one. None is ever unmapped. */
const ca_thread_counts_t *ca_thread_counts_first(void);
static inline const ca_thread_counts_t *ca_thread_counts_next(const ca_thread_counts_t *counts)
{
    return counts->next;
}

/* In the child of a fork: everything from 0. */
void ca_thread_counts_reset_after_fork(void);

/* ThreadSanitizer does not see what assembly writes. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define CA_COUNT_IN_ONE
#endif

/* Of an owner: a sum that others may read at any time. From an atomic load and an atomic store the
 * compiler makes three instructions; where one does the same, it is named. */
static inline void ca_thread_counts_add(_Atomic uint64_t *field, uint64_t n)
{
#ifdef CA_COUNT_IN_ONE
    __asm__("addq %1, %0" : "+m"(*field) : "er"(n) : "cc");
#else
    uint64_t sum = atomic_load_explicit(field, memory_order_relaxed) + n;
    atomic_store_explicit(field, sum, memory_order_relaxed);
#endif
}

/* The same the other way. */
static inline void ca_thread_counts_take(_Atomic uint64_t *field, uint64_t n)
{
#ifdef CA_COUNT_IN_ONE
    __asm__("subq %1, %0" : "+m"(*field) : "er"(n) : "cc");
#else
    ca_thread_counts_add(field, -n);
#endif
}

#define ca_count_add(name, n)                                                                      \
    do {                                                                                           \
        ca_thread_counts_t *counts_ = ca_thread_counts;                                            \
        if (__builtin_expect(counts_ != NULL, 1))                                                  \
            ca_thread_counts_add(&counts_->counters.name, (uint64_t)(n));                          \
        else                                                                                       \
            atomic_fetch_add_explicit(&ca_thread_counts_common.counters.name, (uint64_t)(n),       \
                                      memory_order_relaxed);                                       \
    } while (0)
#define ca_count(name) ca_count_add(name, 1)

/* How many more allocations than frees the fast path served. */
uint64_t ca_thread_counts_live_fast(const ca_thread_counts_t *counts);

/* Of all threads together, the fast path's calls included. */
uint64_t ca_counter_sum(size_t offset);
#define ca_counter_read(name) ca_counter_sum(offsetof(ca_counters_t, name))

#endif
