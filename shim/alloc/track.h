/* Records of allocations: what the wrappers note in the registry. */
#ifndef CA_SHIM_ALLOC_TRACK_H
#define CA_SHIM_ALLOC_TRACK_H

#include <stdbool.h>
#include <stdint.h>
#include "base/history.h"
#include "registry/table/peak.h"
#include "registry/table/registry.h"
#include "registry/table/sample.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/cuda_decls.h"
#include "shim/alloc/debug_free.h"
#include "shim/alloc/recorder.h"

/* The stack of the runtime call under way in this thread, set by the runtime hooks before they go
 * down into the driver: one line of the program has one stack, whichever API served it. 0 for none.
 */
extern _Thread_local uint32_t ca_track_runtime_stack;

/* The configuration was read. */
void ca_track_start(void);

/* The stack of the calling thread, interned; 0 with stacks:off. The first call opens the unwinder,
 * so none is loaded in a process that allocates nothing. Never under a lock of ours. */
uint32_t ca_track_stack(void);

/* The same for an allocation of `bytes`: 0 too where it is none of those that are sampled. */
uint32_t ca_track_stack_drawn(size_t bytes);
static inline uint32_t ca_track_stack_of(size_t bytes)
{
    return ca_sample_passes(bytes) ? 0 : ca_track_stack_drawn(bytes);
}

/* Notes a live allocation. `context` may be NULL, `owner` is the pool's block or NULL. 0, or
 * -ENOMEM: it is then not tracked. */
int ca_track_alloc(ca_kind_t kind, uint64_t address, size_t bytes, ca_context_t *context,
                   CUstream stream, void *owner);

/* The same for memory that the driver gave while `before` was the current context's entry (or none
 * was known). Where the context was destroyed meanwhile, and perhaps made anew by another thread,
 * the memory's owner is not known: it is then not tracked. */
void ca_track_driver_alloc(ca_kind_t kind, uint64_t address, size_t bytes,
                           const ca_context_t *before, CUstream stream);

/* The same for memory of no context: it is there until it is freed, whatever contexts go. */
void ca_track_process_alloc(ca_kind_t kind, uint64_t address, size_t bytes, uint8_t device);

/* The calling thread's id. gettid is a system call: it is asked once per thread, when its name is
 * noted for the reports too. Under no lock of ours. */
extern _Thread_local uint32_t ca_track_this_thread;
uint32_t ca_track_get_thread(void);
static inline uint32_t ca_track_thread(void)
{
    uint32_t known = ca_track_this_thread;
    return __builtin_expect(known != 0, 1) ? known : ca_track_get_thread();
}

/* Puts a record of memory of `context` (NULL for none) into the table, in its owner's place if that
 * is a block of the pool. Once the context may be destroyed its addresses may be another's: what is
 * there then stays, and a block comes too late (-EEXIST, or -EIO where it has ended). Else 0, or
 * -ENOMEM. */
int ca_track_insert(ca_context_t *context, const ca_allocation_t *record);

/* Whether the context (NULL for none) of a record that was just inserted is retired: its records
 * were dropped before this one came, which is then taken out too. */
bool ca_track_dropped(const ca_context_t *context, uint64_t address);

/* What happened to a live allocation, for the ring of the last events and the counts of all that
 * was allocated; a free with the stack of the calling thread. */
void ca_track_history(ca_event_kind_t event, const ca_allocation_t *record);

/* A record was taken out, for what is about to be freed. With no lock held; `stack` is
 * ca_debug_free_stack's of before. */
static inline void ca_track_erased(const ca_allocation_t *record, uint32_t stack)
{
    ca_debug_note_free(record, stack);
    if (__builtin_expect(atomic_load_explicit(&ca_recorder_on, memory_order_relaxed), 0))
        ca_recorder_free(record);
    if (__builtin_expect(atomic_load_explicit(&ca_history_on, memory_order_relaxed), 0))
        ca_track_history(CA_EVENT_FREE, record);
}

/* ca_registry_erase and that. Takes locks, with none held. */
static inline bool ca_track_erase(uint64_t address, ca_allocation_t *record)
{
    uint32_t stack = ca_debug_free_stack();
    ca_peak_before_free();
    if (!ca_registry_erase(address, record))
        return false;
    ca_track_erased(record, stack);
    return true;
}

/* Puts back a record whose free the driver refused. */
void ca_track_restore(const ca_allocation_t *record);

/* The same for memory that such a call frees, answered with `code`, which is returned. Where
 * another thread's free of the same pointer came in between, there is nothing to put back.
 * Explained (debug_free.h). */
CUresult ca_track_refused(const ca_allocation_t *record, ca_frees_t call, CUresult code);

/* A free of a pointer into our memory that is not live: double, or interior. Explained
 * (debug_free.h); the answer is the driver's own for a pointer that it does not know. */
CUresult ca_track_invalid_free(uint64_t address);

void ca_track_reset_after_fork(void);

#endif
