/* Slots by address: one stripe of the table of live allocations.
 *
 * Open addressing with linear probing. An entry is one word: the slot's pointer, and below it the
 * upper bits of the address's hash as a tag. The tag alone tells where the search for an entry
 * begins, so that none of the slots is looked at where entries move. A search looks into the slots
 * whose tag fits, and believes what they say of their address: it lies beside the word, which
 * a search needs next.
 *
 * Writers hold the stripe's lock. Readers take none: they read a version before and after, which is
 * odd while a writer moves entries, and search again where it changed. What they may meet:
 * - An entry that leaves, moves, or lies in a table that was outgrown: the version tells. So such a
 *   table is never unmapped: its pages are given back, and a thread that still reads it finds
 * nothing there, and then a new version.
 * - A slot that is given another address after the reader saw its entry. Its memory is readable for
 *   good: discarded slots read as zeros, which is no address and not live. A slot changes its
 *   address only after it left the index, thus after the version changed; the address is stored
 *   with release and read with acquire, so a thread that read the new one reads the new version
 * too. While the version stands, an address that was read is the one that the slot is entered for.
 * - A slot that is taken out or filled again between search and use: its user locks it by an
 *   exchange of the word that the search returned, whose sequence number never comes again, and the
 *   address cannot have changed under a word that stayed.
 *
 * For writers the same holds by the lock: a slot in the index keeps its address, and its memory is
 * not discarded (ca_registry_end takes it out first). */
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
    /* A slot and a tag; 0 marks a free one. Behind the last there is one more, always free. */
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

CA_INLINE uint64_t ca_index_entry(const ca_record_t *slot, uint64_t tag)
{
    return (uint64_t)(uintptr_t)slot << (CA_INDEX_TAG - 3) | tag;
}

CA_INLINE ca_record_t *ca_index_record(uint64_t entry)
{
    return (ca_record_t *)(uintptr_t)(entry >> CA_INDEX_TAG << 3);
}

/* The slot of `address`, in the entry `*at`; or NULL, and `*at` is the free one where the search
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
            ca_record_t *slot = ca_index_record(entry);
            if (__builtin_expect(ca_record_address(slot) == address, 1))
                return slot;
        }
        if (++i >= size) {
            if (again) /* there is always a free entry, unless a writer is at work */
                return NULL;
            again = true;
            i = 0;
        }
    }
}

/* The slot of `address`, with its word as it was while it was indexed; or NULL. Takes no lock. */
CA_INLINE ca_record_t *ca_index_find(ca_index_t *index, uint64_t address, uint64_t hash,
                                     uint64_t *word)
{
    for (unsigned tries = 0;; tries++) {
        uint64_t version = atomic_load_explicit(&index->version, memory_order_acquire);
        if (__builtin_expect(version & 1, 0)) { /* a writer moves some entries */
            ca_backoff(tries);
            continue;
        }
        ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_acquire);
        ca_record_t *slot = NULL;
        if (table) {
            size_t at;
            slot = ca_index_seek(table, address, hash, &at);
            if (slot)
                *word = atomic_load_explicit(&slot->word, memory_order_acquire);
        }
        if (atomic_load_explicit(&index->version, memory_order_relaxed) == version)
            return slot;
    }
}

/* The same without a look at the version, for a caller that then locks the slot by that word: it
 * may miss what is there, but what it finds is right once it is locked. The word was read before
 * the address, and its number never comes again: a slot that had the word then and has it still was
 * live all the time, and a live slot keeps its address. */
CA_INLINE ca_record_t *ca_index_find_unlocked(ca_index_t *index, uint64_t address, uint64_t hash,
                                              uint64_t *word)
{
    ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_acquire);
    if (__builtin_expect(!table, 0))
        return NULL;
    uint64_t tag = ca_index_tag(hash);
    for (size_t i = ca_index_home(table->size, tag);; i++) {
        uint64_t entry = atomic_load_explicit(&table->entries[i], memory_order_acquire);
        if (__builtin_expect((entry & CA_INDEX_TAGS) == tag, 1)) {
            ca_record_t *slot = ca_index_record(entry);
            if (__builtin_expect(slot != NULL, 1)) {
                /* Or what it was shifted from stays beside it, in a register that a free lacks. */
                CA_KEEP_IN_REGISTER(slot);
                if (!slot)
                    __builtin_unreachable();
                *word = atomic_load_explicit(&slot->word, memory_order_acquire);
                if (__builtin_expect(ca_record_address(slot) == address, 1))
                    return slot;
            }
        }
        if (entry == 0)
            return NULL;
    }
}

/* Under the stripe's lock. `hash` of each is ca_index_hash's. */

/* The slot that is there, or NULL. */
ca_record_t *ca_index_look(const ca_index_t *index, uint64_t address, uint64_t hash);
/* The slot in a place, or NULL; and how many places there are. */
ca_record_t *ca_index_at(const ca_index_t *index, size_t place);
size_t ca_index_size(const ca_index_t *index);
/* Enters a slot by its address, where none is. 0, or -ENOMEM: nothing has changed. */
int ca_index_add(ca_index_t *index, uint64_t hash, ca_record_t *slot);
/* Takes a slot out, if it is there. */
void ca_index_remove(ca_index_t *index, uint64_t hash, const ca_record_t *slot);

/* Forgets its table, which stays mapped. */
void ca_index_reset_after_fork(ca_index_t *index);

#endif
