/* Walks over all live allocations: copies for the reports, and what goes with a context. */
#include "registry/table/registry.h"

#include <errno.h>
#include <string.h>

#include "base/lock.h"
#include "base/mem.h"
#include "registry/table/lost.h"
#include "registry/table/table.h"

#define LEAST_CAPACITY 64
#define KEPT_AT_A_TIME 4096 /* records */
#define BUSY_TRIES 20       /* in a snapshot */
#define BUSY_SLEEP_NS 2000000
#define PASSES 4 /* over a stripe that stays in use */

/* --- snapshots -------------------------------------------------------------------------------- */

/* Stands before the records, so that the mapping's size need not come from the caller. */
typedef struct ca_snapshot {
    size_t capacity; /* records */
    _Alignas(ca_allocation_t) ca_allocation_t records[];
} ca_snapshot_t;

static size_t snapshot_bytes(size_t capacity)
{
    return sizeof(ca_snapshot_t) + capacity * sizeof(ca_allocation_t);
}

/* A larger copy of `old` (may be NULL), which goes back in any case. */
static ca_snapshot_t *snapshot_resize(ca_snapshot_t *old, size_t used, size_t capacity)
{
    ca_snapshot_t *snapshot = ca_mem_map(snapshot_bytes(capacity));
    if (snapshot) {
        snapshot->capacity = capacity;
        if (old)
            memcpy(snapshot->records, old->records, used * sizeof(ca_allocation_t));
    }
    if (old)
        ca_mem_unmap(old, snapshot_bytes(old->capacity));
    return snapshot;
}

static size_t entries_of(const ca_stripe_t *stripe)
{
    return ca_index_size(&stripe->index);
}

typedef struct entry {
    uint64_t address, state;
    ca_record_t *record;
    ca_allocation_t allocation;
} entry_t;

/* What is at a place of the index, locked. -ENOENT when nothing is live there, -EBUSY when it stays
 * locked. */
static int lock_entry(ca_stripe_t *stripe, size_t place, entry_t *entry)
{
    entry->record = ca_index_at(&stripe->index, place);
    if (!entry->record)
        return -ENOENT;
    int result = ca_record_lock_live(entry->record, &entry->state);
    if (result == 0) { /* until then it may change its address, where the stripe is not locked */
        entry->address = ca_record_address(entry->record);
        ca_record_copy(entry->record, entry->address, entry->state, &entry->allocation);
    }
    return result;
}

static void unlock_entry(const entry_t *entry)
{
    ca_record_set_state(entry->record, entry->state);
}

/* A thread that was interrupted while moving an entry back left it in two places: in the one
 * behind. */
static bool is_moved(const ca_stripe_t *stripe, size_t entries, size_t place)
{
    const ca_record_t *record = ca_index_at(&stripe->index, place), *other = record;
    for (size_t i = 1; other && i < entries; i++) {
        other = ca_index_at(&stripe->index, (place + entries - i) % entries);
        if (other == record)
            return true;
    }
    return false;
}

/* One pass over a stripe's entries, of which `*want` is set to the number that may be needed. */
static int copy_entries(ca_stripe_t *stripe, bool whole, ca_snapshot_t *snapshot, size_t *used,
                        size_t *want)
{
    int result = whole ? 0 : -EBUSY;
    size_t entries = entries_of(stripe);
    *want = whole ? stripe->index.count : entries;
    for (size_t i = 0; result != -ENOSPC && i < entries; i++) {
        entry_t entry;
        if (!whole && is_moved(stripe, entries, i))
            continue;
        int locked = lock_entry(stripe, i, &entry);
        if (locked == 0)
            unlock_entry(&entry);
        else if (locked == -EBUSY)
            result = -EBUSY;
        if (locked != 0 || !ca_recorder_counts(&entry.allocation))
            continue;
        if (*used == snapshot->capacity)
            result = -ENOSPC;
        else
            snapshot->records[(*used)++] = entry.allocation;
    }
    return result;
}

/* Copies a stripe's records behind the first `*used`; `want` is how many there are at most. -ENOSPC
 * when they do not fit, -EBUSY when the stripe, or a record of it, stays in use: then what could be
 * read there all the same, in a pass in which no entry moved, if one of a few is such. */
static int copy_stripe(ca_stripe_t *stripe, ca_snapshot_t *snapshot, size_t *used, size_t *want)
{
    size_t before = *used;
    bool whole = ca_lock_take_timed(&stripe->lock), moved = true;
    int result = -EBUSY;
    for (unsigned pass = 0; moved && pass < PASSES; pass++) {
        uint64_t version = atomic_load(&stripe->index.version);
        *used = before;
        result = copy_entries(stripe, whole, snapshot, used, want);
        moved = !whole && atomic_load(&stripe->index.version) != version;
    }
    if (whole)
        ca_lock_drop(&stripe->lock);
    if (result == -ENOSPC)
        *used = before;
    return result;
}

/* For a thread that was taken off its core with the stripe, or a record of it, in use. Nothing is
 * locked meanwhile. False when it has been waited for often enough: it may be this very thread. */
static bool wait_for_busy(unsigned *tries)
{
    if ((*tries)++ >= BUSY_TRIES)
        return false;
    ca_sleep(BUSY_SLEEP_NS);
    return true;
}

