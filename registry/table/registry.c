/* The table of live allocations.
 *
 * Each allocation has a record, found through the index (registry/table/index.h): the one in its
 * block, where the pool has a place for it, else one of ours. An allocation of the pool's memory
 * fills the block's record and sets its state word, which makes it live; the free takes it out with
 * one exchange of that word. Neither writes the index: that happens when the block begins or ends.
 *
 * The state holds the sequence number, so a record that was filled again is not mistaken for what
 * it held before. A thread that reads or changes a live record locks it, for some instructions.
 *
 * STRIPES independent indexes, each with a lock of its own for the threads that change it, chosen
 * by the region of the address and the thread that was first there (ca_stripe_of).
 *
 * Bytes are added to the totals before the record is live, and taken off after. */
#include "registry/table/registry.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/mem.h"
#include "base/thread_state.h"
#include "registry/table/allocated.h"
#include "registry/table/lost.h"
#include "registry/table/peak.h"
#include "registry/table/table.h"
#include "registry/table/live.h"
#include "registry/table/marks.h"
#include "registry/table/timeline.h"

/* Before a wait for a record is given up: some milliseconds, and no longer on a machine where a
 * single yield takes as long. */
#define LOCKED_TRIES 400
#define LOCKED_NS 10000000

_Static_assert(STRIPES * sizeof(ca_stripe_t) <= UINT16_MAX,
               "a region's stripe is stored in 16 bits");

/* Not one of ours until its memory is discarded: it may still be in the index. */
#define ENDED (CA_RECORD_ENDED | CA_RECORD_EMBEDDED)

#define OWN_RECORD_BYTES ((sizeof(ca_own_record_t) + 15) / 16 * 16)

