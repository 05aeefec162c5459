/* Memory that captures touched, with `capture:keep`, and in programs that allocate by
 * cachealloc_alloc (ca_graph_memory_want). The pool then serves every call in a capture,
 * and what was allocated or freed while streams are captured may be in a graph: once freed it is
 * kept, at its address and unused, for as long as a graph that may name it is there, and
 * then until cachealloc_trim.
 *
 * Captures are numbered. A block, a graph and an executable graph each have the range of numbers
 * that they may have to do with; what ranges have in common, they may have in common. Without the
 * option all of this does nothing. */
#ifndef CA_SHIM_CUDA_GRAPH_MEMORY_H
#define CA_SHIM_CUDA_GRAPH_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "config/options.h"
#include "registry/table/registry.h"

/* From now on it does, whatever the option says: cachealloc_alloc serves in captures. */
extern _Atomic bool ca_graph_memory_asked;
void ca_graph_memory_want(void);

static inline bool ca_graph_memory_on(void)
{
    return ca_options.capture == CA_CAPTURE_KEEP ||
           atomic_load_explicit(&ca_graph_memory_asked, memory_order_relaxed);
}

/* A capture has begun, and ended; before it has, what it left, if anything. */
uint64_t ca_graph_memory_began(void);
void ca_graph_memory_captured(const void *graph, uint64_t number);
void ca_graph_memory_ended(uint64_t number);

/* `made`, a graph or an executable one, from now on has also what `from` has. */
void ca_graph_memory_derived(const void *made, const void *from);

/* A graph is about to be destroyed; false afterwards takes that back. */
typedef struct ca_graph_range {
    uint64_t first, last; /* numbers of captures; 0 for none */
} ca_graph_range_t;
ca_graph_range_t ca_graph_memory_destroy(const void *handle);
void ca_graph_memory_restore(const void *handle, ca_graph_range_t range);

/* The pool serves this block, live under this address, to a context with this number; a capture
 * that goes on may get to know. */
void ca_graph_memory_acquired(uint64_t address, void *block, uint16_t context);

/* Whether the memory of a record, which is freed, is to be kept. */
bool ca_graph_memory_wanted(uint64_t address);

/* Keeps it, if it is: then its block must not go back. */
bool ca_graph_memory_keep_slow(const ca_allocation_t *record);
static inline bool ca_graph_memory_keep(const ca_allocation_t *record)
{
    return ca_graph_memory_on() && ca_graph_memory_keep_slow(record);
}

/* What no graph has any more goes back to the pool. */
void ca_graph_memory_release(void);

/* Bytes that are kept, rounding included. */
size_t ca_graph_memory_bytes(void);

/* The context was destroyed with its memory. */
void ca_graph_memory_drop_context(uint16_t context);
void ca_graph_memory_reset_after_fork(void);

#endif
