/* The table of live allocations from inside: for the calls on single records (registry.c) and for
 * those that walk over all of them (walk.c). */
#ifndef CA_REGISTRY_TABLE_TABLE_H
#define CA_REGISTRY_TABLE_TABLE_H

#include <string.h>
#include "base/inline.h"
#include "base/lock.h"
#include "base/mem.h"
#include "registry/table/index.h"
#include "registry/table/registry.h"

#define STRIPES CA_REGISTRY_STRIPES
#define CACHE_LINES 128 /* two lines: the hardware fetches them in pairs */

typedef struct ca_stripe {
    _Alignas(CACHE_LINES) ca_lock_t lock;
    ca_index_t index;
    ca_slab_t records;  /* of ours; under the lock */
    ca_record_t *spare; /* of those, free ones, by payload[0] */
} ca_stripe_t;

/* What is entered of one region of addresses lies in one stripe, for good: one of those of the
 * thread that entered the first. So what a search reads lies close together, and was written by its
 * own thread as far as threads have memory of their own. */
#define REGION_SHIFT 21 /* segments are multiples of so many bytes */
#define REGIONS 65536   /* any further one shares with one of these */
#define OWN_STRIPES 2   /* of a thread, and of each eighth one after it */
#define GROUPS ((STRIPES - 1) / OWN_STRIPES)

/* In one object, so that the fast path needs one address. */
typedef struct ca_table {
    /* Bytes from the first stripe. That one has no thread: it is where nothing was entered yet. */
    _Atomic uint16_t regions[REGIONS];
    ca_stripe_t stripes[STRIPES];
} ca_table_t;

extern ca_table_t ca_table;

CA_INLINE _Atomic uint16_t *ca_region_of(uint64_t address)
{
    return &ca_table.regions[address >> REGION_SHIFT & (REGIONS - 1)];
}

/* Where an address was entered, if that was before the caller learned of it. */
CA_INLINE ca_stripe_t *ca_stripe_of(uint64_t address)
{
    size_t at = atomic_load_explicit(ca_region_of(address), memory_order_relaxed);
    return (ca_stripe_t *)(void *)((char *)ca_table.stripes + at);
}

/* Aliases are names, not allocations. */
CA_INLINE bool ca_recorder_counts(const ca_allocation_t *allocation)
{
    return __builtin_expect(allocation->kind != CA_KIND_ALIAS, 1);
}

/* What leaves the totals with a record. */
void ca_registry_discount(const ca_allocation_t *allocation);

/* --- a record that is locked, or one's own ---------------------------------------------------- */

/* One of ours. In a block the owner is the block: memory of ours, whose pointer lies in the payload
 * beside the context. Here it may be anything, such as an argument of the program's. */
typedef struct ca_own_record {
    ca_record_t record;
    void *owner;
} ca_own_record_t;

CA_INLINE uint64_t ca_record_whose(const void *owner, uint16_t context)
{
    return (uint64_t)(uintptr_t)owner | (uint64_t)context << CA_MEM_POINTER_BITS;
}

CA_INLINE uint64_t ca_record_what(uint64_t bytes, ca_kind_t kind, ca_shared_t shared,
                                  unsigned device)
{
    return bytes | (uint64_t)kind << 48 | (uint64_t)shared << 54 | (uint64_t)device << 56;
}

/* Of allocations that differ in their kind, their bytes, their owner and their stack alone, of no
 * stream. */
static inline ca_record_origin_t ca_record_origin(unsigned device, uint16_t context,
                                                  uint32_t thread)
{
    return (ca_record_origin_t){{
        {ca_record_what(0, (ca_kind_t)0, CA_SHARED_NOT, device), 0},
        {ca_record_whose(NULL, context), (uint64_t)thread << 32},
    }};
}

/* ca_record_fill for those; for an owner's record. In few stores: where very many allocations live,
 * the processor's queue of them is what is short. */
