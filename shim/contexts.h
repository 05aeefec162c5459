/* Contexts that we serve: the driver's handle, our number, the arena, the fence events.
 *
 * An entry lives for ever (calls in other threads may hold it); when its context is destroyed it is
 * retired, and a context that later gets the same handle gets a new entry. */
#ifndef CA_SHIM_CONTEXTS_H
#define CA_SHIM_CONTEXTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "pool/arena.h"
#include "shim/cuda_decls.h"

typedef enum {
    CA_CONTEXT_SERVING,
    CA_CONTEXT_SUSPENDED, /* may be destroyed at any moment: everything goes through */
    CA_CONTEXT_RETIRED,   /* destroyed: its memory and its events are gone */
} ca_context_state_t;

typedef struct ca_context {
    struct ca_context *next;   /* newest first */
    struct ca_context *shares; /* a green context: the primary whose memory it uses, else NULL */
    CUcontext handle;
    unsigned long long id; /* cuCtxGetId: handles come again, ids do not; 0 before CUDA 12 */
    ca_arena_t *arena;
    struct ca_event *idle_events; /* shim/upstream.c, under its lock */
    CUstream zero_stream;         /* zero:true; made on first use */
    _Atomic int broken;           /* the sticky CUresult that a call of ours saw, or 0 */
    _Atomic int state;            /* ca_context_state_t */
    uint16_t number;              /* from 1 */
    uint8_t device;               /* ordinal */
} ca_context_t;

/* The current context's entry; NULL when no context is current, when it is not in service, and
 * when no entry could be made. `create` makes a missing entry, with driver calls. `handle` (may be
 * NULL) is set to the current context whether we serve it or not. */
ca_context_t *ca_context_current(bool create, CUcontext *handle);

/* Takes a context out of service before it may be destroyed. Returns its entry, or NULL. Then
 * either the one or the other: */
ca_context_t *ca_context_suspend(CUcontext handle);
void ca_context_resume(ca_context_t *context);
/* Drops its arena, its records, its events; makes no driver call. */
void ca_context_retire(ca_context_t *context);

/* `green`, made from a green context, uses the memory of `primary`: it is served from there, and
 * fences of the primary cover it. Nothing happens when there is no host memory: the green context
 * is then not served. */
void ca_context_share(CUcontext green, CUcontext primary, CUdevice device);

/* `accessor` may now touch the memory of `owner`: the owner's fences must cover it. */
void ca_context_note_peer(ca_context_t *accessor, CUcontext owner);

/* The `index`th context, from 0, that may touch the memory of `owner` besides itself; NULL past
 * the last. */
ca_context_t *ca_context_peer(const ca_context_t *owner, size_t index);

/* The entry after `context`, or the first for NULL; retired ones too. Entries are only ever added
 * in front, so a walk needs no lock. */
ca_context_t *ca_context_next(const ca_context_t *context);

void ca_contexts_reset_after_fork(void);

#endif
