/* The table of live allocations.
 *
 * Each allocation has a slot, found through the index (registry/table/index.h): its own one where
 * the pool has a place for it in its block, else one of ours. An allocation of the pool's memory
 * fills the block's slot and sets its word, which makes it live; the free takes it out with one
 * exchange of that word. The index hears of neither: it is written when the block begins or ends.
 *
 * The word holds the sequence number, so a slot that was filled again is not mistaken for what it
 * held before. A thread that reads or changes a live slot locks it, for some instructions.
 *
 * STRIPES independent indexes, each with a lock of its own for the threads that change it, chosen
 * by the region of the address and the thread that was first there (ca_stripe_of).
 *
 * Bytes are added to the totals before the slot is live, and taken off after. */
#include "registry/table/registry.h"

#include <errno.h>
#include <string.h>

#include "base/lock.h"
#include "base/mem.h"
#include "base/thread_state.h"
#include "registry/table/lost.h"
#include "registry/table/peak.h"
#include "registry/table/table.h"
#include "registry/table/live.h"
#include "registry/table/marks.h"
#include "registry/table/timeline.h"

#define LOCKED_TRIES 400 /* before a wait for a slot is given up: some milliseconds */

_Static_assert(STRIPES * sizeof(ca_stripe_t) <= UINT16_MAX, "a region's stripe is told in 16 bits");

/* Not one of ours until its memory is gone: it may still be in the index. */
#define ENDED (CA_RECORD_ENDED | CA_RECORD_EMBEDDED)

#define OWN_SLOT_BYTES ((sizeof(ca_own_record_t) + 15) / 16 * 16)

ca_table_t ca_table = {
    .stripes[0 ... STRIPES - 1] = {.lock = CA_LOCK_INIT(CA_RANK_REGISTRY),
                                   .slots = {.object_bytes = OWN_SLOT_BYTES}},
};

/* Read without order: it is set before anything is live, or what is live is added after. */
static const ca_registry_listener_t *_Atomic listener;

const char *ca_kind_name(ca_kind_t kind)
{
    static const char *const names[] = {
#define CA_KIND(constant, name) name,
        CA_KINDS(CA_KIND)
#undef CA_KIND
    };
    return (unsigned)kind < CA_KIND_COUNT ? names[kind] : "unknown";
}

/* For a thread that is about to enter something, or keeps others from it. Of threads that come at
 * once the first one says. */
static ca_stripe_t *claim_stripe(uint64_t address)
{
    _Atomic uint16_t *region = ca_region_of(address);
    uint16_t none = 0;
    if (atomic_load_explicit(region, memory_order_relaxed) == 0) {
        size_t own = ca_thread_number() % GROUPS * OWN_STRIPES;
        size_t stripe = 1 + own + (address >> REGION_SHIFT) % OWN_STRIPES;
        atomic_compare_exchange_strong_explicit(region, &none,
                                                (uint16_t)(stripe * sizeof(ca_stripe_t)),
                                                memory_order_relaxed, memory_order_relaxed);
    }
    return ca_stripe_of(address);
}

void ca_registry_listen(const ca_registry_listener_t *called)
{
    atomic_store(&listener, called);
}

/* --- totals ----------------------------------------------------------------------------------- */

/* What comes with a record. */
static inline void account(const ca_allocation_t *record, uint64_t sequence)
{
    if (!ca_recorder_counts(record))
        return;
    ca_live_add(record->bytes);
    const ca_registry_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (__builtin_expect(called != NULL, 0))
        called->added(record, sequence);
}

static inline void discount(const ca_allocation_t *record)
{
    if (!ca_recorder_counts(record))
        return;
    ca_live_remove(record->bytes);
    const ca_registry_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (__builtin_expect(called != NULL, 0))
        called->removed(record);
}

void ca_registry_discount(const ca_allocation_t *record)
{
    discount(record);
}

static inline uint64_t sequence_of(const ca_allocation_t *record)
{
    return record->sequence ? record->sequence : ca_live_number(ca_thread_counts);
}

/* --- slots ------------------------------------------------------------------------------------ */

int ca_record_lock_live(ca_record_t *slot, uint64_t *word)
{
    for (unsigned tries = 0; tries < LOCKED_TRIES; tries++) {
        *word = ca_record_state(slot);
        if (!(*word & CA_RECORD_LIVE))
            return -ENOENT;
        if (!(*word & CA_RECORD_LOCKED) && ca_record_lock(slot, *word))
            return 0;
        ca_backoff(tries);
    }
    return -EBUSY;
}