CA_INLINE void ca_record_fill_own(ca_record_t *record, const ca_record_origin_t *origin,
                                  ca_kind_t kind, uint64_t bytes, const void *owner, uint32_t stack)
{
    ca_record_pair_t first = {ca_record_what(bytes, kind, CA_SHARED_NOT, 0), 0};
    ca_record_pair_t second = {(uint64_t)(uintptr_t)owner, stack};
    first |= origin->halves[0];
    second |= origin->halves[1];
    memcpy(&record->payload[0], &first, sizeof first);
    memcpy(&record->payload[2], &second, sizeof second);
}

static inline void *ca_record_owner(const ca_record_t *record, uint64_t state)
{
    if (!(state & CA_RECORD_EMBEDDED))
        return ((const ca_own_record_t *)(const void *)record)->owner;
    return (void *)(uintptr_t)(record->payload[2] & ((UINT64_C(1) << CA_MEM_POINTER_BITS) - 1));
}

static inline void ca_record_copy(const ca_record_t *record, uint64_t address, uint64_t state,
                                  ca_allocation_t *allocation)
{
    /* By the word: a payload is laid out as ca_allocation_t is, but for the owner. */
    const uint64_t low = (UINT64_C(1) << CA_MEM_POINTER_BITS) - 1;
    const uint64_t words[] = {
        address,
        record->payload[0],
        (state >> CA_RECORD_FLAGS & low) | (record->payload[2] & ~low),
        record->payload[1],
        (uint64_t)(uintptr_t)ca_record_owner(record, state),
        record->payload[3],
    };
    _Static_assert(sizeof words == sizeof *allocation, "all of it");
    memcpy(allocation, words, sizeof words);
}

/* `flags`: what its state says, or will. */
CA_INLINE void ca_record_fill(ca_record_t *record, uint64_t flags,
                              const ca_allocation_t *allocation)
{
    record->payload[0] = ca_record_what(allocation->bytes, (ca_kind_t)allocation->kind,
                                        (ca_shared_t)allocation->shared, allocation->device);
    record->payload[1] = allocation->stream;
    if (flags & CA_RECORD_EMBEDDED) {
        record->payload[2] = ca_record_whose(allocation->owner, allocation->context);
    } else {
        record->payload[2] = ca_record_whose(NULL, allocation->context);
        ((ca_own_record_t *)(void *)record)->owner = allocation->owner;
    }
    record->payload[3] = allocation->stack | (uint64_t)allocation->thread << 32;
}

CA_INLINE uint64_t ca_record_bytes(const ca_record_t *record)
{
    return record->payload[0] & ((UINT64_C(1) << 48) - 1);
}

/* Of that kind, and not shared: one byte of what ca_record_what makes. */
CA_INLINE bool ca_record_plain(const ca_record_t *record, ca_kind_t kind)
{
    return ((const uint8_t *)&record->payload[0])[6] == kind;
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "it is the bits from 48 on");

CA_INLINE uint64_t ca_record_live_state(uint64_t sequence, uint64_t flags)
{
    return sequence * CA_RECORD_SEQUENCE_ONE + (flags | CA_RECORD_LIVE);
}

CA_INLINE uint64_t ca_record_state(const ca_record_t *record)
{
    return atomic_load_explicit(&record->state, memory_order_acquire);
}

CA_INLINE void ca_record_set_state(ca_record_t *record, uint64_t state)
{
    atomic_store_explicit(&record->state, state, memory_order_release);
}

/* What a record's state is once it is not live any more. */
CA_INLINE uint64_t ca_record_empty_state(uint64_t state)
{
    return state & ~(uint64_t)(CA_RECORD_LIVE | CA_RECORD_LOCKED);
}

/* Live as of `state`, which no thread has locked: locks it. False when it is not as it was. */
CA_INLINE bool ca_record_lock(ca_record_t *record, uint64_t state)
{
    return atomic_compare_exchange_strong_explicit(&record->state, &state, state + CA_RECORD_LOCKED,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Locks a record if it is live. -ENOENT when it is not, -EBUSY when it stays locked. */
int ca_record_lock_live(ca_record_t *record, uint64_t *state);

/* An empty record leaves the index, whose stripe is locked. One of ours may be filled with
 * something else from now on. */
void ca_stripe_retire_record(ca_stripe_t *stripe, uint64_t address, ca_record_t *record);

#endif
