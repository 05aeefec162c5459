/* Live allocations: one record each, found by pointer.
 *
 * The order that keeps it right: a record is erased BEFORE its memory goes back (another thread may
 * be given the address at once), and inserted before the address is returned to the program.
 *
 * Knows nothing of the pool or of CUDA: the owner is an opaque pointer, contexts are numbers. What
 * is known by a handle and not by its address has a key for an address (ca_registry_key).
 * Every function is thread-safe and leaves errno alone. */
#ifndef CA_REGISTRY_TABLE_REGISTRY_H
#define CA_REGISTRY_TABLE_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/record.h"

/* CA_KIND(constant, name in the reports) */
#define CA_KINDS(X)                                                                                \
    X(CA_KIND_DEVICE, "device")                                                                    \
    X(CA_KIND_PITCHED, "pitched")                                                                  \
    X(CA_KIND_ASYNC, "async")                                                                      \
    X(CA_KIND_MANAGED, "managed")                                                                  \
    X(CA_KIND_PINNED, "pinned")                                                                    \
    X(CA_KIND_ARRAY, "array")                                                                      \
    X(CA_KIND_MIPMAP, "mipmap")                                                                    \
    X(CA_KIND_VMM, "vmm")                                                                          \
    X(CA_KIND_REGISTERED, "registered")                                                            \
    X(CA_KIND_EXTERNAL, "external")                                                                \
    X(CA_KIND_ALIAS, "alias")

typedef enum {
#define CA_KIND(constant, name) constant,
    CA_KINDS(CA_KIND)
#undef CA_KIND
        CA_KIND_COUNT
} ca_kind_t;

const char *ca_kind_name(ca_kind_t kind);

/* A record that is shared says more than whose memory it is: `stream` and `owner` then belong to
 * the code that marked it (shim/alloc/shared_memory.c), and an erase only copies it. Aliases are
 * names, not allocations: they have 0 bytes, and neither totals nor snapshots count them. */
typedef enum {
    CA_SHARED_NOT,
    CA_SHARED_HANDLED,  /* an alias, or memory from elsewhere */
    CA_SHARED_OWNER,    /* memory with aliases */
    CA_SHARED_NAMELESS, /* the same, its own name freed: the aliases keep it */
} ca_shared_t;

typedef struct ca_allocation {
    uint64_t address;       /* or a key; not 0 */
    uint64_t bytes : 48;    /* as requested */
    uint64_t kind : 6;      /* ca_kind_t */
    uint64_t shared : 2;    /* ca_shared_t */
    uint64_t device : 8;    /* ordinal */
    uint64_t sequence : 48; /* see ca_registry_sequence; 0: set by the insert */
    uint64_t context : 16;  /* the shim's number of the context, 0 for none */
    union {
        uint64_t stream;     /* see ca_registry_stream */
        uint64_t references; /* of what is counted: those beyond the first */
    };
    void *owner;     /* the pool's block, or NULL for memory that the driver serves */
    uint32_t stack;  /* ca_stack_capture's id, 0 for none */
    uint32_t thread; /* thread id of the allocating thread */
} ca_allocation_t;

_Static_assert(sizeof(ca_allocation_t) == 48, "a record is 48 bytes");
_Static_assert(CA_KIND_COUNT <= 64, "a kind is 6 bits");

#define CA_STREAM_BITS 48 /* of a handle, which is an address; above them its number */

/* The stream that stream-ordered memory was given, and the number that tells it from others which
 * had, or have, the same handle (pool/arena.h); 0 for any other, whose field says other things. */
static inline uint64_t ca_registry_stream(const ca_allocation_t *allocation)
{
    bool ordered = allocation->kind == CA_KIND_ASYNC && allocation->shared == CA_SHARED_NOT;
    return ordered ? allocation->stream & (((uint64_t)1 << CA_STREAM_BITS) - 1) : 0;
}

static inline uint16_t ca_registry_stream_number(const ca_allocation_t *allocation)
{
    bool ordered = allocation->kind == CA_KIND_ASYNC && allocation->shared == CA_SHARED_NOT;
    return ordered ? (uint16_t)(allocation->stream >> CA_STREAM_BITS) : 0;
}

/* What stands for an address in the record of a handle: handles are numbers of the driver's choice
 * and may be equal to addresses, and one of a kind to one of another. No address has a top byte. */
static inline uint64_t ca_registry_key(ca_kind_t kind, uint64_t handle)
{
    return handle ^ ((uint64_t)kind + 1) << 56;
}

/* Adds a record. 0, or -ENOMEM (no host memory: the allocation is then served but not tracked), or
 * -EEXIST when the address is already live: the old record is replaced, since the driver has given
 * the address out again. */
int ca_registry_insert(const ca_allocation_t *allocation);

/* The same, but an address that is live keeps its record (-EEXIST). */
int ca_registry_insert_new(const ca_allocation_t *allocation);

