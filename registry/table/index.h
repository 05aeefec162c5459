/* Records by address: one stripe of the table of live allocations.
 *
 * Open addressing with linear probing. An entry is one word: the record's pointer, and below it the
 * upper bits of the address's hash as a tag. The tag alone tells where the search for an entry
 * begins, so that no record is read where entries move. A search reads the records whose tag fits,
 * and believes what they say of their address: it lies beside the state word, which a search needs
 * next.
 *
 * Writers hold the stripe's lock. Readers take none: they read a version before and after, which is
 * odd while a writer moves entries, and search again where it changed. What they may meet:
 * - An entry that leaves, moves, or lies in a table that was outgrown: the version shows it. So
 * such a table is never unmapped: its pages are returned, and a thread that still reads it finds
 *   nothing there, and then a new version.
 * - A record that is given another address after the reader saw its entry. Its memory is readable
 * for good: discarded records read as zeros, which is no address and not live. A record changes its
 *   address only after it left the index, thus after the version changed; the address is stored
 *   with release and read with acquire, so a thread that read the new one reads the new version
 * too. While the version stands, an address that was read is the one that the record is entered
 * for.
 * - A record that is taken out or filled again between search and use: its user locks it by an
 *   exchange of the state that the search returned, whose sequence number never comes again, and
 * the address cannot have changed under a state that stayed.
 *
 * For writers the same holds by the lock: a record in the index keeps its address, and its memory
 * is not discarded (ca_registry_end takes it out first). */
#ifndef CA_REGISTRY_TABLE_INDEX_H
#define CA_REGISTRY_TABLE_INDEX_H

#include <stddef.h>
#include "base/inline.h"
#include "base/lock.h"
#include "base/record.h"

/* Bits of a tag. The others are all that a pointer to our memory has, which is a multiple of 8.
 * Where a stripe has more entries than there are tags, of one thread some million, searches begin
 * at some of its places only, and grow longer. */
#define CA_INDEX_TAG 19

/* Of the processor's caches: what every search reads shares none with what others write. */
#define CA_INDEX_LINE 64

typedef struct ca_index_table {
    size_t size; /* of `entries`; 0 where it was outgrown */
    /* A record and a tag; 0 marks a free one. Behind the last there is one more, always free. */
    _Alignas(CA_INDEX_LINE) _Atomic uint64_t entries[];
} ca_index_table_t;

typedef struct ca_index {
    _Atomic uint64_t version;
    size_t count;                                            /* under the lock */
    _Alignas(CA_INDEX_LINE) ca_index_table_t *_Atomic table; /* NULL before the first insert */
} ca_index_t;

/* Addresses are multiples of 512 or more and often equally spaced: one multiplication alone maps
 * such rows onto few places. */
CA_INLINE uint64_t ca_index_hash(uint64_t address)
{
    return __builtin_bswap64(address * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
}

CA_INLINE uint64_t ca_index_tag(uint64_t hash)
{
    return hash >> (64 - CA_INDEX_TAG);
}

/* Where the search for a tag begins. */
CA_INLINE size_t ca_index_home(size_t size, uint64_t tag)
{
    return tag * size >> CA_INDEX_TAG;
}

#define CA_INDEX_TAGS (((uint64_t)1 << CA_INDEX_TAG) - 1) /* the bits of an entry that are one */

CA_INLINE uint64_t ca_index_entry(const ca_record_t *record, uint64_t tag)
{
    return (uint64_t)(uintptr_t)record << (CA_INDEX_TAG - 3) | tag;
}

CA_INLINE ca_record_t *ca_index_record(uint64_t entry)
{
    return (ca_record_t *)(uintptr_t)(entry >> CA_INDEX_TAG << 3);
}

/* The record of `address`, in the entry `*at`; or NULL, and `*at` is the free one where the search
 * ended. */
CA_INLINE ca_record_t *ca_index_seek(ca_index_table_t *table, uint64_t address, uint64_t hash,
                                     size_t *at)
{
    uint64_t tag = ca_index_tag(hash);
    size_t size = table->size, i = ca_index_home(size, tag);
    for (bool again = false;;) {
        uint64_t entry = atomic_load_explicit(&table->entries[i], memory_order_acquire);
        *at = i;
        if (entry == 0)
            return NULL;
        if ((entry & CA_INDEX_TAGS) == tag) {
            ca_record_t *record = ca_index_record(entry);
            if (__builtin_expect(ca_record_address(record) == address, 1))
                return record;
        }
        if (++i >= size) {
            if (again) /* there is always a free entry, unless a writer is at work */
                return NULL;
            again = true;
            i = 0;
        }
    }
}

/* The record of `address`, with its state while it was indexed; or NULL. Takes no lock. */
CA_INLINE ca_record_t *ca_index_find(ca_index_t *index, uint64_t address, uint64_t hash,
                                     uint64_t *state)
{
    for (unsigned tries = 0;; tries++) {
        uint64_t version = atomic_load_explicit(&index->version, memory_order_acquire);
        if (__builtin_expect(version & 1, 0)) { /* a writer moves some entries */
            ca_backoff(tries);
            continue;
        }
        ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_acquire);
        ca_record_t *record = NULL;
        if (table) {
            size_t at;
            record = ca_index_seek(table, address, hash, &at);
            if (record)
                *state = atomic_load_explicit(&record->state, memory_order_acquire);
        }
        if (atomic_load_explicit(&index->version, memory_order_relaxed) == version)
            return record;
    }
}

/* The same without a check of the version, for a caller that then locks the record by that state:
 * it may miss what is there, but what it finds is right once it is locked. The state was read
 * before the address, and its number never comes again: a record that had the state then and has it
 * still was live all the time, and a live record keeps its address. */
CA_INLINE ca_record_t *ca_index_find_unlocked(ca_index_t *index, uint64_t address, uint64_t hash,
                                              uint64_t *state)
{
    ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_acquire);
    if (__builtin_expect(!table, 0))
        return NULL;
    uint64_t tag = ca_index_tag(hash);
    for (size_t i = ca_index_home(table->size, tag);; i++) {
        uint64_t entry = atomic_load_explicit(&table->entries[i], memory_order_acquire);
        if (__builtin_expect((entry & CA_INDEX_TAGS) == tag, 1)) {
            ca_record_t *record = ca_index_record(entry);
            if (__builtin_expect(record != NULL, 1)) {
                /* Or what it was shifted from stays beside it, in a register that a free lacks. */
                CA_KEEP_IN_REGISTER(record);
                if (!record)
                    __builtin_unreachable();
                *state = atomic_load_explicit(&record->state, memory_order_acquire);
                if (__builtin_expect(ca_record_address(record) == address, 1))
                    return record;
            }
        }
        if (entry == 0)
            return NULL;
    }
}

/* Under the stripe's lock. `hash` of each is ca_index_hash's. */

/* The record that is there, or NULL. */
ca_record_t *ca_index_get(const ca_index_t *index, uint64_t address, uint64_t hash);
/* The record in a place, or NULL; and how many places there are. */
ca_record_t *ca_index_at(const ca_index_t *index, size_t place);
size_t ca_index_size(const ca_index_t *index);
/* Enters a record by its address, where none is. 0, or -ENOMEM: nothing has changed. */
int ca_index_add(ca_index_t *index, uint64_t hash, ca_record_t *record);
/* Takes a record out, if it is there. */
void ca_index_remove(ca_index_t *index, uint64_t hash, const ca_record_t *record);

/* Forgets its table, which stays mapped. */
void ca_index_reset_after_fork(ca_index_t *index);

#endif
