/* What a thread remembers of its stacks, and that it has a place for it: one table for each thread,
 * which the next thread gets when it ends. For stack_cache.c, which says what is in it. */
#ifndef CA_REGISTRY_STACK_STACK_CACHE_TABLES_H
#define CA_REGISTRY_STACK_STACK_CACHE_TABLES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/stack/unwind_words.h"

#define CA_STACK_CACHE_HEADS 512u  /* starts, of all stacks */
#define CA_STACK_CACHE_UNITS 8192u /* of 16 bytes, for the stacks */

typedef struct ca_stack_cache_word {
    uintptr_t value;
    uint32_t offset; /* from the start, in words */
    uint32_t other;  /* the entry to go on with where the value differs, 0 for none */
} ca_stack_cache_word_t;

/* Followed by its words. Counted in units, as those are. */
typedef struct ca_stack_cache_entry {
    uint32_t id;
    uint32_t count;
    uint32_t
        padded; /* a multiple of what is compared at a time: the first word again, to fill up */
    uint32_t unused;
} ca_stack_cache_entry_t;

_Static_assert(sizeof(ca_stack_cache_word_t) == 16 && sizeof(ca_stack_cache_entry_t) == 16,
               "units");

typedef union ca_stack_cache_unit {
    ca_stack_cache_word_t word;
    ca_stack_cache_entry_t entry;
} ca_stack_cache_unit_t;

/* A tree of stacks with one start. */
typedef struct ca_stack_cache_head {
    uintptr_t caller, frame; /* 0: free */
    uintptr_t value;         /* of the word that was learned last */
    uint8_t level;           /* how many were learned to come here */
    bool learned;            /* the stacks are one level up, by the value of the word at `offset` */
    uint16_t refusals;
    uint32_t offset;
    uint32_t first; /* entry */
} ca_stack_cache_head_t;

/* How far a stack that is not the thread's own can be read, from any place in a page of it. */
typedef struct ca_extent {
    uintptr_t page, end;
} ca_extent_t;

#define CA_STACK_CACHE_EXTENTS 8192u
#define CA_STACK_CACHE_PAGE ((uintptr_t)4096)
#define CA_STACK_CACHE_EXTENT_OF(page)                                                             \
    ((page)*0x9e3779b97f4a7c15u >> 40 & (CA_STACK_CACHE_EXTENTS - 1))

typedef struct ca_stack_cache_table {
    /* In use: a signal handler that comes in between leaves it alone. */
    bool busy;
    uint64_t epoch;
    uint32_t used;  /* units; the first is not used */
    uint64_t loads; /* ca_words_loads's, when the first of its stacks was kept */
    size_t hits, misses, kept, spent;
    uintptr_t stack_low, stack_high;
    struct ca_stack_cache_table *next_free;
    ca_words_t log;
    ca_rules_t rules;
    ca_stack_cache_head_t heads[CA_STACK_CACHE_HEADS];
    ca_stack_cache_unit_t units[CA_STACK_CACHE_UNITS];
    ca_extent_t *extents;            /* by page; NULL before the first */
    struct ca_python_thread *python; /* of registry/python/python.h; likewise */
} ca_stack_cache_table_t;

/* While it is, a signal handler leaves the table alone, and must not see this out of order. */
static inline void ca_stack_cache_set_busy(ca_stack_cache_table_t *table, bool busy)
{
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile bool *)&table->busy = busy;
    atomic_signal_fence(memory_order_seq_cst);
}

/* Where the stack was found to end, as far as was asked, or 0. It may be another one since, of
 * which there is less. */
static inline uintptr_t ca_stack_cache_extent(const ca_stack_cache_table_t *table, uintptr_t frame)
{
    uintptr_t page = frame & -CA_STACK_CACHE_PAGE;
    const ca_extent_t *extent =
        table->extents ? &table->extents[CA_STACK_CACHE_EXTENT_OF(page)] : NULL;
    return extent && extent->page == page ? extent->end : 0;
}

void ca_stack_cache_set_extent(ca_stack_cache_table_t *table, uintptr_t frame, uintptr_t end);

/* This thread's, or NULL where it has none yet. */
extern _Thread_local ca_stack_cache_table_t *ca_stack_cache_of_thread;

/* The same, made where there is none. NULL at the thread's end, where there is no memory, and where
 * the making of it brought us here again. Never under a lock: it may allocate. */
ca_stack_cache_table_t *ca_stack_cache_table(void);

/* Once, before any. False where threads' ends cannot be noticed. */
bool ca_stack_cache_tables_start(void);

void ca_stack_cache_tables_reset_after_fork(void);

#endif
