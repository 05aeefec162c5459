/* The table of live allocations.
 *
 * Each allocation has a slot, found through the index (registry/index.h): its own one where the
 * pool has a place for it in its block, else one of ours. An allocation of the pool's memory fills
 * the block's slot and sets its word, which makes it live; the free takes it out with one exchange
 * of that word. The index hears of neither: it is written when the block begins or ends.
 *
 * The word holds the sequence number, so a slot that was filled again is not mistaken for what it
 * held before. Whoever reads or changes a live slot locks it, for some instructions.
 *
 * SHARDS independent indexes, each with a lock of its own for those who change it, chosen by the
 * top bits of a hash of the address.
 *
 * Bytes are one process-wide atomic, because the peak is a property of the whole. They are added
 * before the slot is live, and taken off after: the total cannot underflow. */
#include "registry/registry.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

#include "config/lock.h"
#include "config/mem.h"
#include "registry/index.h"
#include "registry/lost.h"
#include "registry/patience.h"

#define SHARDS CA_REGISTRY_SHARDS
#define LEAST_CAPACITY 64
#define KEPT_AT_A_TIME 1024 /* records */
#define CACHE_LINES 128     /* two lines: the hardware fetches them in pairs */
#define LOCKED_TRIES 1000   /* before another thread gets the processor, or the wait is given up */

typedef struct ca_shard {
    _Alignas(CACHE_LINES) ca_lock_t lock;
    ca_index_t index;
    ca_slab_t slots;  /* of ours; under the lock */
    ca_slot_t *spare; /* of those, free ones, by note[0] */
} ca_shard_t;

_Static_assert(SHARDS == 1 << CA_INDEX_SHARD_BITS, "the hash's top bits choose a shard");

static ca_shard_t shards[SHARDS] = {
    [0 ... SHARDS - 1] = {.lock = CA_LOCK_INIT(CA_RANK_REGISTRY),
                          .slots = {.object_bytes = (sizeof(ca_slot_t) + 15) / 16 * 16}},
};

static struct {
    _Alignas(CACHE_LINES) _Atomic uint64_t bytes;
    _Atomic uint64_t count; /* aliases are not in it */
    _Atomic uint64_t sequence;
} live;

/* Apart from `live`: read on every insert, written only while a process grows. */
static _Alignas(CACHE_LINES) _Atomic uint64_t peak;

const char *ca_kind_name(ca_kind_t kind)
{
    static const char *const names[] = {
#define CA_KIND(constant, name) name,
        CA_KINDS(CA_KIND)
#undef CA_KIND
    };
    return (unsigned)kind < CA_KIND_COUNT ? names[kind] : "unknown";
}

static inline ca_shard_t *shard_of(uint64_t address)
{
    return &shards[ca_index_hash(address) >> (64 - CA_INDEX_SHARD_BITS)];
}

/* --- totals ----------------------------------------------------------------------------------- */

static inline bool counts(const ca_record_t *record)
{
    return __builtin_expect(record->kind != CA_KIND_ALIAS, 1);
}

