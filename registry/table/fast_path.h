/* Record state, the contract of the fast path (shim/alloc/fast_path.h) with the table of live
 * allocations. A record lies in its block, indexed by its address, and has a state word:
 *
 *   insert_again    not live -> live; by the owner of the block, which no other thread has
 *   find_unlocked   an optimistic look-up: the record and the state that was seen; not believed yet
 *   ca_record_lock  live, as of that state -> locked; fails where any thread came in between
 *   release_held    locked -> live, unchanged
 *   erase_held      locked -> not live; the block may then be anyone's
 *
 * While it is locked nothing may wait. Everything else goes through registry.h. */
#ifndef CA_REGISTRY_TABLE_FAST_PATH_H
#define CA_REGISTRY_TABLE_FAST_PATH_H

#include "base/inline.h"
#include "registry/table/live.h"
#include "registry/table/table.h"

/* What ca_registry_insert_at does, for a record that was inserted before at its address. For the
 * owner of the record's memory while that cannot end; false: not of that sort, nothing has changed.
 * `counts` is the calling thread's, after ca_live_ready. */
CA_INLINE bool ca_registry_insert_again(ca_record_t *record, const ca_record_origin_t *origin,
                                        ca_kind_t kind, uint64_t bytes, const void *owner,
                                        uint32_t stack, ca_thread_counts_t *counts)
{
    const uint8_t flags = CA_RECORD_INDEXED | CA_RECORD_EMBEDDED;
    if (__builtin_expect(ca_record_flags(ca_record_state(record)) != flags, 0))
        return false;
    ca_record_fill_own(record, origin, kind, bytes, owner, stack);
    ca_record_set_state(record, ca_live_add_ready(counts, bytes) + (flags | CA_RECORD_LIVE));
    return true;
}

/* Finds an allocation whose record is its owner's, as of `*state`; or NULL, also where a thread is
 * changing the index or the record. What was found is not believed before it is locked. */
CA_INLINE ca_record_t *ca_registry_find_unlocked(uint64_t address, uint64_t *state)
{
    const uint8_t wanted = CA_RECORD_LIVE | CA_RECORD_EMBEDDED | CA_RECORD_INDEXED;
    uint64_t hash = ca_index_hash(address);
    ca_stripe_t *stripe = ca_stripe_of(address);
    ca_record_t *record = ca_index_find_unlocked(&stripe->index, address, hash, state);
    return record && ca_record_flags(*state) == wanted ? record : NULL;
}

/* Once it is locked by that state (ca_record_lock), until one of the next two, nothing may wait. It
 * stays. */
CA_INLINE void ca_registry_release_held(ca_record_t *record, uint64_t state)
{
    ca_record_set_state(record, state);
}

/* It is not live any more; its bytes are to be left with the thread (ca_live_credit_with). */
CA_INLINE void ca_registry_erase_held(ca_record_t *record, uint64_t state)
{
    ca_record_set_state(record, state - CA_RECORD_LIVE);
}

#endif
