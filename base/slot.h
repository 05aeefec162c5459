/* A place for what is known of one allocation. It is filled, found and emptied by the registry; who
 * has it in memory of his own (the pool, in each block) spares the registry to make one for every
 * allocation. While it is empty, that is not live, `note` is its owner's to use. */
#ifndef CA_CONFIG_SLOT_H
#define CA_CONFIG_SLOT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CA_SLOT_LIVE 1u
#define CA_SLOT_LOCKED 2u   /* live, and somebody is reading or changing it */
#define CA_SLOT_INDEXED 4u  /* the registry finds it by its address */
#define CA_SLOT_EMBEDDED 8u /* it lies in somebody else's memory */
#define CA_SLOT_ENDED 16u   /* its owner's memory is about to go: it stays empty */
/* Bits, as many as one instruction compares; above them the sequence number, so that no state comes
 * twice. */
#define CA_SLOT_FLAGS 8
#define CA_SLOT_SEQUENCE_ONE ((uint64_t)1 << CA_SLOT_FLAGS)

typedef struct ca_slot {
    uint64_t address; /* see ca_slot_set_address */
    _Atomic uint64_t word;
    uint64_t note[4];
} ca_slot_t;

/* Half of a note, that is written at once. */
typedef uint64_t ca_slot_pair_t __attribute__((vector_size(16)));

/* What the notes of many allocations have in common, as it lies in them: made once, see
 * registry/table/table.h. */
typedef struct ca_slot_origin {
    ca_slot_pair_t halves[2];
} ca_slot_origin_t;

/* Others may look at the address of a slot that they found by an older one. */
static inline uint64_t ca_slot_address(const ca_slot_t *slot)
{
    return __atomic_load_n(&slot->address, __ATOMIC_ACQUIRE);
}

/* While no index has the slot. Whoever reads the new address sees that it had left the index. */
static inline void ca_slot_set_address(ca_slot_t *slot, uint64_t address)
{
    __atomic_store_n(&slot->address, address, __ATOMIC_RELEASE);
}

/* An owner's new slot. One whose word is 0 counts as ended: that is how discarded memory reads. */
static inline void ca_slot_init(ca_slot_t *slot)
{
    atomic_store_explicit(&slot->word, CA_SLOT_EMBEDDED, memory_order_relaxed);
}

static inline bool ca_slot_ended(uint64_t word)
{
    return word == 0 || (word & CA_SLOT_ENDED);
}

static inline uint8_t ca_slot_flags(uint64_t word)
{
    return (uint8_t)word;
}

/* For the owner of an empty slot. */
static inline bool ca_slot_indexed(const ca_slot_t *slot)
{
    return atomic_load_explicit(&slot->word, memory_order_relaxed) & CA_SLOT_INDEXED;
}

#endif
