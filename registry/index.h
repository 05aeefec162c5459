/* Slots by address: one shard of the table of live allocations.
 *
 * Open addressing with linear probing; an entry is an address and a pointer, so that a search
 * touches nothing but the table. Writers hold the shard's lock. Readers take none: they read a
 * version before and after, which is odd while a writer moves entries, and search again where it
 * changed. So a table that was outgrown is never unmapped: its pages are given back, and whoever
 * still reads it finds nothing there, and then a new version. */
#ifndef CA_REGISTRY_INDEX_H
#define CA_REGISTRY_INDEX_H

#include <stddef.h>
#include "config/inline.h"
#include "config/lock.h"
#include "config/slot.h"

typedef struct ca_index_entry {
    _Atomic uint64_t address; /* 0 marks a free one */
    ca_slot_t *_Atomic slot;
} ca_index_entry_t;

typedef struct ca_index_table {
    size_t mask;    /* entries - 1: a power of two less one */
    unsigned shift; /* a hash, shifted right by this, is a place */
    size_t bytes;
    ca_index_entry_t entries[];
} ca_index_table_t;

typedef struct ca_index {
    _Atomic uint64_t version;
    ca_index_table_t *_Atomic table; /* NULL before the first insert */
    size_t count;                    /* under the lock */
} ca_index_t;

/* Addresses are multiples of 512 or more and often equally spaced: one multiplication alone maps
 * such rows onto few places. */
CA_INLINE uint64_t ca_index_hash(uint64_t address)
{
    uint64_t hash = address * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    return hash * 0xd6e8feb86659fd93u;
}

#define CA_INDEX_SHARD_BITS 6

/* The hash without the bits that choose a shard. */
CA_INLINE uint64_t ca_index_place(uint64_t address)
{
    return ca_index_hash(address) << CA_INDEX_SHARD_BITS;
}

/* The entry of `address` or the free one where the search ends. */
CA_INLINE ca_index_entry_t *ca_index_probe(ca_index_table_t *table, uint64_t address, uint64_t hash)
{
    size_t mask = table->mask;
    for (size_t at = (size_t)(hash >> table->shift) & mask, tries = 0;; at = (at + 1) & mask) {
        ca_index_entry_t *entry = &table->entries[at];
        uint64_t found = atomic_load_explicit(&entry->address, memory_order_acquire);
        /* There is always a free entry, unless a writer is at work. */
        if (found == address || found == 0 || tries++ > mask)
            return entry;
    }
}

/* For the nth look at what another thread is changing: it needs the processor, then, as it may be
 * of lower priority, some time. */
void ca_index_pause(unsigned tries);

/* The slot of `address`, with its word as it was while it was indexed; or NULL. Takes no lock. */
CA_INLINE ca_slot_t *ca_index_find(ca_index_t *index, uint64_t address, uint64_t hash,
                                   uint64_t *word)
{
    for (unsigned tries = 0;; tries++) {
        uint64_t version = atomic_load_explicit(&index->version, memory_order_acquire);
        if (__builtin_expect(version & 1, 0)) { /* a writer moves some entries */
            ca_index_pause(tries);
            continue;
        }
        ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_acquire);
        ca_slot_t *slot = NULL;
        if (table) {
            ca_index_entry_t *entry = ca_index_probe(table, address, hash);
            /* Of another address if a writer is at work: then the version tells. */
            slot = atomic_load_explicit(&entry->slot, memory_order_acquire);
            if (atomic_load_explicit(&entry->address, memory_order_acquire) != address)
                slot = NULL;
            else if (slot)
                *word = atomic_load_explicit(&slot->word, memory_order_acquire);
        }
        if (atomic_load_explicit(&index->version, memory_order_relaxed) == version)
            return slot;
    }
}

/* Under the shard's lock. `hash` of each is ca_index_place's. */

/* The slot that is there, or NULL. */
ca_slot_t *ca_index_look(ca_index_t *index, uint64_t address, uint64_t hash);
/* Sets the slot of an address. 0, or -ENOMEM: nothing has changed. */
int ca_index_set(ca_index_t *index, uint64_t address, uint64_t hash, ca_slot_t *slot);
/* Takes an address out, if it leads to `slot`. */
void ca_index_remove(ca_index_t *index, uint64_t address, uint64_t hash, const ca_slot_t *slot);

/* Forgets its table, which stays mapped. */
void ca_index_reset_after_fork(ca_index_t *index);

#endif