int ca_registry_snapshot(ca_allocation_t **records, size_t *count, unsigned *busy)
{
    size_t used = 0;
    unsigned waits = 0;
    *records = NULL;
    *count = 0;
    *busy = 0;
    /* Slack for what other threads add meanwhile; a stripe that does not fit is tried again. */
    ca_snapshot_t *snapshot =
        snapshot_resize(NULL, 0, (size_t)ca_registry_total().count + LEAST_CAPACITY);
    for (size_t s = 0; snapshot && s < STRIPES;) {
        size_t want = 0, before = used;
        int result = copy_stripe(&ca_table.stripes[s], snapshot, &used, &want);
        if (result == -EBUSY && wait_for_busy(&waits)) {
            used = before;
            continue;
        }
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

void ca_registry_snapshot_free(ca_allocation_t *records, size_t count)
{
    (void)count; /* the mapping may be larger */
    if (!records)
        return;
    ca_snapshot_t *snapshot = (ca_snapshot_t *)((char *)records - offsetof(ca_snapshot_t, records));
    ca_mem_unmap(snapshot, snapshot_bytes(snapshot->capacity));
}

/* --- totals ----------------------------------------------------------------------------------- */

/* False when the stripe, or a record of it, stays in use. */
static bool count_stripe(ca_stripe_t *stripe,
                         ca_registry_total_t totals[CA_REGISTRY_DEVICES][CA_KIND_COUNT])
{
    entry_t entry;
    int locked = 0;
    if (!ca_lock_take_timed(&stripe->lock))
        return false;
    size_t i, entries = entries_of(stripe);
    for (i = 0; i < entries; i++) {
        locked = lock_entry(stripe, i, &entry);
        if (locked == -EBUSY)
            break;
        if (locked != 0)
            continue;
        unlock_entry(&entry);
        if (!ca_recorder_counts(&entry.allocation))
            continue;
        ca_registry_total_t *total = &totals[entry.allocation.device][entry.allocation.kind];
        total->count++;
        total->bytes += entry.allocation.bytes;
    }
    ca_lock_drop(&stripe->lock);
    return i == entries;
}

bool ca_registry_count(ca_registry_total_t totals[CA_REGISTRY_DEVICES][CA_KIND_COUNT])
{
    bool whole = true;
    for (size_t s = 0; whole && s < STRIPES; s++)
        whole = count_stripe(&ca_table.stripes[s], totals);
    return whole;
}

/* --- contexts that were destroyed ------------------------------------------------------------- */

/* How far a stripe was looked at, and the index's version then: it is still so while that stands.
 */
typedef struct progress {
    size_t place;
    uint64_t version;
} progress_t;

/* Moves the records of `context` to `kept`, or only removes them where there is none. -ENOSPC when
 * they did not all fit: those that did are removed, and the next call goes on behind them. */
static int drop_from(ca_stripe_t *stripe, uint16_t context, ca_snapshot_t *kept,
                     ca_registry_total_t *dropped, progress_t *so_far)
{
    size_t used = 0;
    int result = 0;
    ca_lock_take(&stripe->lock);
    size_t entries = entries_of(stripe), i = 0;
    if (atomic_load(&stripe->index.version) == so_far->version)
        i = so_far->place;
    /* An entry is looked at again after its record went: another one may have moved in. What a run
     * that wraps moves to the table's end was looked at already, at its start. */
    while (i < entries) {
        entry_t entry;
        int locked = lock_entry(stripe, i, &entry);
        bool its_own = locked == 0 && entry.allocation.context == context;
        bool is_kept = its_own && kept && ca_recorder_counts(&entry.allocation);
        bool fits = !is_kept || used < kept->capacity;
        if (locked == 0 && !(its_own && fits))
            unlock_entry(&entry);
        if (!its_own) {
            i += locked != -EBUSY;
            continue;
        }
        if (!fits) {
            result = -ENOSPC;
            break;
        }
        ca_record_set_state(entry.record, ca_record_empty_state(entry.state));
        ca_registry_discount(&entry.allocation);
        ca_stripe_retire_record(stripe, entry.address, entry.record);
        if (is_kept)
            kept->records[used++] = entry.allocation;
        if (ca_recorder_counts(&entry.allocation)) {
            dropped->count++;
            dropped->bytes += entry.allocation.bytes;
        }
    }
    *so_far = (progress_t){i, atomic_load(&stripe->index.version)};
    ca_lock_drop(&stripe->lock);
    return result;
}

ca_registry_total_t ca_registry_drop_context(uint16_t context)
{
    ca_registry_total_t total = {0, 0};
    ca_snapshot_t *kept = snapshot_resize(NULL, 0, KEPT_AT_A_TIME);
    progress_t so_far = {0, 0};
    for (size_t s = 0; s < STRIPES;) {
        ca_registry_total_t dropped = {0, 0};
        int result = drop_from(&ca_table.stripes[s], context, kept, &dropped, &so_far);
        /* A part at a time and with the lock dropped: what is kept stays small. */
        ca_lost_add(dropped, kept ? kept->records : NULL, kept ? dropped.count : 0);
        total.count += dropped.count;
        total.bytes += dropped.bytes;
        if (result == 0) {
            so_far = (progress_t){0, 0};
            s++;
        }
    }
    if (kept)
        ca_mem_unmap(kept, snapshot_bytes(kept->capacity));
    return total;
}