/* Finds what is live at an address, and locks it. Takes no lock that threads share. */
static inline ca_record_t *find_locked(uint64_t address, uint64_t *word)
{
    ca_stripe_t *stripe = ca_stripe_of(address);
    uint64_t place = ca_index_hash(address);

    for (unsigned tries = 0; address; tries++) {
        ca_record_t *slot = ca_index_find(&stripe->index, address, place, word);
        if (!slot || !(*word & CA_RECORD_LIVE))
            return NULL;
        if (!(*word & CA_RECORD_LOCKED) && ca_record_lock(slot, *word))
            return slot;
        ca_backoff(tries);
    }
    return NULL;
}

/* --- under a stripe's lock ---------------------------------------------------------------------
 */

static ca_record_t *new_slot(ca_stripe_t *stripe)
{
    ca_record_t *slot = stripe->spare;
    if (slot)
        stripe->spare = (ca_record_t *)(uintptr_t)slot->note[0];
    else
        slot = ca_slab_take(&stripe->slots);
    return slot;
}

void ca_stripe_retire_record(ca_stripe_t *stripe, uint64_t address, ca_record_t *slot)
{
    ca_index_remove(&stripe->index, ca_index_hash(address), slot);
    /* The owner of the block may be filling it just now, or ending it. */
    uint64_t word = atomic_fetch_and(&slot->word, ~(uint64_t)CA_RECORD_INDEXED);
    if (!(word & CA_RECORD_EMBEDDED)) {
        slot->note[0] = (uint64_t)(uintptr_t)stripe->spare;
        stripe->spare = slot;
    }
}

/* --- the public functions --------------------------------------------------------------------- */

/* A slot of ours, empty by now, unless another thread has filled it again meanwhile. */
static void drop_empty(uint64_t address, ca_record_t *slot)
{
    ca_stripe_t *stripe = ca_stripe_of(address);
    ca_lock_take(&stripe->lock);
    if (ca_index_look(&stripe->index, address, ca_index_hash(address)) == slot &&
        !(ca_record_state(slot) & CA_RECORD_LIVE))
        ca_stripe_retire_record(stripe, address, slot);
    ca_lock_drop(&stripe->lock);
}

/* A locked slot is not live any more. */
static inline void take_out(uint64_t address, ca_record_t *slot, uint64_t word,
                            const ca_allocation_t *record)
{
    ca_record_set_state(slot, ca_record_empty_state(word));
    discount(record);
    if (!(word & CA_RECORD_EMBEDDED))
        drop_empty(address, slot);
}

/* Fills an empty slot. */
static void publish(ca_record_t *slot, uint64_t flags, const ca_allocation_t *record)
{
    uint64_t sequence = sequence_of(record);
    account(record, sequence);
    ca_record_fill(slot, flags, record);
    ca_record_set_state(slot, ca_record_live_state(sequence, flags));
}

/* Fills a slot that is locked with something else. */
static void republish(ca_record_t *slot, uint64_t word, const ca_allocation_t *old,
                      const ca_allocation_t *record)
{
    uint64_t sequence = sequence_of(record);
    discount(old);
    account(record, sequence);
    ca_record_fill(slot, word, record);
    ca_record_set_state(
        slot, ca_record_live_state(sequence, word & (CA_RECORD_INDEXED | CA_RECORD_EMBEDDED)));
}

/* What is live in a slot makes room for a record, or with `replace` false stays. Returns whether
 * the record still needs a place. Under the stripe's lock. */
static bool make_way(ca_record_t *slot, const ca_allocation_t *record, bool replace)
{
    ca_allocation_t old;
    uint64_t word;
    int locked;

    while ((locked = ca_record_lock_live(slot, &word)) == -EBUSY)
        ;
    if (locked != 0)
        return true; /* it went meanwhile */
    ca_record_copy(slot, record->address, word, &old);
    if (!replace) {
        ca_record_set_state(slot, word);
    } else if (word & CA_RECORD_EMBEDDED) { /* whose owner's memory may be about to end */
        ca_record_set_state(slot, ca_record_empty_state(word));
        discount(&old);
        return true;
    } else {
        republish(slot, word, &old, record);
    }
    return false;
}

/* A place of ours for a record, which may be what `slot` (or NULL) is. Under the stripe's lock. */
static int fill_place(ca_stripe_t *stripe, ca_record_t *slot, const ca_allocation_t *record)
{
    uint64_t address = record->address;

    /* An empty one in a block is the block's: the driver gave its memory to another owner. */
    if (slot && ca_record_state(slot) & CA_RECORD_EMBEDDED) {
        ca_stripe_retire_record(stripe, address, slot);
        slot = NULL;
    }
    if (!slot) {
        slot = new_slot(stripe);
        if (!slot)
            return -ENOMEM;
        ca_record_set_address(slot, address);
        if (ca_index_add(&stripe->index, ca_index_hash(address), slot) != 0) {
            slot->note[0] = (uint64_t)(uintptr_t)stripe->spare;
            stripe->spare = slot;
            return -ENOMEM;
        }
    }
    publish(slot, CA_RECORD_INDEXED, record);
    return 0;
}

