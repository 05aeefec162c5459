/* Contexts that we serve: the driver's handle, our number, the arena, the fence events.
 *
 * An entry is never unmapped: calls in other threads may hold it. When its context is destroyed it
 * is retired, and a context that later gets the same handle gets another entry. When many more have
 * been retired it is revived for another context of the same device: together with its arenas, so
 * that little changes under a thread that comes late, and only where none is known to work with it.
 * What is kept from one call to the next names an entry together with its `life`. */
#ifndef CA_SHIM_CUDA_CONTEXTS_H
#define CA_SHIM_CUDA_CONTEXTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/lock.h"
#include "base/in_flight.h"
#include "pool/arena.h"
#include "shim/cuda/cuda_decls.h"

#define CA_CONTEXTS_MAX 256 /* at once; the driver serves further ones */
/* Retired entries that are not revived yet: a thread that still holds one would have to have slept
 * in a call while as many contexts ended. */
#define CA_CONTEXTS_PARKED 1024
#define CA_PINNED_KINDS 8         /* combinations of cuMemHostAlloc's flags */
#define CA_CONTEXT_REACHED_MOST 8 /* that are distinguished */

typedef enum {
    CA_CONTEXT_SERVING,
    CA_CONTEXT_SUSPENDED, /* may be destroyed at any moment: everything goes through */
    CA_CONTEXT_RETIRED,   /* destroyed: with its memory and its events */
} ca_context_state_t;

/* Events for fences, shim/upstream/fences.c: in parts, or threads that close epochs would all wait
 * for the same cache lines. */
typedef struct ca_event_part {
    ca_lock_t lock;
    struct ca_event *idle; /* under the lock; they come back to the part that they are of */
    _Atomic unsigned held; /* of this part, by fences */
    char apart[CA_PART_BYTES - sizeof(ca_lock_t) - sizeof(void *) - sizeof(unsigned)];
} ca_event_part_t;

_Static_assert(sizeof(ca_event_part_t) == CA_PART_BYTES, "no line in common");

typedef struct ca_context {
    struct ca_context *next;  /* newest first */
    struct ca_context *later; /* retired: the one that was next */
    /* A green context: the primary whose memory it uses, else NULL. */
    struct ca_context *_Atomic shares;
    _Atomic(CUcontext) handle;
    _Atomic unsigned long long
        id;                /* cuCtxGetId: handles come again, ids do not; 0 before CUDA 12 */
    _Atomic uint64_t life; /* of that context; never comes again */
    ca_arena_t *arena;     /* of its device memory */
    size_t limit;          /* most bytes that it may hold; SIZE_MAX for none */
    /* By cuMemHostAlloc's flags; shim/alloc/pinned_memory.c, made on first use. */
    ca_arena_t *_Atomic pinned[CA_PINNED_KINDS];
    ca_arena_t *leaving_pinned[CA_PINNED_KINDS]; /* of those, while they are retired */
    CUstream own_stream;                         /* shim/upstream/upstream.c, made on first use */
    _Atomic uint64_t last_wait_ns; /* how long a bounded wait that asked in steps took */
    _Atomic bool asked;            /* see ca_context_note_asked */
    _Atomic bool busy;       /* its work was waited for in vain: see shim/upstream/upstream.c */
    _Atomic bool no_records; /* its driver has cuCtxRecordEvent and does not support it */
    _Atomic int broken;      /* the sticky CUresult that a call of ours saw, or 0 */
    _Atomic int state;       /* ca_context_state_t */
    unsigned leaving;        /* calls under way that may destroy it */
    _Atomic bool created;    /* by cuCtxCreate, so that it is no primary one */
    bool listed;             /* in the list of all */
    _Atomic uint16_t number; /* from 1; comes again after all others did */
    uint8_t device;          /* ordinal */
    unsigned pin_mode; /* shim/upstream/pin_mode.c, under its lock: a bit for each arena that is
                          pinned */

    /* shim/upstream/backend_async.c, under its lock. */
    struct ca_async_backend *backend;

    _Atomic bool open_to_peers;  /* its memory was, at some time */
    _Atomic uint64_t open_to[4]; /* devices, a bit each: see ca_pages_open_to */
    /* Other contexts whose work may be at its memory: see ca_context_reached_by. */
    struct ca_context *_Atomic reached_by[CA_CONTEXT_REACHED_MOST];
    _Atomic bool reached_by_all; /* they are too many, or not known */

    char apart[CA_PART_BYTES]; /* what is read all the time shares no line with what follows */
    ca_in_flight_t entered;    /* threads inside a driver call of ours on it */
    ca_event_part_t events[CA_PARTS];
} ca_context_t;