/* The same in a record that the owner of the memory has for it, not live: what is inserted there
 * again costs no look-up. `record` must stay readable for good, and its address must be the
 * allocation's until it is forgotten. Replaces what is live at the address. 0, -ENOMEM, or -EIO
 * when the record has ended. */
int ca_registry_insert_at(ca_record_t *record, const ca_allocation_t *allocation);

/* The same, but where another record was entered for the address that one stays (-EEXIST), even if
 * nothing is live there. */
int ca_registry_insert_at_new(ca_record_t *record, const ca_allocation_t *allocation);

/* The memory that the record belongs to ends, or begins elsewhere from now on; it is not live. */
void ca_registry_forget(ca_record_t *record);

/* The memory that the record lies in is about to read as zeros: takes out what may be live there.
 * Other threads may be inserting. */
void ca_registry_end(ca_record_t *record);

/* Takes the record of `address` out and copies it to `allocation`; one that is shared is copied and
 * stays. False when it is not live. */
bool ca_registry_erase(uint64_t address, ca_allocation_t *allocation);

/* Takes the record of `address` out if it has an owner and is not shared. False leaves all as it
 * is.
 */
bool ca_registry_take_owned(uint64_t address, ca_allocation_t *allocation);

/* Takes the record of `address` out, shared or not. False when it is not live. */
bool ca_registry_take(uint64_t address, ca_allocation_t *allocation);

/* Takes the record of `address` out if it is of that context. */
bool ca_registry_take_of(uint64_t address, uint16_t context);

/* Puts `fresh` in the place of `old`, a copy of the record of the same address. False when that
 * record is not live any more. */
bool ca_registry_replace(const ca_allocation_t *old, const ca_allocation_t *fresh);

/* Copies the record of `address`. False when it is not live. */
bool ca_registry_find(uint64_t address, ca_allocation_t *allocation);

/* One more reference to what is live at `address`. False when nothing is. */
bool ca_registry_retain(uint64_t address);

/* One reference less; with the last one the record is taken out, as by ca_registry_erase. Returns
 * the references that are left, or -1 when nothing is live. */
int64_t ca_registry_release(uint64_t address, ca_allocation_t *allocation);

typedef struct ca_registry_total {
    uint64_t count;
    uint64_t bytes;
} ca_registry_total_t;

/* Removes all records of a context that was destroyed. Returns what was alive in it; the leak
 * report shows it apart from what is live. */
ca_registry_total_t ca_registry_drop_context(uint16_t context);
/* All that was removed so, contexts added up. Takes no lock. */
ca_registry_total_t ca_registry_lost(void);

/* Live records now, and the bytes they asked for. */
ca_registry_total_t ca_registry_total(void);
/* An upper bound of the most live bytes there ever were at once: exact where one thread allocates,
 * and else too high by at most 1 MiB for each thread, or a 32nd of it in all where that is more
 * (registry/table/live.h). Whatever shows it says that it is a bound. */
uint64_t ca_registry_peak_bytes(void);
/* The sequence number of the latest allocation. They rise from 1 within each thread, and no two are
 * the same; between threads the order is right but for some three batches (registry/table/live.h).
 */
uint64_t ca_registry_sequence(void);

/* Calls for each record that becomes live, aliases left out, before it is found, and for each that
 * is not any more. With any lock held; `sequence` is the record's, which may not be set in it.
 * NULL: nothing is called. */
typedef struct ca_registry_listener {
    void (*added)(const ca_allocation_t *allocation, uint64_t sequence);
    void (*removed)(const ca_allocation_t *allocation);
} ca_registry_listener_t;
void ca_registry_listen(const ca_registry_listener_t *listener);

#define CA_REGISTRY_STRIPES 17

/* A copy of all live records but aliases, unordered, for the reports. Other threads may go on; each
 * record is whole, the set is one of some moment for each stripe. May be called where a signal
 * interrupted this file: of a stripe that stays in use what is just being changed may be missing,
 * and where entries move all the time others too, or be there twice; such stripes are counted in
 * `*busy`. `*records` comes from ca_mem_map and goes back with ca_registry_snapshot_free. 0 or
 * -ENOMEM. */
int ca_registry_snapshot(ca_allocation_t **records, size_t *count, unsigned *busy);
void ca_registry_snapshot_free(ca_allocation_t *records, size_t count);

#define CA_REGISTRY_DEVICES 256 /* ordinals that a record may have */

/* Adds up live records but aliases by device and kind, to what is in `totals`. Without a copy, so
 * for callers that ask again and again; otherwise as a snapshot. False where a part of the registry
 * stays in use. */
bool ca_registry_count(ca_registry_total_t totals[CA_REGISTRY_DEVICES][CA_KIND_COUNT]);

/* In the child of a fork: forgets everything and makes the locks new. Called from the
 * pthread_atfork child handler, so by the only thread. */
void ca_registry_reset_after_fork(void);

#endif