static int insert(const ca_allocation_t *record, bool replace)
{
    uint64_t address = record->address;
    ca_stripe_t *stripe = claim_stripe(address);
    int result = 0;

    if (address == 0)
        return -ENOMEM;
    ca_lock_take(&stripe->lock);
    ca_record_t *slot = ca_index_look(&stripe->index, address, ca_index_hash(address));
    bool lived = slot && ca_record_state(slot) & CA_RECORD_LIVE;
    bool fills = !lived || make_way(slot, record, replace);
    if (fills)
        result = fill_place(stripe, slot, record);
    ca_lock_drop(&stripe->lock);
    return result == 0 && lived && (replace || !fills) ? -EEXIST : result;
}

int ca_registry_insert(const ca_allocation_t *record)
{
    return insert(record, true);
}

int ca_registry_insert_new(const ca_allocation_t *record)
{
    return insert(record, false);
}

/* What was at the address of a slot that is to be entered is not any more. Under the lock. */
static void clear_way(ca_stripe_t *stripe, uint64_t address, ca_record_t *there)
{
    uint64_t word;
    while (ca_record_state(there) & CA_RECORD_LIVE)
        if (ca_record_lock_live(there, &word) == 0) {
            ca_allocation_t old;
            ca_record_copy(there, address, word, &old);
            ca_record_set_state(there, ca_record_empty_state(word));
            discount(&old);
        }
    ca_stripe_retire_record(stripe, address, there);
}

/* The index learns of a slot in its owner's memory. -EIO when that memory ends: ca_registry_end
 * says so before it takes the stripe's lock, so nothing stays in the index that is about to read as
 * zeros, and no thread has to remove what comes too late. -EEXIST where it does not replace what is
 * there. */
static int enter_index(ca_record_t *slot, uint64_t address, bool replace)
{
    uint64_t place = ca_index_hash(address);
    ca_stripe_t *stripe = claim_stripe(address);
    int result = 0;

    ca_lock_take(&stripe->lock);
    ca_record_t *there = ca_index_look(&stripe->index, address, place);
    if (there != slot) {
        if (ca_record_ended(ca_record_state(slot)))
            result = -EIO;
        else if (there && !replace)
            result = -EEXIST;
        else if (there)
            clear_way(stripe, address, there);
        if (result == 0)
            result = ca_index_add(&stripe->index, place, slot);
    }
    ca_lock_drop(&stripe->lock);
    return result;
}

/* It was entered for nothing, or its memory ends. Another thread may be the first to enter
 * something of the region just now: both are to lock the same stripe. */
static void leave_index(ca_record_t *slot, uint64_t address)
{
    ca_stripe_t *stripe = claim_stripe(address);
    ca_lock_take(&stripe->lock);
    ca_index_remove(&stripe->index, ca_index_hash(address), slot);
    ca_lock_drop(&stripe->lock);
}

static int insert_at(ca_record_t *slot, const ca_allocation_t *record, bool replace)
{
    uint64_t word = ca_record_state(slot);
    ca_allocation_t numbered = *record;
    bool entered = false;
    int result = -EIO;

    numbered.sequence = sequence_of(record);
    account(&numbered, numbered.sequence);
    ca_record_fill(slot, CA_RECORD_EMBEDDED, record);
    /* No other thread fills it; but its memory may end. */
    while (!ca_record_ended(word)) {
        if (!(word & CA_RECORD_INDEXED) && !entered) {
            result = enter_index(slot, record->address, replace);
            if (result != 0)
                break;
            result = -EIO;
            entered = true;
        }
        if (atomic_compare_exchange_strong_explicit(
                &slot->word, &word,
                ca_record_live_state(numbered.sequence, CA_RECORD_INDEXED | CA_RECORD_EMBEDDED),
                memory_order_seq_cst, memory_order_acquire))
            return 0;
    }
    discount(&numbered);
    if (entered)
        leave_index(slot, record->address);
    return result;
}

int ca_registry_insert_at(ca_record_t *slot, const ca_allocation_t *record)
{
    return insert_at(slot, record, true);
}

int ca_registry_insert_at_new(ca_record_t *slot, const ca_allocation_t *record)
{
    return insert_at(slot, record, false);
}

