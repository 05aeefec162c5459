/* An allocation record: what is known of one allocation. The registry fills, finds and empties it;
 * an owner that has it in memory of its own (the pool, in each block) saves the registry from
 * making one for every allocation. While it is empty, that is not live, the owner may use
 * `payload`. */
#ifndef CA_BASE_RECORD_H
#define CA_BASE_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CA_RECORD_LIVE 1u
#define CA_RECORD_LOCKED 2u   /* live, and a thread is reading or changing it */
#define CA_RECORD_INDEXED 4u  /* the registry finds it by its address */
#define CA_RECORD_EMBEDDED 8u /* it lies in its owner's memory */
#define CA_RECORD_ENDED 16u   /* its owner's memory is about to be discarded: it stays empty */
/* Bits, as many as one instruction compares; above them the sequence number, so that no state comes
 * twice. */
#define CA_RECORD_FLAGS 8
#define CA_RECORD_SEQUENCE_ONE ((uint64_t)1 << CA_RECORD_FLAGS)

typedef struct ca_record {
    uint64_t address; /* see ca_record_set_address */
    _Atomic uint64_t state;
    uint64_t payload[4];
} ca_record_t;

/* Half of a payload, that is written at once. */
typedef uint64_t ca_record_pair_t __attribute__((vector_size(16)));

/* What the payloads of many allocations have in common, as it lies in them: made once, see
 * registry/table/table.h. */
typedef struct ca_record_origin {
    ca_record_pair_t halves[2];
} ca_record_origin_t;

/* Other threads may read the address of a record that they found by an older one. */
static inline uint64_t ca_record_address(const ca_record_t *record)
{
    return __atomic_load_n(&record->address, __ATOMIC_ACQUIRE);
}

/* While no index has the record. A thread that reads the new address sees that it had left the
 * index. */
static inline void ca_record_set_address(ca_record_t *record, uint64_t address)
{
    __atomic_store_n(&record->address, address, __ATOMIC_RELEASE);
}

/* An owner's new record. One whose state is 0 counts as ended: that is how discarded memory reads.
 */
static inline void ca_record_init(ca_record_t *record)
{
    atomic_store_explicit(&record->state, CA_RECORD_EMBEDDED, memory_order_relaxed);
}

static inline bool ca_record_ended(uint64_t state)
{
    return state == 0 || (state & CA_RECORD_ENDED);
}

static inline uint8_t ca_record_flags(uint64_t state)
{
    return (uint8_t)state;
}

/* For the owner of an empty record. */
static inline bool ca_record_indexed(const ca_record_t *record)
{
    return atomic_load_explicit(&record->state, memory_order_relaxed) & CA_RECORD_INDEXED;
}

#endif