/* The current context's entry; NULL when no context is current, when it is not in service, and
 * when no entry could be made. `create` makes a missing entry, with driver calls. `handle` (may be
 * NULL) is set to the current context whether we serve it or not. */
ca_context_t *ca_context_current(bool create, CUcontext *handle);

/* The same where the driver has just said that `handle`, which may be NULL, is current. */
ca_context_t *ca_context_current_is(CUcontext handle, bool create);

/* What the calling thread found last, good for as long as no context came or went. */
typedef struct ca_context_last {
    CUcontext handle;
    ca_context_t *context;
    unsigned generation;
} ca_context_last_t;

extern _Thread_local ca_context_last_t ca_context_last;
extern _Atomic unsigned ca_context_generation;

/* The entry of `handle` if the thread found it last, else NULL. No driver call. */
static inline ca_context_t *ca_context_again(CUcontext handle)
{
    const ca_context_last_t *last = &ca_context_last;
    return last->handle == handle &&
                   last->generation ==
                       atomic_load_explicit(&ca_context_generation, memory_order_acquire)
               ? last->context
               : NULL;
}

/* The driver's id of the context, which no other one ever has; 0 before CUDA 12. */
unsigned long long ca_context_id(CUcontext handle);

/* CUDA_SUCCESS while the driver serves calls, else what it answers to all of them: it was not
 * initialised, or has ended. That a context is current says nothing here: a free needs none, the
 * driver takes it from the pointer (tests/gpu/results: codes_context). */
CUresult ca_context_check(void);
/* The same, and CUDA_ERROR_INVALID_CONTEXT where none is current: what the default streams of a
 * thread need, and the runtime's calls, which then make one. */
CUresult ca_context_check_current(void);

/* Takes a context out of service while a call that may destroy it is under way, and waits until no
 * driver call of ours is at work on it (a second at most). Returns its entry, or NULL where there
 * is none. */
ca_context_t *ca_context_suspend(CUcontext handle);
/* That call is done. If the context was destroyed (`destroyed`) its arena, records and events are
 * dropped, without a driver call; otherwise the last such call puts it back into service. */
void ca_context_resume(ca_context_t *context, bool destroyed);

/* How many such calls are under way, and how many there have been whose context has resumed or
 * ended. */
unsigned ca_contexts_leaving(void);
unsigned ca_contexts_resumed(void);

/* The driver made `handle` on `device`, or gave another reference to it (created: by cuCtxCreate).
 * It gets an entry though it may never allocate: its work may touch the memory of others, and
 * fences cover those with one. */
void ca_context_made(CUcontext handle, CUdevice device, bool created);

/* It allocated, frees in the order of its streams, or got at another's memory. NULL: nothing. */
void ca_context_note_asked(ca_context_t *context);

/* A peer may read and write the context's memory itself from now on (cuCtxEnablePeerAccess). NULL,
 * a context without an entry: it may be any's. */
void ca_context_let_peer_in(ca_context_t *context);

/* Whether one ever was. */
bool ca_context_has_peers(const ca_context_t *context);

/* Work of `user` may be at memory of `owner` from now on, and its fences cover that: it was let in
 * as a peer (cuCtxEnablePeerAccess), or has the driver copy between the two (cuMemcpyPeer). NULL
 * for the owner, a context without an entry: it may be any's. NULL for the user: it may be any. */
