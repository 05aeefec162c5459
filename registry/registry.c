/* The table of live allocations.
 *
 * SHARDS independent tables, each with a lock of its own, chosen by the top bits of a hash of the
 * address. A table is open addressing with linear probing and the records inline; an erase shifts
 * the records behind the gap back, so there are no tombstones and a long run of allocations and
 * frees leaves nothing behind. Tables double when 5/8 full and never shrink.
 *
 * Bytes are one process-wide atomic, because the peak is a property of the whole; counts are kept
 * by shard. A record's bytes are added and taken off inside its shard's lock: the addition always
 * comes first, so the total cannot underflow. */
#include "registry/registry.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "config/lock.h"
#include "config/mem.h"
#include "registry/lost.h"
#include "registry/patience.h"

#define SHARDS CA_REGISTRY_SHARDS
#define SHARD_BITS 6
#define LEAST_CAPACITY 64
#define CACHE_LINES 128 /* two lines: the hardware fetches them in pairs */

typedef struct ca_shard {
    _Alignas(CACHE_LINES) ca_lock_t lock;
    ca_record_t *slots;   /* address 0 marks a free one; NULL before the first insert */
    size_t capacity;      /* a power of two, or 0 */
    unsigned shift;       /* a hash without its shard bits, shifted right by this, is a slot */
    _Atomic size_t count; /* written under the lock */
} ca_shard_t;

static ca_shard_t shards[SHARDS] = {
    [0 ... SHARDS - 1] = {.lock = CA_LOCK_INIT(CA_RANK_REGISTRY)},
};

static struct {
    _Alignas(CACHE_LINES) _Atomic uint64_t bytes;
    _Atomic uint64_t sequence;
} live;

/* Apart from `live`: read on every insert, written only while a process grows. */
static _Alignas(CACHE_LINES) _Atomic uint64_t peak;

static _Atomic uint64_t aliases; /* live records that are counted nowhere */

const char *ca_kind_name(ca_kind_t kind)
{
    static const char *const names[] = {
#define CA_KIND(constant, name) name,
        CA_KINDS(CA_KIND)
#undef CA_KIND
    };
    return (unsigned)kind < CA_KIND_COUNT ? names[kind] : "unknown";
}

/* Addresses are multiples of 512 or more and often equally spaced: one multiplication alone maps
 * such rows onto few slots. */
static inline uint64_t hash_address(uint64_t address)
{
    uint64_t hash = address * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    return hash * 0xd6e8feb86659fd93u;
}

static inline ca_shard_t *shard_of(uint64_t hash)
{
    return &shards[hash >> (64 - SHARD_BITS)];
}

static inline size_t home_of(const ca_shard_t *shard, uint64_t hash)
{
    return (size_t)((hash << SHARD_BITS) >> shard->shift);
}

static inline size_t count_of(ca_shard_t *shard)
{
    return atomic_load_explicit(&shard->count, memory_order_relaxed);
}

static inline void set_count(ca_shard_t *shard, size_t count)
{
    atomic_store_explicit(&shard->count, count, memory_order_relaxed);
}

/* Beside add_bytes: the two share a cache line, which threads then pass on once and not twice. */
static inline uint64_t next_sequence(void)
{
    return atomic_fetch_add_explicit(&live.sequence, 1, memory_order_relaxed) + 1;
}