/* What comes with a record. */
static inline void account(const ca_record_t *record)
{
    if (!counts(record))
        return;
    atomic_fetch_add_explicit(&live.count, 1, memory_order_relaxed);
    uint64_t now =
        atomic_fetch_add_explicit(&live.bytes, record->bytes, memory_order_relaxed) + record->bytes;
    uint64_t most = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > most && !atomic_compare_exchange_weak_explicit(
                             &peak, &most, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* What leaves with one. */
static inline void discount(const ca_record_t *record)
{
    if (!counts(record))
        return;
    atomic_fetch_sub_explicit(&live.count, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&live.bytes, record->bytes, memory_order_relaxed);
}

static inline uint64_t sequence_of(const ca_record_t *record)
{
    return record->sequence
               ? record->sequence
               : atomic_fetch_add_explicit(&live.sequence, 1, memory_order_relaxed) + 1;
}

/* --- slots ------------------------------------------------------------------------------------ */

static inline void fill(ca_slot_t *slot, const ca_record_t *record)
{
    slot->note[0] = record->bytes | (uint64_t)record->kind << 48 | (uint64_t)record->shared << 54 |
                    (uint64_t)record->device << 56;
    slot->note[1] = record->stream;
    slot->note[2] = (uint64_t)(uintptr_t)record->owner;
    slot->note[3] = record->stack | (uint64_t)record->thread << 32;
    slot->note[4] = record->context;
}

static inline void copy(const ca_slot_t *slot, uint64_t address, uint64_t word, ca_record_t *record)
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

static inline uint64_t word_of(const ca_slot_t *slot)
{
    return atomic_load_explicit(&slot->word, memory_order_acquire);
}

static inline void set_word(ca_slot_t *slot, uint64_t word)
{
    atomic_store_explicit(&slot->word, word, memory_order_release);
}

/* Live as of `word`, which nobody has locked: locks it. False when it is not as it was. */
static inline bool lock_slot(ca_slot_t *slot, uint64_t word)
{
    return atomic_compare_exchange_strong_explicit(&slot->word, &word, word | CA_SLOT_LOCKED,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Locks a slot if it is live. -ENOENT when it is not, -EBUSY when it stays locked. */
static int lock_live(ca_slot_t *slot, uint64_t *word)
{
    for (unsigned tries = 0; tries < 2 * LOCKED_TRIES; tries++) {
        *word = word_of(slot);
        if (!(*word & CA_SLOT_LIVE))
            return -ENOENT;
        if (!(*word & CA_SLOT_LOCKED) && lock_slot(slot, *word))
            return 0;
        if (tries > LOCKED_TRIES)
            sched_yield();
    }
    return -EBUSY;
}

/* Finds what is live at an address, and locks it. Takes no lock that threads share. */
static inline ca_slot_t *find_locked(uint64_t address, uint64_t *word)
{
    ca_shard_t *shard = shard_of(address);
    uint64_t place = ca_index_place(address);

    for (unsigned tries = 1; address; tries++) {
        ca_slot_t *slot = ca_index_find(&shard->index, address, place, word);
        if (!slot || !(*word & CA_SLOT_LIVE))
            return NULL;
        if (!(*word & CA_SLOT_LOCKED) && lock_slot(slot, *word))
            return slot;
        if (tries % LOCKED_TRIES == 0)
            sched_yield();
    }
    return NULL;
}

static inline uint64_t live_word(uint64_t sequence, uint64_t flags)
{
    return sequence << CA_SLOT_FLAGS | flags | CA_SLOT_LIVE;
}

/* What a slot's word is once it is not live any more. */
static inline uint64_t empty_word(uint64_t word)
{
    return word & ~(uint64_t)(CA_SLOT_LIVE | CA_SLOT_LOCKED);
}

/* --- under a shard's lock --------------------------------------------------------------------- */

static ca_slot_t *new_slot(ca_shard_t *shard)
{
    ca_slot_t *slot = shard->spare;
    if (slot)
        shard->spare = (ca_slot_t *)(uintptr_t)slot->note[0];
    else
        slot = ca_slab_take(&shard->slots);
    return slot;
}

/* An empty slot leaves the index. One of ours may be filled with something else from now on. */
static void retire_slot(ca_shard_t *shard, uint64_t address, ca_slot_t *slot)
{
    uint64_t word = word_of(slot);
    ca_index_remove(&shard->index, address, ca_index_place(address), slot);
    set_word(slot, word & ~(uint64_t)CA_SLOT_INDEXED);
    if (!(word & CA_SLOT_EMBEDDED)) {
        slot->note[0] = (uint64_t)(uintptr_t)shard->spare;
        shard->spare = slot;
    }
}

/* --- the public functions --------------------------------------------------------------------- */

/* A slot of ours, empty by now, unless somebody has filled it again meanwhile. */
static void drop_empty(uint64_t address, ca_slot_t *slot)
{
    ca_shard_t *shard = shard_of(address);
    ca_lock_take(&shard->lock);
    if (ca_index_look(&shard->index, address, ca_index_place(address)) == slot &&
        !(word_of(slot) & CA_SLOT_LIVE))
        retire_slot(shard, address, slot);
    ca_lock_drop(&shard->lock);
}

/* A locked slot is not live any more. */
static inline void take_out(uint64_t address, ca_slot_t *slot, uint64_t word,
                            const ca_record_t *record)
{
    set_word(slot, empty_word(word));
    discount(record);
    if (!(word & CA_SLOT_EMBEDDED))
        drop_empty(address, slot);
}

/* Fills an empty slot. */
static void publish(ca_slot_t *slot, uint64_t flags, const ca_record_t *record)
{
    uint64_t sequence = sequence_of(record);
    account(record);
    fill(slot, record);
    set_word(slot, live_word(sequence, flags));
}

/* Fills a slot that is locked with something else. */
static void republish(ca_slot_t *slot, uint64_t word, const ca_record_t *old,
                      const ca_record_t *record)
{
    uint64_t sequence = sequence_of(record);
    discount(old);
    account(record);
    fill(slot, record);
    set_word(slot, live_word(sequence, word & (CA_SLOT_INDEXED | CA_SLOT_EMBEDDED)));
}

static int insert(const ca_record_t *record, bool replace)
{
    uint64_t address = record->address, place = ca_index_place(address), word;
    ca_shard_t *shard = shard_of(address);
    int result = address ? 0 : -ENOMEM;

    ca_lock_take(&shard->lock);
    ca_slot_t *slot = address ? ca_index_look(&shard->index, address, place) : NULL;
    while (slot && (word = word_of(slot)) & CA_SLOT_LIVE) {
        if (lock_live(slot, &word) != 0)
            continue;
        ca_record_t old;
        copy(slot, address, word, &old);
        if (replace)
            republish(slot, word, &old, record);
        else
            set_word(slot, word);
        result = -EEXIST;
        break;
    }
    if (result == 0) {
        /* An empty one in a block is the block's: the driver gave its memory to somebody else. */
        if (slot && word_of(slot) & CA_SLOT_EMBEDDED) {
            retire_slot(shard, address, slot);
            slot = NULL;
        }
        bool fresh = !slot;
        if (fresh)
            slot = new_slot(shard);
        if (!slot || (fresh && ca_index_set(&shard->index, address, place, slot) != 0)) {
            if (slot) {
                slot->note[0] = (uint64_t)(uintptr_t)shard->spare;
                shard->spare = slot;
            }
            result = -ENOMEM;
        } else {
            slot->address = address;
            publish(slot, CA_SLOT_INDEXED, record);
        }
    }
    ca_lock_drop(&shard->lock);
    return result;
}

int ca_registry_insert(const ca_record_t *record)
{
    return insert(record, true);
}

int ca_registry_insert_new(const ca_record_t *record)
{
    return insert(record, false);
}

/* The index learns of a slot in somebody else's memory. What was at its address is not any more. */
static int enter_index(ca_slot_t *slot, uint64_t address)
{
    uint64_t place = ca_index_place(address), word;
    ca_shard_t *shard = shard_of(address);

    ca_lock_take(&shard->lock);
    ca_slot_t *there = ca_index_look(&shard->index, address, place);
    if (there && there != slot) {
        while (word_of(there) & CA_SLOT_LIVE)
            if (lock_live(there, &word) == 0) {
                ca_record_t old;
                copy(there, address, word, &old);
                set_word(there, empty_word(word));
                discount(&old);
            }
        retire_slot(shard, address, there);
    }
    int result = ca_index_set(&shard->index, address, place, slot);
    ca_lock_drop(&shard->lock);
    return result;
}

/* It was entered for nothing. */
static void leave_index(ca_slot_t *slot, uint64_t address)
{
    ca_shard_t *shard = shard_of(address);
    ca_lock_take(&shard->lock);
    ca_index_remove(&shard->index, address, ca_index_place(address), slot);
    ca_lock_drop(&shard->lock);
}

int ca_registry_insert_at(ca_slot_t *slot, const ca_record_t *record)
{
    uint64_t word = word_of(slot), sequence = sequence_of(record);
    bool entered = false;

    account(record);
    fill(slot, record);
    /* Nobody else fills it; but its memory may end. */
    while (!ca_slot_ended(word)) {
        if (!(word & CA_SLOT_INDEXED) && !entered) {
            if (enter_index(slot, record->address) != 0)
                break;
            entered = true;
        }
        if (atomic_compare_exchange_strong_explicit(
                &slot->word, &word, live_word(sequence, CA_SLOT_INDEXED | CA_SLOT_EMBEDDED),
                memory_order_seq_cst, memory_order_acquire))
            return 0;
    }
    discount(record);
    if (entered)
        leave_index(slot, record->address);
    return ca_slot_ended(word) ? -EIO : -ENOMEM;
}

void ca_registry_forget(ca_slot_t *slot)
{
    ca_shard_t *shard = shard_of(slot->address);
    if (!ca_slot_indexed(slot))
        return;
    ca_lock_take(&shard->lock);
    retire_slot(shard, slot->address, slot);
    ca_lock_drop(&shard->lock);
}

void ca_registry_end(ca_slot_t *slot)
{
    uint64_t word = word_of(slot);

    for (;;) {
        if (word & CA_SLOT_LIVE) {
            if (lock_live(slot, &word) == 0) {
                ca_record_t record;
                copy(slot, slot->address, word, &record);
                set_word(slot, CA_SLOT_ENDED);
                discount(&record);
                break;
            }
            word = word_of(slot);
        } else if (atomic_compare_exchange_strong_explicit(&slot->word, &word, CA_SLOT_ENDED,
                                                           memory_order_acq_rel,
                                                           memory_order_acquire)) {
            break;
        }
    }
    if (word & CA_SLOT_INDEXED)
        leave_index(slot, slot->address);
}

typedef enum { UNSHARED, OWNED, ANY } which_t;

static inline bool take(uint64_t address, ca_record_t *record, which_t which)
{
    uint64_t word;
    ca_slot_t *slot = find_locked(address, &word);
    if (!slot)
        return false;
    copy(slot, address, word, record);
    bool takes = which == ANY || (!record->shared && (which == UNSHARED || record->owner));
    if (takes)
        take_out(address, slot, word, record);
    else
        set_word(slot, word);
    return takes || which == UNSHARED;
}

bool ca_registry_erase(uint64_t address, ca_record_t *record)
{
    return take(address, record, UNSHARED);
}

bool ca_registry_take(uint64_t address, ca_record_t *record)
{
    return take(address, record, ANY);
}

bool ca_registry_take_owned(uint64_t address, ca_record_t *record)
{
    return take(address, record, OWNED);
}

bool ca_registry_replace(const ca_record_t *old, const ca_record_t *fresh)
{
    uint64_t word;
    ca_record_t now;
    ca_slot_t *slot = find_locked(old->address, &word);
    if (!slot)
        return false;
    copy(slot, old->address, word, &now);
    bool same = now.sequence == old->sequence;
    if (same)
        republish(slot, word, &now, fresh);
    else
        set_word(slot, word);
    return same;
}

bool ca_registry_retain(uint64_t address)
{
    uint64_t word;
    ca_slot_t *slot = find_locked(address, &word);
    if (slot) {
        slot->note[1]++; /* record.references */
        set_word(slot, word);
    }
    return slot != NULL;
}

int64_t ca_registry_release(uint64_t address, ca_record_t *record)
{
    uint64_t word;
    ca_slot_t *slot = find_locked(address, &word);
    if (!slot)
        return -1;
    int64_t left = (int64_t)slot->note[1];
    if (left > 0) {
        slot->note[1]--;
        set_word(slot, word);
    } else {
        copy(slot, address, word, record);
        take_out(address, slot, word, record);
    }
    return left;
}

bool ca_registry_find(uint64_t address, ca_record_t *record)
{
    uint64_t word;
    ca_slot_t *slot = find_locked(address, &word);
    if (slot) {
        copy(slot, address, word, record);
        set_word(slot, word);
    }
    return slot != NULL;
}

ca_registry_total_t ca_registry_total(void)
{
    return (ca_registry_total_t){atomic_load_explicit(&live.count, memory_order_relaxed),
                                 atomic_load_explicit(&live.bytes, memory_order_relaxed)};
}

uint64_t ca_registry_sequence(void)
{
    return atomic_load_explicit(&live.sequence, memory_order_relaxed);
}

uint64_t ca_registry_peak_bytes(void)
{
    return atomic_load_explicit(&peak, memory_order_relaxed);
}

/* --- snapshots -------------------------------------------------------------------------------- */

/* Stands before the records, so that the mapping's size need not be told by the caller. */
typedef struct ca_snapshot {
    size_t capacity; /* records */
    _Alignas(ca_record_t) ca_record_t records[];
} ca_snapshot_t;

static size_t snapshot_bytes(size_t capacity)
{
    return sizeof(ca_snapshot_t) + capacity * sizeof(ca_record_t);
}

/* A larger copy of `old` (may be NULL), which goes back in any case. */
static ca_snapshot_t *snapshot_resize(ca_snapshot_t *old, size_t used, size_t capacity)
{
    ca_snapshot_t *snapshot = ca_mem_map(snapshot_bytes(capacity));
    if (snapshot) {
        snapshot->capacity = capacity;
        if (old)
            memcpy(snapshot->records, old->records, used * sizeof(ca_record_t));
    }
    if (old)
        ca_mem_unmap(old, snapshot_bytes(old->capacity));
    return snapshot;
}

static size_t entries_of(const ca_shard_t *shard)
{
    const ca_index_table_t *table =
        atomic_load_explicit(&((ca_shard_t *)shard)->index.table, memory_order_relaxed);
    return table ? table->mask + 1 : 0;
}

static ca_slot_t *entry_of(ca_shard_t *shard, size_t i, uint64_t *address)
{
    ca_index_table_t *table = atomic_load_explicit(&shard->index.table, memory_order_relaxed);
    *address = atomic_load_explicit(&table->entries[i].address, memory_order_relaxed);
    return *address ? atomic_load_explicit(&table->entries[i].slot, memory_order_relaxed) : NULL;
}

/* Copies a shard's records behind the first `*used`; `want` is how many there are at most. -ENOSPC
 * when they do not fit, -EBUSY when the shard, or a slot of it, stays in use. */
static int copy_shard(ca_shard_t *shard, ca_snapshot_t *snapshot, size_t *used, size_t *want)
{
    int result = 0;
    size_t before = *used;
    if (!ca_patience_take(&shard->lock))
        return -EBUSY;
    size_t entries = entries_of(shard);
    *want = shard->index.count;
    for (size_t i = 0; result != -ENOSPC && i < entries; i++) {
        uint64_t address, word;
        ca_record_t record;
        ca_slot_t *slot = entry_of(shard, i, &address);
        int locked = slot ? lock_live(slot, &word) : -ENOENT;
        if (locked == 0) {
            copy(slot, address, word, &record);
            set_word(slot, word);
            if (!counts(&record))
                continue;
            if (*used == snapshot->capacity)
                result = -ENOSPC;
            else
                snapshot->records[(*used)++] = record;
        } else if (locked == -EBUSY) {
            result = -EBUSY;
        }
    }
    ca_lock_drop(&shard->lock);
    if (result == -ENOSPC)
        *used = before;
    return result;
}

int ca_registry_snapshot(ca_record_t **records, size_t *count, unsigned *busy)
{
    size_t used = 0;
    *records = NULL;
    *count = 0;
    *busy = 0;
    /* Slack for what other threads add meanwhile; a shard that does not fit is tried again. */
    ca_snapshot_t *snapshot =
        snapshot_resize(NULL, 0, (size_t)ca_registry_total().count + LEAST_CAPACITY);
    for (size_t s = 0; snapshot && s < SHARDS;) {
        size_t want = 0;
        int result = copy_shard(&shards[s], snapshot, &used, &want);
        *busy += result == -EBUSY;
        if (result == -ENOSPC)
            snapshot = snapshot_resize(snapshot, used, (used + want) * 2);
        else
            s++;
    }
    if (!snapshot)
        return -ENOMEM;
    *records = snapshot->records;
    *count = used;
    return 0;
}

void ca_registry_snapshot_free(ca_record_t *records, size_t count)
{
    (void)count; /* the mapping may be larger */
    if (!records)
        return;
    ca_snapshot_t *snapshot = (ca_snapshot_t *)((char *)records - offsetof(ca_snapshot_t, records));
    ca_mem_unmap(snapshot, snapshot_bytes(snapshot->capacity));
}

/* --- contexts that are gone ------------------------------------------------------------------- */

/* Moves the records of `context` to `kept`, or only removes them where there is none. -ENOSPC when
 * they did not all fit: those that did are gone. */
static int drop_from(ca_shard_t *shard, uint16_t context, ca_snapshot_t *kept,
                     ca_registry_total_t *gone)
{
    size_t used = 0;
    int result = 0;
    ca_lock_take(&shard->lock);
    size_t entries = entries_of(shard);
    /* An entry is looked at again after its record went: another one may have moved in. What a run
     * that wraps moves to the table's end was looked at already, at its start. */
    for (size_t i = 0; i < entries;) {
        uint64_t address, word;
        ca_record_t record;
        ca_slot_t *slot = entry_of(shard, i, &address);
        int locked = slot ? lock_live(slot, &word) : -ENOENT;
        if (locked == 0) {
            copy(slot, address, word, &record);
            if (record.context != context)
                set_word(slot, word);
        }
        if (locked != 0 || record.context != context) {
            i += locked != -EBUSY;
            continue;
        }
        if (counts(&record) && kept && used == kept->capacity) {
            set_word(slot, word);
            result = -ENOSPC;
            break;
        }
        set_word(slot, empty_word(word));
        discount(&record);
        retire_slot(shard, address, slot);
        if (counts(&record)) {
            if (kept)
                kept->records[used++] = record;
            gone->count++;
            gone->bytes += record.bytes;
        }
    }
    ca_lock_drop(&shard->lock);
    return result;
}

ca_registry_total_t ca_registry_drop_context(uint16_t context)
{
    ca_registry_total_t total = {0, 0};
    ca_snapshot_t *kept = snapshot_resize(NULL, 0, KEPT_AT_A_TIME);
    for (size_t s = 0; s < SHARDS;) {
        ca_registry_total_t gone = {0, 0};
        int result = drop_from(&shards[s], context, kept, &gone);
        /* A part at a time and with the lock dropped: what is kept stays small. */
        ca_lost_add(gone, kept ? kept->records : NULL, kept ? gone.count : 0);
        total.count += gone.count;
        total.bytes += gone.bytes;
        s += result == 0;
    }
    if (kept)
        ca_mem_unmap(kept, snapshot_bytes(kept->capacity));
    return total;
}

void ca_registry_reset_after_fork(void)
{
    /* The parent's tables stay mapped: a thread that is not here may have been in the middle of
     * changing them, and the memory lock may not be usable yet. */
    for (size_t s = 0; s < SHARDS; s++) {
        ca_lock_init(&shards[s].lock, CA_RANK_REGISTRY);
        ca_index_reset_after_fork(&shards[s].index);
        shards[s].slots = (ca_slab_t){.object_bytes = shards[s].slots.object_bytes};
        shards[s].spare = NULL;
    }
    atomic_store_explicit(&live.bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&live.count, 0, memory_order_relaxed);
    atomic_store_explicit(&live.sequence, 0, memory_order_relaxed);
    atomic_store_explicit(&peak, 0, memory_order_relaxed);
    ca_lost_reset_after_fork();
}
