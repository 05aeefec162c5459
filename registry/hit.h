/* What a hit does to the table of live allocations, in as few instructions as it takes: for whoever
 * has the rest of a hit to put around it (shim/hit.c). All else goes through registry.h. */
#ifndef CA_REGISTRY_HIT_H
#define CA_REGISTRY_HIT_H

#include "config/inline.h"
#include "registry/live.h"
#include "registry/table.h"

/* What a slot of an owner's is filled with; see ca_record_t. */
typedef struct ca_hit {
    uint64_t bytes;
    ca_kind_t kind;
    uint8_t device;
    uint16_t context;
    void *owner;
    uint32_t stack, thread;
} ca_hit_t;

/* What ca_registry_insert_at does, for a slot that was inserted before at its address, and no
 * stream. For the owner of the slot's memory while that cannot end; false: not of that sort,
 * nothing has changed. `tally` is the calling thread's. */
CA_INLINE bool ca_registry_insert_again(ca_slot_t *slot, ca_hit_t hit, ca_tally_t *tally)
{
    const uint64_t flags = CA_SLOT_INDEXED | CA_SLOT_EMBEDDED;
    if (__builtin_expect((ca_slot_word(slot) & ((1u << CA_SLOT_FLAGS) - 1)) != flags, 0))
        return false;
    ca_live_add_own(tally, hit.bytes);
    slot->note[0] = ca_slot_what(hit.bytes, hit.kind, CA_SHARED_NOT, hit.device);
    slot->note[1] = 0;
    slot->note[2] = ca_slot_whose(hit.owner, hit.context);
    slot->note[3] = hit.stack | (uint64_t)hit.thread << 32;
    ca_slot_set_word(slot, ca_slot_live_word(ca_live_number(tally), flags));
    return true;
}

/* Finds an allocation whose slot is its owner's and locks it: until one of the next two, with
 * nothing in between that may wait. NULL when it is none such, or not to be had at once. */
CA_INLINE ca_slot_t *ca_registry_hold(uint64_t address, uint64_t *word)
{
    *word = 0;
    uint64_t hash = ca_index_hash(address);
    ca_shard_t *shard = &ca_registry_shards[hash >> (64 - CA_INDEX_SHARD_BITS)];
    ca_slot_t *slot = ca_index_find(&shard->index, address, hash << CA_INDEX_SHARD_BITS, word);
    const uint64_t wanted = CA_SLOT_LIVE | CA_SLOT_EMBEDDED;
    if (!slot || (*word & (wanted | CA_SLOT_LOCKED)) != wanted || !ca_slot_lock(slot, *word))
        return NULL;
    return slot;
}

/* It stays. */
CA_INLINE void ca_registry_release_held(ca_slot_t *slot, uint64_t word)
{
    ca_slot_set_word(slot, word);
}

/* It is not live any more. */
CA_INLINE void ca_registry_erase_held(ca_slot_t *slot, uint64_t word, ca_tally_t *tally)
{
    uint64_t bytes = ca_slot_bytes(slot);
    ca_slot_set_word(slot, ca_slot_empty_word(word));
    ca_live_remove_own(tally, bytes);
}

#endif