void ca_registry_forget(ca_record_t *slot)
{
    if (!ca_record_indexed(slot))
        return;
    ca_stripe_t *stripe = ca_stripe_of(slot->address);
    ca_lock_take(&stripe->lock);
    ca_stripe_retire_record(stripe, slot->address, slot);
    ca_lock_drop(&stripe->lock);
}

void ca_registry_end(ca_record_t *slot)
{
    uint64_t word = ca_record_state(slot);

    for (;;) {
        if (word & CA_RECORD_LIVE) {
            if (ca_record_lock_live(slot, &word) == 0) {
                ca_allocation_t record;
                ca_record_copy(slot, slot->address, word, &record);
                ca_record_set_state(slot, ENDED);
                discount(&record);
                break;
            }
            word = ca_record_state(slot);
        } else if (atomic_compare_exchange_strong_explicit(
                       &slot->word, &word, ENDED, memory_order_acq_rel, memory_order_acquire)) {
            break;
        }
    }
    /* Even where the word does not say so: another thread may have entered it just now. */
    leave_index(slot, slot->address);
}

typedef enum { UNSHARED, OWNED, ANY } which_t;

static inline bool take(uint64_t address, ca_allocation_t *record, which_t which)
{
    uint64_t word;
    ca_record_t *slot = find_locked(address, &word);
    if (!slot)
        return false;
    ca_record_copy(slot, address, word, record);
    bool takes = which == ANY || (!record->shared && (which == UNSHARED || record->owner));
    if (takes)
        take_out(address, slot, word, record);
    else
        ca_record_set_state(slot, word);
    return takes || which == UNSHARED;
}

bool ca_registry_erase(uint64_t address, ca_allocation_t *record)
{
    return take(address, record, UNSHARED);
}

bool ca_registry_take(uint64_t address, ca_allocation_t *record)
{
    return take(address, record, ANY);
}

bool ca_registry_take_owned(uint64_t address, ca_allocation_t *record)
{
    return take(address, record, OWNED);
}

bool ca_registry_take_of(uint64_t address, uint16_t context)
{
    uint64_t word;
    ca_allocation_t record;
    ca_record_t *slot = find_locked(address, &word);
    if (!slot)
        return false;
    ca_record_copy(slot, address, word, &record);
    bool takes = record.context == context;
    if (takes)
        take_out(address, slot, word, &record);
    else
        ca_record_set_state(slot, word);
    return takes;
}

bool ca_registry_replace(const ca_allocation_t *old, const ca_allocation_t *fresh)
{
    uint64_t word;
    ca_allocation_t now;
    ca_record_t *slot = find_locked(old->address, &word);
    if (!slot)
        return false;
    ca_record_copy(slot, old->address, word, &now);
    bool same = now.sequence == old->sequence;
    if (same)
        republish(slot, word, &now, fresh);
    else
        ca_record_set_state(slot, word);
    return same;
}

bool ca_registry_retain(uint64_t address)
{
    uint64_t word;
    ca_record_t *slot = find_locked(address, &word);
    if (slot) {
        slot->note[1]++; /* record.references */
        ca_record_set_state(slot, word);
    }
    return slot != NULL;
}

int64_t ca_registry_release(uint64_t address, ca_allocation_t *record)
{
    uint64_t word;
    ca_record_t *slot = find_locked(address, &word);
    if (!slot)
        return -1;
    int64_t left = (int64_t)slot->note[1];
    if (left > 0) {
        slot->note[1]--;
        ca_record_set_state(slot, word);
    } else {
        ca_record_copy(slot, address, word, record);
        take_out(address, slot, word, record);
    }
    return left;
}

bool ca_registry_find(uint64_t address, ca_allocation_t *record)
{
    uint64_t word;
    ca_record_t *slot = find_locked(address, &word);
    if (slot) {
        ca_record_copy(slot, address, word, record);
        ca_record_set_state(slot, word);
    }
    return slot != NULL;
}

void ca_registry_reset_after_fork(void)
{
    /* The parent's tables stay mapped: a thread that is not here may have been in the middle of
     * changing them, and the memory lock may not be usable yet. */
    for (size_t s = 0; s < STRIPES; s++) {
        ca_lock_init(&ca_table.stripes[s].lock, CA_RANK_REGISTRY);
        ca_index_reset_after_fork(&ca_table.stripes[s].index);
        ca_table.stripes[s].slots = (ca_slab_t){.object_bytes = OWN_SLOT_BYTES};
        ca_table.stripes[s].spare = NULL;
    }
    ca_live_reset_after_fork();
    ca_lost_reset_after_fork();
    ca_peak_reset_after_fork();
    ca_timeline_reset_after_fork();
    ca_marks_reset_after_fork();
}
