#include "registry/table/index.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include "base/mem.h"

#define PAGE ((size_t)4096) /* where pages are larger, tables are padded */
/* So much for all tables together is little beside 10,000 blocks, where what each may take begins
 * to count (tests/unit/test_metadata.c). */
#define FREELY ((size_t)80 << 10)

static _Atomic size_t all_bytes; /* of the tables in use */

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

/* A walk over a stripe that stays locked reads its table beside the writer: so do all here. */
static ca_index_table_t *table_of(const ca_index_t *index)
{
    return atomic_load_explicit(&((ca_index_t *)index)->table, memory_order_acquire);
}

static uint64_t entry_at(const ca_index_table_t *table, size_t at)
{
    return atomic_load_explicit(&((ca_index_table_t *)table)->entries[at], memory_order_acquire);
}

static ca_record_t *record_at(const ca_index_table_t *table, size_t at)
{
    return ca_index_record(entry_at(table, at));
}

static void write_entry(ca_index_table_t *table, size_t at, uint64_t entry)
{
    atomic_store_explicit(&table->entries[at], entry, memory_order_release);
}

static size_t table_bytes(const ca_index_table_t *table)
{
    return sizeof *table + (table->size + 1) * sizeof table->entries[0];
}

/* Fills its pages. */
static ca_index_table_t *make_table(size_t bytes)
{
    ca_index_table_t *table = ca_mem_map(bytes);
    if (table)
        table->size = (bytes - sizeof *table) / sizeof table->entries[0] - 1;
    return table;
}

/* Readers may be in it. */
static void discard(ca_index_table_t *table)
{
    int saved = errno;
    (void)madvise(table, table_bytes(table), MADV_DONTNEED);
    errno = saved;
}

/* Where an entry belongs whose place is not further on. */
static size_t home_of(const ca_index_table_t *table, uint64_t entry)
{
    return ca_index_home(table->size, entry & CA_INDEX_TAGS);
}

/* For a record that is not there, and a table that has room. */
static void put(ca_index_table_t *table, uint64_t entry)
{
    size_t at = home_of(table, entry);
    while (entry_at(table, at))
        at = at + 1 < table->size ? at + 1 : 0;
    write_entry(table, at, entry);
}

/* Long searches cost more than room does as long as all tables together are small. */
static bool full(const ca_index_t *index, const ca_index_table_t *table)
{
    return index->count * 4 >= table->size &&
           (index->count * 5 >= table->size * 4 ||
            atomic_load_explicit(&all_bytes, memory_order_relaxed) <= FREELY);
}

/* By half its size, at least by a page. Without memory the old table stays in use. */
static void grow(ca_index_t *index)
{
    ca_index_table_t *old = table_of(index);
    size_t bytes = old ? table_bytes(old) : 0;
    size_t more = bytes > 2 * PAGE ? bytes / 2 / PAGE * PAGE : PAGE;
    ca_index_table_t *bigger = make_table(bytes + more);
    if (!bigger)
        return;
    for (size_t i = 0; old && i < old->size; i++) {
        uint64_t entry = entry_at(old, i);
        if (entry)
            put(bigger, entry);
    }
    atomic_fetch_add_explicit(&all_bytes, more, memory_order_relaxed);
    begin(index);
    atomic_store_explicit(&index->table, bigger, memory_order_release);
    end(index);
    if (old)
        discard(old);
}

ca_record_t *ca_index_get(const ca_index_t *index, uint64_t address, uint64_t hash)
{
    ca_index_table_t *table = table_of(index);
    size_t at;
    return table ? ca_index_seek(table, address, hash, &at) : NULL;
}

size_t ca_index_size(const ca_index_t *index)
{
    const ca_index_table_t *table = table_of(index);
    return table ? table->size : 0;
}

ca_record_t *ca_index_at(const ca_index_t *index, size_t place)
{
    return record_at(table_of(index), place);
}

int ca_index_add(ca_index_t *index, uint64_t hash, ca_record_t *record)
{
    ca_index_table_t *table = table_of(index);
    /* The kernel gives such an address only to a program that asks for it by name. */
    if ((uint64_t)(uintptr_t)record >> CA_MEM_POINTER_BITS)
        return -ENOMEM;
    if (!table || full(index, table))
        grow(index);
    table = table_of(index);
    if (!table || index->count + 1 >= table->size) /* one entry must stay free */
        return -ENOMEM;
    /* No version: a reader finds the record, or not yet. */
    put(table, ca_index_entry(record, ca_index_tag(hash)));
    index->count++;
    return 0;
}

static size_t distance(size_t size, size_t from, size_t to)
{
    return to >= from ? to - from : to + size - from;
}

void ca_index_remove(ca_index_t *index, uint64_t hash, const ca_record_t *record)
{
    ca_index_table_t *table = table_of(index);
    if (!table)
        return;
    uint64_t own = ca_index_entry(record, ca_index_tag(hash));
    size_t size = table->size, hole = home_of(table, own);
    for (uint64_t there; (there = entry_at(table, hole)) != own;
         hole = hole + 1 < size ? hole + 1 : 0)
        if (!there)
            return;
    begin(index);
    /* Moves back each entry behind it that could not be found any more. */
    for (size_t at = hole;;) {
        at = at + 1 < size ? at + 1 : 0;
        uint64_t moved = entry_at(table, at);
        if (!moved)
            break;
        if (distance(size, home_of(table, moved), at) >= distance(size, hole, at)) {
            write_entry(table, hole, moved);
            hole = at;
        }
    }
    write_entry(table, hole, 0);
    index->count--;
    end(index);
}

void ca_index_reset_after_fork(ca_index_t *index)
{
    atomic_store(&all_bytes, 0); /* of the others too */
    atomic_store(&index->table, NULL);
    atomic_store(&index->version, 0);
    index->count = 0;
}
