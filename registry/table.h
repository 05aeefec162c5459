/* The table of live allocations from inside: for the calls on single records (registry.c) and for
 * those that walk over all of them (walk.c). */
#ifndef CA_REGISTRY_TABLE_H
#define CA_REGISTRY_TABLE_H

#include "config/lock.h"
#include "config/mem.h"
#include "registry/index.h"
#include "registry/registry.h"

#define SHARDS CA_REGISTRY_SHARDS
#define CACHE_LINES 128 /* two lines: the hardware fetches them in pairs */

typedef struct ca_shard {
    _Alignas(CACHE_LINES) ca_lock_t lock;
    ca_index_t index;
    ca_slab_t slots;  /* of ours; under the lock */
    ca_slot_t *spare; /* of those, free ones, by note[0] */
} ca_shard_t;

extern ca_shard_t ca_registry_shards[SHARDS];

/* Aliases are names, not allocations. */
static inline bool ca_record_counts(const ca_record_t *record)
{
    return __builtin_expect(record->kind != CA_KIND_ALIAS, 1);
}

/* What leaves the totals with a record. */
void ca_registry_discount(const ca_record_t *record);

/* --- a slot that is locked, or one's own -------------------------------------------------------
 */

static inline void ca_slot_copy(const ca_slot_t *slot, uint64_t address, uint64_t word,
                                ca_record_t *record)
{
    *record = (ca_record_t){
        .address = address,
        .bytes = slot->note[0],
        .kind = slot->note[0] >> 48,
        .shared = slot->note[0] >> 54,
        .device = slot->note[0] >> 56,
        .sequence = word >> CA_SLOT_FLAGS,
        .context = slot->note[4],
        .stream = slot->note[1],
        .owner = (void *)(uintptr_t)slot->note[2],
        .stack = (uint32_t)slot->note[3],
        .thread = (uint32_t)(slot->note[3] >> 32),
    };
}

static inline uint64_t ca_slot_word(const ca_slot_t *slot)
{
    return atomic_load_explicit(&slot->word, memory_order_acquire);
}

static inline void ca_slot_set_word(ca_slot_t *slot, uint64_t word)
{
    atomic_store_explicit(&slot->word, word, memory_order_release);
}

/* What a slot's word is once it is not live any more. */
static inline uint64_t ca_slot_empty_word(uint64_t word)
{
    return word & ~(uint64_t)(CA_SLOT_LIVE | CA_SLOT_LOCKED);
}

/* Locks a slot if it is live. -ENOENT when it is not, -EBUSY when it stays locked. */
int ca_slot_lock_live(ca_slot_t *slot, uint64_t *word);

/* An empty slot leaves the index, whose shard is locked. One of ours may be filled with something
 * else from now on. */
void ca_shard_retire_slot(ca_shard_t *shard, uint64_t address, ca_slot_t *slot);

#endif