void ca_context_reached_by(ca_context_t *owner, ca_context_t *user);

/* Whether that was said. */
bool ca_context_is_reached_by(const ca_context_t *owner, const ca_context_t *user);

/* Whether every context got its entry: there is room for CA_CONTEXTS_MAX. */
bool ca_contexts_all_listed(void);

/* `green`, made from a green context, uses the memory of `primary`: it is served from there.
 * With NULL for the primary the driver serves it. */
void ca_context_share(CUcontext green, CUcontext primary, CUdevice device);

/* Whether `address`, which by our tables is in memory of `context`, is another owner's by now. The
 * driver gives addresses away while the call that destroys their context is still under way, and
 * the tables follow when it has returned. The driver is asked, but only from the moment on where
 * such a call has begun. */
bool ca_context_lost_address(const ca_context_t *context, CUdeviceptr address);

/* Whether the driver no longer has the id that the context had. */
bool ca_context_lost_id(const ca_context_t *context);

/* The entries that are not retired. Any of them may submit work that touches another's memory: by
 * peer access, or by a copy between devices, which needs none. Green contexts are not among them:
 * what is recorded in their primary context, or waits for it, covers them (cuda.h:
 * cuCtxRecordEvent, cuCtxSynchronize), and they may be current to one thread only. Returns how
 * many. */
size_t ca_contexts_living(ca_context_t *contexts[CA_CONTEXTS_MAX]);

/* The same for a report, which may have interrupted a thread that uses them: false where they stay
 * in use, and then 0 of them. */
bool ca_contexts_try_living(ca_context_t *contexts[CA_CONTEXTS_MAX], size_t *count);

/* The current context's entry, for its number: one that is about to be destroyed too. Made where it
 * is missing; NULL when it cannot be. */
ca_context_t *ca_context_known(void);

/* The entry of some context on the device that is not retired, a primary one where there is one;
 * NULL where there is none. */
ca_context_t *ca_context_on(unsigned device);

/* The entry of the context with this handle (of its primary, for a green one), or NULL. */
ca_context_t *ca_context_of(CUcontext handle);

/* The entry that has this number, or had it last. */
ca_context_t *ca_context_numbered(uint16_t number);

/* The entry after `context`, or the first for NULL; retired ones too. Entries are only ever added
 * in front, and stay when they are revived, so a walk needs no lock. */
ca_context_t *ca_context_next(const ca_context_t *context);

/* --- what lies above ----------------------------------------------------------------------------
 *
 * This folder includes nothing of the folders above it; they act on a context's life by these. */

/* The memory of a context: its arena, its events, what the driver's pool holds for it. */
typedef struct ca_context_memory {
    /* A new entry: its events' locks. */
    void (*prepare)(ca_context_t *context);
    /* An entry that no other thread knows yet gets an arena, unless it is revived with its own. */
    void (*make)(ca_context_t *context);
    /* A thread made an entry for the context and published it, or another one did first (not
     * `fresh`); NULL: there is no place for it. */
    void (*published)(ca_context_t *context, bool fresh);
    /* The context is destroyed. The arenas end first: a free that has its record already finds its
     * own retired and is ignored. The registry drops the context's records between the two. */
    void (*retire_begin)(ca_context_t *context);
    void (*retire_end)(ca_context_t *context);
    /* Whether an epoch of some context still waits for its events. */
    bool (*in_use)(const ca_context_t *context);
    /* A retired entry becomes another context's on the same device: its arenas serve again. False
     * leaves them retired. */
    bool (*revive)(ca_context_t *context);
} ca_context_memory_t;

extern const ca_context_memory_t ca_context_memory; /* shim/upstream/arenas.c */

/* The modules that want to know (shim/life/modules.def): a context gets its entry, and nothing is
 * allocated in it yet; contexts are served from now on; the context is destroyed, its arenas and
 * its records are dropped. Without a lock held; the first two for each context. */
void ca_modules_context_made(void);
void ca_modules_context_first(void);
void ca_modules_context_retired(const ca_context_t *context);

#endif
