#include "registry/index.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include "config/mem.h"

#define LEAST_ENTRIES 64
#define SPINS 200u
#define YIELDS 100u

void ca_index_pause(unsigned tries)
{
    const struct timespec pause = {.tv_nsec = 50000};
    int saved = errno;
    if (tries >= SPINS + YIELDS)
        nanosleep(&pause, NULL);
    else if (tries >= SPINS)
        sched_yield();
    errno = saved;
}

/* Entries move only between these two. */
static void begin(ca_index_t *index)
{
    uint64_t version = atomic_load_explicit(&index->version, memory_order_relaxed);
    atomic_exchange_explicit(&index->version, version + 1, memory_order_acq_rel);
}

static void end(ca_index_t *index)
{
    uint64_t version = atomic_load_explicit(&index->version, memory_order_relaxed);
    atomic_store_explicit(&index->version, version + 1, memory_order_release);
}

static uint64_t address_at(const ca_index_entry_t *entry)
{
    return atomic_load_explicit(&entry->address, memory_order_relaxed);
}

static ca_slot_t *slot_at(const ca_index_entry_t *entry)
{
    return atomic_load_explicit(&entry->slot, memory_order_relaxed);
}

/* A search for the address ends where it is found: the slot is there first. */
static void write_entry(ca_index_entry_t *entry, uint64_t address, ca_slot_t *slot)
{
    atomic_store_explicit(&entry->slot, slot, memory_order_release);
    atomic_store_explicit(&entry->address, address, memory_order_release);
}

static ca_index_table_t *make_table(size_t entries)
{
    size_t bytes = sizeof(ca_index_table_t) + entries * sizeof(ca_index_entry_t);
    ca_index_table_t *table = ca_mem_map(bytes);
    if (table) {
        table->mask = entries - 1;
        table->shift = 64u - (unsigned)__builtin_ctzll(entries);
        table->bytes = bytes;
    }
    return table;
}

/* Readers may be in it. */
static void discard(ca_index_table_t *table)
{
    int saved = errno;
    (void)madvise(table, table->bytes, MADV_DONTNEED);
    errno = saved;
}

/* Doubles the table. Without memory the old one stays in use. */
static void grow(ca_index_t *index)
{
    ca_index_table_t *old = atomic_load_explicit(&index->table, memory_order_relaxed);
    ca_index_table_t *bigger = make_table(old ? 2 * (old->mask + 1) : LEAST_ENTRIES);
    if (!bigger)
        return;
    for (size_t i = 0; old && i <= old->mask; i++) {
        uint64_t address = address_at(&old->entries[i]);
        if (address)
            write_entry(ca_index_probe(bigger, address, ca_index_place(address)), address,
                        slot_at(&old->entries[i]));
    }
    begin(index);
    atomic_store_explicit(&index->table, bigger, memory_order_release);
    end(index);
    if (old)
        discard(old);
}

ca_slot_t *ca_index_look(ca_index_t *index, uint64_t address, uint64_t hash)
{
    ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_relaxed);
    if (!table)
        return NULL;
    ca_index_entry_t *entry = ca_index_probe(table, address, hash);
    return address_at(entry) == address ? slot_at(entry) : NULL;
}

int ca_index_set(ca_index_t *index, uint64_t address, uint64_t hash, ca_slot_t *slot)
{
    ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_relaxed);
    if (!table || index->count * 8 >= (table->mask + 1) * 5)
        grow(index);
    table = atomic_load_explicit(&index->table, memory_order_relaxed);
    if (!table || index->count >= table->mask) /* one entry must stay free */
        return -ENOMEM;
    ca_index_entry_t *entry = ca_index_probe(table, address, hash);
    index->count += address_at(entry) != address;
    /* No version: a reader finds the old slot, the new one, or none, and each was right. */
    write_entry(entry, address, slot);
    return 0;
}

void ca_index_remove(ca_index_t *index, uint64_t address, uint64_t hash, const ca_slot_t *slot)
{
    ca_index_table_t *table = atomic_load_explicit(&index->table, memory_order_relaxed);
    ca_index_entry_t *entry = table ? ca_index_probe(table, address, hash) : NULL;
    if (!entry || address_at(entry) != address || slot_at(entry) != slot)
        return;
    begin(index);
    /* Moves back each entry behind it that could not be found any more. */
    size_t mask = table->mask, hole = (size_t)(entry - table->entries);
    for (size_t at = (hole + 1) & mask; address_at(&table->entries[at]); at = (at + 1) & mask) {
        uint64_t moved = address_at(&table->entries[at]);
        size_t home = (size_t)(ca_index_place(moved) >> table->shift) & mask;
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            write_entry(&table->entries[hole], moved, slot_at(&table->entries[at]));
            hole = at;
        }
    }
    atomic_store_explicit(&table->entries[hole].address, 0, memory_order_release);
    index->count--;
    end(index);
}

void ca_index_reset_after_fork(ca_index_t *index)
{
    atomic_store(&index->table, NULL);
    atomic_store(&index->version, 0);
    index->count = 0;
}