static inline void add_bytes(uint64_t bytes)
{
    uint64_t now = atomic_fetch_add_explicit(&live.bytes, bytes, memory_order_relaxed) + bytes;
    uint64_t most = atomic_load_explicit(&peak, memory_order_relaxed);
    while (now > most && !atomic_compare_exchange_weak_explicit(
                             &peak, &most, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* What leaves the totals with a record. */
static inline void discount(const ca_record_t *record)
{
    atomic_fetch_sub_explicit(&live.bytes, record->bytes, memory_order_relaxed);
    if (__builtin_expect(record->kind == CA_KIND_ALIAS, 0))
        atomic_fetch_sub_explicit(&aliases, 1, memory_order_relaxed);
}

/* What comes with one. */
static inline void account(const ca_record_t *record)
{
    add_bytes(record->bytes);
    if (__builtin_expect(record->kind == CA_KIND_ALIAS, 0))
        atomic_fetch_add_explicit(&aliases, 1, memory_order_relaxed);
}

/* The slot of `address`, or the free slot where it belongs. The table is there and not full. */
static inline ca_record_t *probe(const ca_shard_t *shard, uint64_t address, uint64_t hash)
{
    size_t mask = shard->capacity - 1;
    size_t at = home_of(shard, hash);
    while (shard->slots[at].address != 0 && shard->slots[at].address != address)
        at = (at + 1) & mask;
    return &shard->slots[at];
}

static inline ca_record_t *find_live(const ca_shard_t *shard, uint64_t address, uint64_t hash)
{
    if (!shard->slots)
        return NULL;
    ca_record_t *slot = probe(shard, address, hash);
    return slot->address != 0 ? slot : NULL;
}

/* Frees slot `hole` and moves back each record behind it that could not be found any more. */
static void close_gap(ca_shard_t *shard, size_t hole)
{
    size_t mask = shard->capacity - 1;
    ca_record_t *slots = shard->slots;
    for (size_t at = (hole + 1) & mask; slots[at].address != 0; at = (at + 1) & mask) {
        size_t home = home_of(shard, hash_address(slots[at].address));
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            slots[hole] = slots[at];
            hole = at;
        }
    }
    slots[hole].address = 0;
}

/* Doubles the table. Without memory the old one stays in use. */
static void grow(ca_shard_t *shard)
{
    ca_shard_t bigger = {0};
    bigger.capacity = shard->capacity ? shard->capacity * 2 : LEAST_CAPACITY;
    bigger.shift = (unsigned)__builtin_clzll(bigger.capacity) + 1;
    bigger.slots = ca_mem_map(bigger.capacity * sizeof(ca_record_t));
    if (bigger.slots) {
        for (size_t i = 0; i < shard->capacity; i++) {
            uint64_t address = shard->slots[i].address;
            if (address != 0)
                *probe(&bigger, address, hash_address(address)) = shard->slots[i];
        }
        if (shard->slots)
            ca_mem_unmap(shard->slots, shard->capacity * sizeof(ca_record_t));
        shard->slots = bigger.slots;
        shard->capacity = bigger.capacity;
        shard->shift = bigger.shift;
    }
}

static inline int insert(const ca_record_t *record, bool replace)
{
    uint64_t hash = hash_address(record->address);
    ca_shard_t *shard = shard_of(hash);
    int result = 0;

    ca_lock_take(&shard->lock);
    size_t count = count_of(shard);
    if (count * 8 >= shard->capacity * 5)
        grow(shard);
    if (record->address == 0 || count + 1 >= shard->capacity) { /* one slot must stay free */
        result = -ENOMEM;
    } else {
        ca_record_t *slot = probe(shard, record->address, hash);
        if (slot->address != 0) {
            result = -EEXIST;
            if (replace)
                discount(slot);
        } else {
            set_count(shard, count + 1);
        }
        if (result == 0 || replace) {
            *slot = *record;
            if (slot->sequence == 0)
                slot->sequence = next_sequence();
            account(record);
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

static void take_out(ca_shard_t *shard, ca_record_t *slot, ca_record_t *record)
{
    *record = *slot;
    discount(slot);
    set_count(shard, count_of(shard) - 1);
    close_gap(shard, (size_t)(slot - shard->slots));
}

static inline bool take(uint64_t address, ca_record_t *record, bool shared_too)
{
    uint64_t hash = hash_address(address);
    ca_shard_t *shard = shard_of(hash);

    ca_lock_take(&shard->lock);
    ca_record_t *slot = find_live(shard, address, hash);
    if (slot && (!slot->shared || shared_too))
        take_out(shard, slot, record);
    else if (slot)
        *record = *slot;
    ca_lock_drop(&shard->lock);
    return slot != NULL;
}

bool ca_registry_erase(uint64_t address, ca_record_t *record)
{
    return take(address, record, false);
}

bool ca_registry_take(uint64_t address, ca_record_t *record)
{
    return take(address, record, true);
}

bool ca_registry_take_owned(uint64_t address, ca_record_t *record)
{
    uint64_t hash = hash_address(address);
    ca_shard_t *shard = shard_of(hash);

    ca_lock_take(&shard->lock);
    ca_record_t *slot = find_live(shard, address, hash);
    bool takes = slot && slot->owner && !slot->shared;
    if (takes)
        take_out(shard, slot, record);
    ca_lock_drop(&shard->lock);
    return takes;
}

bool ca_registry_replace(const ca_record_t *old, const ca_record_t *fresh)
{
    uint64_t hash = hash_address(old->address);
    ca_shard_t *shard = shard_of(hash);

    ca_lock_take(&shard->lock);
    ca_record_t *slot = find_live(shard, old->address, hash);
    bool same = slot && slot->sequence == old->sequence;
    if (same) {
        discount(slot);
        *slot = *fresh;
        account(slot);
    }
    ca_lock_drop(&shard->lock);
    return same;
}

bool ca_registry_retain(uint64_t address)
{
    uint64_t hash = hash_address(address);
    ca_shard_t *shard = shard_of(hash);

    ca_lock_take(&shard->lock);
    ca_record_t *slot = find_live(shard, address, hash);
    if (slot)
        slot->references++;
    ca_lock_drop(&shard->lock);
    return slot != NULL;
}

int64_t ca_registry_release(uint64_t address, ca_record_t *record)
{
    uint64_t hash = hash_address(address);
    ca_shard_t *shard = shard_of(hash);
    int64_t left = -1;

    ca_lock_take(&shard->lock);
    ca_record_t *slot = find_live(shard, address, hash);
    if (slot && slot->references > 0)
        left = (int64_t)slot->references--;
    else if (slot) {
        take_out(shard, slot, record);
        left = 0;
    }
    ca_lock_drop(&shard->lock);
    return left;
}

bool ca_registry_find(uint64_t address, ca_record_t *record)
{
    uint64_t hash = hash_address(address);
    ca_shard_t *shard = shard_of(hash);

    ca_lock_take(&shard->lock);
    const ca_record_t *slot = find_live(shard, address, hash);
    if (slot)
        *record = *slot;
    ca_lock_drop(&shard->lock);
    return slot != NULL;
}

ca_registry_total_t ca_registry_total(void)
{
    ca_registry_total_t total = {0, atomic_load_explicit(&live.bytes, memory_order_relaxed)};
    uint64_t names = atomic_load_explicit(&aliases, memory_order_relaxed);
    for (size_t s = 0; s < SHARDS; s++)
        total.count += count_of(&shards[s]);
    /* Not of one moment: other threads may come and go in between. */
    total.count -= names < total.count ? names : total.count;
    return total;
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

/* Copies a shard's records behind the first `*used`; `want` is how many there are, or at least were
 * when they did not fit. -ENOSPC when they do not fit, -EBUSY when the shard stays in use. */
static int copy_shard(ca_shard_t *shard, ca_snapshot_t *snapshot, size_t *used, size_t *want)
{
    if (count_of(shard) == 0)
        return 0;
    if (!ca_patience_take(&shard->lock))
        return -EBUSY;
    *want = count_of(shard);
    bool fits = *want <= snapshot->capacity - *used;
    for (size_t i = 0; fits && i < shard->capacity; i++)
        if (shard->slots[i].address != 0 && shard->slots[i].kind != CA_KIND_ALIAS)
            snapshot->records[(*used)++] = shard->slots[i];
    ca_lock_drop(&shard->lock);
    return fits ? 0 : -ENOSPC;
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

/* Moves the records of `context` to `kept`, or only removes them where there is none. -ENOSPC, with
 * nothing done, when they might not fit. */
static int drop_from(ca_shard_t *shard, uint16_t context, ca_snapshot_t *kept,
                     ca_registry_total_t *gone)
{
    ca_lock_take(&shard->lock);
    bool fits = !kept || count_of(shard) <= kept->capacity;
    /* A slot is looked at again after its record went: another one may have moved in. What a
     * run that wraps moves to the table's end was looked at already, at its start. */
    for (size_t i = 0; fits && i < shard->capacity;) {
        const ca_record_t *slot = &shard->slots[i];
        if (slot->address == 0 || slot->context != context) {
            i++;
            continue;
        }
        if (slot->kind != CA_KIND_ALIAS) {
            if (kept)
                kept->records[gone->count] = *slot;
            gone->count++;
            gone->bytes += slot->bytes;
        }
        discount(slot);
        set_count(shard, count_of(shard) - 1);
        close_gap(shard, i);
    }
    ca_lock_drop(&shard->lock);
    return fits ? 0 : -ENOSPC;
}

ca_registry_total_t ca_registry_drop_context(uint16_t context)
{
    ca_registry_total_t total = {0, 0};
    ca_snapshot_t *kept = snapshot_resize(NULL, 0, LEAST_CAPACITY);
    for (size_t s = 0; s < SHARDS;) {
        ca_registry_total_t gone = {0, 0};
        if (drop_from(&shards[s], context, kept, &gone) == -ENOSPC) {
            kept = snapshot_resize(kept, 0, count_of(&shards[s]) * 2);
            continue;
        }
        /* A shard at a time and with its lock dropped: what is kept stays small. */
        ca_lost_add(gone, kept ? kept->records : NULL, kept ? gone.count : 0);
        total.count += gone.count;
        total.bytes += gone.bytes;
        s++;
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
        shards[s].slots = NULL;
        shards[s].capacity = 0;
        shards[s].shift = 0;
        set_count(&shards[s], 0);
    }
    atomic_store_explicit(&live.bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&live.sequence, 0, memory_order_relaxed);
    atomic_store_explicit(&peak, 0, memory_order_relaxed);
    atomic_store_explicit(&aliases, 0, memory_order_relaxed);
    ca_lost_reset_after_fork();
}