ca_table_t ca_table = {
    .stripes[0 ... STRIPES - 1] = {.lock = CA_LOCK_INIT(CA_RANK_REGISTRY),
                                   .records = {.object_bytes = OWN_RECORD_BYTES}},
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
 * once the first one chooses. */
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
static inline void account(const ca_allocation_t *allocation, uint64_t sequence)
{
    if (!ca_recorder_counts(allocation))
        return;
    ca_live_add(allocation->bytes);
    const ca_registry_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (__builtin_expect(called != NULL, 0))
        called->added(allocation, sequence);
}

static inline void discount(const ca_allocation_t *allocation)
{
    if (!ca_recorder_counts(allocation))
        return;
    ca_live_remove(allocation->bytes);
    const ca_registry_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (__builtin_expect(called != NULL, 0))
        called->removed(allocation);
}

void ca_registry_discount(const ca_allocation_t *allocation)
{
    discount(allocation);
}

static inline uint64_t sequence_of(const ca_allocation_t *allocation)
{
    return allocation->sequence ? allocation->sequence : ca_live_number(ca_thread_counts);
}

/* --- records ---------------------------------------------------------------------------------- */

int ca_record_lock_live(ca_record_t *record, uint64_t *state)
{
    uint64_t begun = 0;
    for (unsigned tries = 0; tries < LOCKED_TRIES; tries++) {
        *state = ca_record_state(record);
        if (!(*state & CA_RECORD_LIVE))
            return -ENOENT;
        if (!(*state & CA_RECORD_LOCKED) && ca_record_lock(record, *state))
            return 0;
        uint64_t now = ca_clock_ns();
        if (begun == 0)
            begun = now;
        else if (now - begun > LOCKED_NS)
            break;
        ca_backoff(tries);
    }
    return -EBUSY;
}

/* Finds what is live at an address, and locks it. Takes no lock that threads share. */
static inline ca_record_t *find_locked(uint64_t address, uint64_t *state)
{
    ca_stripe_t *stripe = ca_stripe_of(address);
    uint64_t place = ca_index_hash(address);

    for (unsigned tries = 0; address; tries++) {
        ca_record_t *record = ca_index_find(&stripe->index, address, place, state);
        if (!record || !(*state & CA_RECORD_LIVE))
            return NULL;
        if (!(*state & CA_RECORD_LOCKED) && ca_record_lock(record, *state))
            return record;
        ca_backoff(tries);
    }
    return NULL;
}

/* --- under a stripe's lock ---------------------------------------------------------------------
 */

static ca_record_t *new_record(ca_stripe_t *stripe)
{
    ca_record_t *record = stripe->spare;
    if (record)
        stripe->spare = (ca_record_t *)(uintptr_t)record->payload[0];
    else
        record = ca_slab_take(&stripe->records);
    return record;
}

void ca_stripe_retire_record(ca_stripe_t *stripe, uint64_t address, ca_record_t *record)
{
    ca_index_remove(&stripe->index, ca_index_hash(address), record);
    /* The owner of the block may be filling it just now, or ending it. */
    uint64_t state = atomic_fetch_and(&record->state, ~(uint64_t)CA_RECORD_INDEXED);
    if (!(state & CA_RECORD_EMBEDDED)) {
        record->payload[0] = (uint64_t)(uintptr_t)stripe->spare;
        stripe->spare = record;
    }
}

/* --- the public functions --------------------------------------------------------------------- */

/* A record of ours, empty by now, unless another thread has filled it again meanwhile. */
static void drop_empty(uint64_t address, ca_record_t *record)
{
    ca_stripe_t *stripe = ca_stripe_of(address);
    ca_lock_take(&stripe->lock);
    if (ca_index_get(&stripe->index, address, ca_index_hash(address)) == record &&
        !(ca_record_state(record) & CA_RECORD_LIVE))
        ca_stripe_retire_record(stripe, address, record);
    ca_lock_drop(&stripe->lock);
}

/* A locked record is not live any more. */
static inline void take_out(uint64_t address, ca_record_t *record, uint64_t state,
                            const ca_allocation_t *allocation)
{
    ca_record_set_state(record, ca_record_empty_state(state));
    discount(allocation);
    if (!(state & CA_RECORD_EMBEDDED))
        drop_empty(address, record);
}

/* Fills an empty record. */
static void publish(ca_record_t *record, uint64_t flags, const ca_allocation_t *allocation)
{
    uint64_t sequence = sequence_of(allocation);
    account(allocation, sequence);
    ca_record_fill(record, flags, allocation);
    ca_record_set_state(record, ca_record_live_state(sequence, flags));
}

/* Fills a record that is locked with something else. */
static void republish(ca_record_t *record, uint64_t state, const ca_allocation_t *old,
                      const ca_allocation_t *allocation)
{
    uint64_t sequence = sequence_of(allocation);
    discount(old);
    account(allocation, sequence);
    ca_record_fill(record, state, allocation);
    ca_record_set_state(
        record, ca_record_live_state(sequence, state & (CA_RECORD_INDEXED | CA_RECORD_EMBEDDED)));
}

/* What is live in a record makes way for an allocation, or with `replace` false stays. Returns
 * whether the allocation still needs a record. Under the stripe's lock. */
static bool make_way(ca_record_t *record, const ca_allocation_t *allocation, bool replace)
{
    ca_allocation_t old;
    uint64_t state;
    int locked;

    while ((locked = ca_record_lock_live(record, &state)) == -EBUSY)
        ;
    if (locked != 0)
        return true; /* it went meanwhile */
    ca_record_copy(record, allocation->address, state, &old);
    if (!replace) {
        ca_record_set_state(record, state);
    } else if (state & CA_RECORD_EMBEDDED) { /* whose owner's memory may be about to end */
        ca_record_set_state(record, ca_record_empty_state(state));
        discount(&old);
        return true;
    } else {
        republish(record, state, &old, allocation);
    }
    return false;
}

/* A record of ours for an allocation, which may be `record` (or NULL). Under the stripe's lock. */
static int fill_place(ca_stripe_t *stripe, ca_record_t *record, const ca_allocation_t *allocation)
{
    uint64_t address = allocation->address;

    /* An empty one in a block is the block's: the driver handed its memory to another owner. */
    if (record && ca_record_state(record) & CA_RECORD_EMBEDDED) {
        ca_stripe_retire_record(stripe, address, record);
        record = NULL;
    }
    if (!record) {
        record = new_record(stripe);
        if (!record)
            return -ENOMEM;
        ca_record_set_address(record, address);
        if (ca_index_add(&stripe->index, ca_index_hash(address), record) != 0) {
            record->payload[0] = (uint64_t)(uintptr_t)stripe->spare;
            stripe->spare = record;
            return -ENOMEM;
        }
    }
    publish(record, CA_RECORD_INDEXED, allocation);
    return 0;
}

static int insert(const ca_allocation_t *allocation, bool replace)
{
    uint64_t address = allocation->address;
    ca_stripe_t *stripe = claim_stripe(address);
    int result = 0;

    if (address == 0)
        return -ENOMEM;
    ca_lock_take(&stripe->lock);
    ca_record_t *record = ca_index_get(&stripe->index, address, ca_index_hash(address));
    bool lived = record && ca_record_state(record) & CA_RECORD_LIVE;
    bool fills = !lived || make_way(record, allocation, replace);
    if (fills)
        result = fill_place(stripe, record, allocation);
    ca_lock_drop(&stripe->lock);
    return result == 0 && lived && (replace || !fills) ? -EEXIST : result;
}

int ca_registry_insert(const ca_allocation_t *allocation)
{
    return insert(allocation, true);
}

int ca_registry_insert_new(const ca_allocation_t *allocation)
{
    return insert(allocation, false);
}

/* Empties what is at the address of a record that is to be entered. Under the lock. */
static void clear_way(ca_stripe_t *stripe, uint64_t address, ca_record_t *there)
{
    uint64_t state;
    while (ca_record_state(there) & CA_RECORD_LIVE)
        if (ca_record_lock_live(there, &state) == 0) {
            ca_allocation_t old;
            ca_record_copy(there, address, state, &old);
            ca_record_set_state(there, ca_record_empty_state(state));
            discount(&old);
        }
    ca_stripe_retire_record(stripe, address, there);
}

/* Enters a record in its owner's memory. -EIO when that memory ends: ca_registry_end sets the state
 * before it takes the stripe's lock, so nothing stays in the index that is about to read as zeros,
 * and no thread has to remove what comes after that. -EEXIST where it does not replace what is
 * there. */
static int enter_index(ca_record_t *record, uint64_t address, bool replace)
{
    uint64_t place = ca_index_hash(address);
    ca_stripe_t *stripe = claim_stripe(address);
    int result = 0;

    ca_lock_take(&stripe->lock);
    ca_record_t *there = ca_index_get(&stripe->index, address, place);
    if (there != record) {
        if (ca_record_ended(ca_record_state(record)))
            result = -EIO;
        else if (there && !replace)
            result = -EEXIST;
        else if (there)
            clear_way(stripe, address, there);
        if (result == 0)
            result = ca_index_add(&stripe->index, place, record);
    }
    ca_lock_drop(&stripe->lock);
    return result;
}

/* It was entered for nothing, or its memory ends. Another thread may be the first to enter
 * something of the region just now: both are to lock the same stripe. */
static void leave_index(ca_record_t *record, uint64_t address)
{
    ca_stripe_t *stripe = claim_stripe(address);
    ca_lock_take(&stripe->lock);
    ca_index_remove(&stripe->index, ca_index_hash(address), record);
    ca_lock_drop(&stripe->lock);
}

static int insert_at(ca_record_t *record, const ca_allocation_t *allocation, bool replace)
{
    uint64_t state = ca_record_state(record);
    ca_allocation_t numbered = *allocation;
    bool entered = false;
    int result = -EIO;

    numbered.sequence = sequence_of(allocation);
    account(&numbered, numbered.sequence);
    ca_record_fill(record, CA_RECORD_EMBEDDED, allocation);
    /* No other thread fills it; but its memory may end. */
    while (!ca_record_ended(state)) {
        if (!(state & CA_RECORD_INDEXED) && !entered) {
            result = enter_index(record, allocation->address, replace);
            if (result != 0)
                break;
            result = -EIO;
            entered = true;
        }
        if (atomic_compare_exchange_strong_explicit(
                &record->state, &state,
                ca_record_live_state(numbered.sequence, CA_RECORD_INDEXED | CA_RECORD_EMBEDDED),
                memory_order_seq_cst, memory_order_acquire))
            return 0;
    }
    discount(&numbered);
    if (entered)
        leave_index(record, allocation->address);
    return result;
}

int ca_registry_insert_at(ca_record_t *record, const ca_allocation_t *allocation)
{
    return insert_at(record, allocation, true);
}

int ca_registry_insert_at_new(ca_record_t *record, const ca_allocation_t *allocation)
{
    return insert_at(record, allocation, false);
}

void ca_registry_forget(ca_record_t *record)
{
    if (!ca_record_indexed(record))
        return;
    ca_stripe_t *stripe = ca_stripe_of(record->address);
    ca_lock_take(&stripe->lock);
    ca_stripe_retire_record(stripe, record->address, record);
    ca_lock_drop(&stripe->lock);
}

void ca_registry_end(ca_record_t *record)
{
    uint64_t state = ca_record_state(record);

    for (;;) {
        if (state & CA_RECORD_LIVE) {
            if (ca_record_lock_live(record, &state) == 0) {
                ca_allocation_t allocation;
                ca_record_copy(record, record->address, state, &allocation);
                ca_record_set_state(record, ENDED);
                discount(&allocation);
                break;
            }
            state = ca_record_state(record);
        } else if (atomic_compare_exchange_strong_explicit(
                       &record->state, &state, ENDED, memory_order_acq_rel, memory_order_acquire)) {
            break;
        }
    }
    /* Even where the state does not say so: another thread may have entered it just now. */
    leave_index(record, record->address);
}

typedef enum { UNSHARED, OWNED, ANY } which_t;

static inline bool take(uint64_t address, ca_allocation_t *allocation, which_t which)
{
    uint64_t state;
    ca_record_t *record = find_locked(address, &state);
    if (!record)
        return false;
    ca_record_copy(record, address, state, allocation);
    bool takes = which == ANY || (!allocation->shared && (which == UNSHARED || allocation->owner));
    if (takes)
        take_out(address, record, state, allocation);
    else
        ca_record_set_state(record, state);
    return takes || which == UNSHARED;
}

bool ca_registry_erase(uint64_t address, ca_allocation_t *allocation)
{
    return take(address, allocation, UNSHARED);
}

bool ca_registry_take(uint64_t address, ca_allocation_t *allocation)
{
    return take(address, allocation, ANY);
}

bool ca_registry_take_owned(uint64_t address, ca_allocation_t *allocation)
{
    return take(address, allocation, OWNED);
}

bool ca_registry_take_of(uint64_t address, uint16_t context)
{
    uint64_t state;
    ca_allocation_t allocation;
    ca_record_t *record = find_locked(address, &state);
    if (!record)
        return false;
    ca_record_copy(record, address, state, &allocation);
    bool takes = allocation.context == context;
    if (takes)
        take_out(address, record, state, &allocation);
    else
        ca_record_set_state(record, state);
    return takes;
}

bool ca_registry_replace(const ca_allocation_t *old, const ca_allocation_t *fresh)
{
    uint64_t state;
    ca_allocation_t now;
    ca_record_t *record = find_locked(old->address, &state);
    if (!record)
        return false;
    ca_record_copy(record, old->address, state, &now);
    bool same = now.sequence == old->sequence;
    if (same)
        republish(record, state, &now, fresh);
    else
        ca_record_set_state(record, state);
    return same;
}

bool ca_registry_retain(uint64_t address)
{
    uint64_t state;
    ca_record_t *record = find_locked(address, &state);
    if (record) {
        record->payload[1]++; /* allocation.references */
        ca_record_set_state(record, state);
    }
    return record != NULL;
}

int64_t ca_registry_release(uint64_t address, ca_allocation_t *allocation)
{
    uint64_t state;
    ca_record_t *record = find_locked(address, &state);
    if (!record)
        return -1;
    int64_t left = (int64_t)record->payload[1];
    if (left > 0) {
        record->payload[1]--;
        ca_record_set_state(record, state);
    } else {
        ca_record_copy(record, address, state, allocation);
        take_out(address, record, state, allocation);
    }
    return left;
}

bool ca_registry_find(uint64_t address, ca_allocation_t *allocation)
{
    uint64_t state;
    ca_record_t *record = find_locked(address, &state);
    if (record) {
        ca_record_copy(record, address, state, allocation);
        ca_record_set_state(record, state);
    }
    return record != NULL;
}

void ca_registry_reset_after_fork(void)
{
    /* The parent's tables stay mapped: a thread that is not here may have been in the middle of
     * changing them, and the memory lock may not be usable yet. */
    for (size_t s = 0; s < STRIPES; s++) {
        ca_lock_init(&ca_table.stripes[s].lock, CA_RANK_REGISTRY);
        ca_index_reset_after_fork(&ca_table.stripes[s].index);
        ca_table.stripes[s].records = (ca_slab_t){.object_bytes = OWN_RECORD_BYTES};
        ca_table.stripes[s].spare = NULL;
    }
    ca_live_reset_after_fork();
    ca_lost_reset_after_fork();
    ca_allocated_reset_after_fork();
    ca_peak_reset_after_fork();
    ca_timeline_reset_after_fork();
    ca_marks_reset_after_fork();
}
