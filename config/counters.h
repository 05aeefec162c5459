/* Counts of events for the whole process, and what a thread keeps for itself so that counting costs
 * a hit no line that another thread writes: its tally. They are read for reports, never for
 * decisions. A thread without a tally counts in the common one. */
#ifndef CA_CONFIG_COUNTERS_H
#define CA_CONFIG_COUNTERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ca_counters {
#define CA_COUNTER(name, label) _Atomic uint64_t name;
#include "config/counters.def"
#undef CA_COUNTER
} ca_counters_t;

/* Written by its thread alone, read by all. It outlives its thread and is then another's, which
 * counts on from there. */
typedef struct ca_tally {
    ca_counters_t counters;
    /* The registry's (registry/live.h). */
    _Atomic uint64_t live;  /* allocations less frees; wraps where others allocated */
    _Atomic uint64_t spare; /* live bytes that this thread may add without telling anybody */
    _Atomic uint64_t sequence, last; /* numbers for its allocations: the latest, the last of them */
    struct ca_tally *next, *next_left;
} ca_tally_t;

extern ca_tally_t ca_tally_common;
/* The calling thread's, or NULL. */
extern _Thread_local ca_tally_t *ca_tally_mine;

/* Gives the calling thread one if it has none. Takes a lock; must not be called under one. Without
 * memory, or without a way to learn that the thread ends, none. */
void ca_tally_join(void);

/* All but the common one. None is ever unmapped. */
const ca_tally_t *ca_tally_first(void);
static inline const ca_tally_t *ca_tally_next(const ca_tally_t *tally)
{
    return tally->next;
}

/* In the child of a fork: everything from 0. */
void ca_tallies_reset_after_fork(void);

/* Of an owner: a sum that others may read at any time. From an atomic load and an atomic store the
 * compiler makes three instructions; where one does the same, it is named. */
static inline void ca_tally_add(_Atomic uint64_t *field, uint64_t n)
{
#ifdef __x86_64__
    __asm__("addq %1, %0" : "+m"(*field) : "er"(n) : "cc");
#else
    uint64_t sum = atomic_load_explicit(field, memory_order_relaxed) + n;
    atomic_store_explicit(field, sum, memory_order_relaxed);
#endif
}

/* The same for whoever holds the thread's tally in a register. */
#define ca_tally_count(tally, name) ca_tally_add(&(tally)->counters.name, 1)

#define ca_count_add(name, n)                                                                      \
    do {                                                                                           \
        ca_tally_t *tally_ = ca_tally_mine;                                                        \
        if (__builtin_expect(tally_ != NULL, 1))                                                   \
            ca_tally_add(&tally_->counters.name, (uint64_t)(n));                                   \
        else                                                                                       \
            atomic_fetch_add_explicit(&ca_tally_common.counters.name, (uint64_t)(n),               \
                                      memory_order_relaxed);                                       \
    } while (0)
#define ca_count(name) ca_count_add(name, 1)

/* Of all threads together. */
uint64_t ca_counter_sum(size_t offset);
#define ca_counter_read(name) ca_counter_sum(offsetof(ca_counters_t, name))

#endif
