/* The table of contexts.h: entries from the moment they are blank until they are parked, and are
 * revived. For contexts.c alone, which asks the driver; here no driver call is made. What
 * contexts.h has of walks and counts is defined here too. Thread-safe. */
#ifndef CA_SHIM_CUDA_CONTEXT_ENTRIES_H
#define CA_SHIM_CUDA_CONTEXT_ENTRIES_H

#include "shim/cuda/contexts.h"

/* That is not retired, or NULL. */
ca_context_t *ca_entry_find(CUcontext handle);

/* Whether one more can be published. */
bool ca_entry_fits(void);

/* An entry that no thread can find yet, with arenas if it is `pooled` and not new. NULL without
 * host memory. */
ca_context_t *ca_entry_blank(CUcontext handle, unsigned long long id, CUdevice device, bool pooled);

/* Puts a blank one in front of all, unless there is an entry for its handle. Returns the handle's
 * entry, or NULL when there is no room: the driver then serves the context. */
ca_context_t *ca_entry_publish(ca_context_t *fresh);

/* It was not published. */
void ca_entry_put_aside(ca_context_t *fresh);

/* A call begins that may destroy the context. Returns its entry, suspended, or NULL. */
ca_context_t *ca_entry_suspend(CUcontext handle);

/* That call is done. True where the context was destroyed and this is the first to say so: the
 * entry is retired, and the caller drops what it had, then recycles it. */
bool ca_entry_resume(ca_context_t *context, bool destroyed);

/* A retired entry waits for another life. */
void ca_entry_recycle(ca_context_t *context);

void ca_entries_reset_after_fork(void);

#endif
