/* See mappings.h. Mappings lie in an array that is sorted by address: there are thousands at most,
 * most are added behind the last one, and the driver takes longer for each. */
#include "shim/driver/mappings.h"
#include <stdbool.h>
#include <string.h>
#include "base/lock.h"
#include "base/mem.h"

#define BUCKETS 256u

typedef struct memory {
    uint64_t key;   /* of its allocation record */
    uint64_t spare; /* a key of this module's, which no other memory has */
    size_t mappings;
    bool released; /* the record has the key `spare`, and no bucket has this entry */
    struct memory *next;
} memory_t;

typedef struct mapping {
    uint64_t address;
    size_t bytes;
    memory_t *memory;
} mapping_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(memory_t)};
static memory_t *buckets[BUCKETS];
static mapping_t *mappings; /* under the lock, like everything here */
static size_t count, capacity;
static uint64_t last_number;

static memory_t **bucket_of(uint64_t key)
{
    return &buckets[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (BUCKETS - 1)];
}

static memory_t *find(uint64_t key)
{
    memory_t *memory = *bucket_of(key);
    while (memory && memory->key != key)
        memory = memory->next;
    return memory;
}

static void link_in(memory_t *memory, uint64_t key)
{
    memory_t **bucket = bucket_of(key);
    memory->key = key;
    memory->next = *bucket;
    *bucket = memory;
}

static void link_out(memory_t *memory)
{
    memory_t **at = bucket_of(memory->key);
    while (*at != memory)
        at = &(*at)->next;
    *at = memory->next;
}

/* The index of the first mapping that does not end at or before the address. */
static size_t position(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (mappings[middle].address + mappings[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool ensure_capacity(void)
{
    size_t more = capacity ? 2 * capacity : 128;
    if (count < capacity)
        return true;
    mapping_t *fresh = ca_mem_map(more * sizeof *fresh);
    if (!fresh)
        return false;
    if (count)
        memcpy(fresh, mappings, count * sizeof *fresh);
    ca_mem_unmap(mappings, capacity * sizeof *mappings);
    mappings = fresh;
    capacity = more;
    return true;
}

static memory_t *memory_of(uint64_t key)
{
    memory_t *memory = find(key);
    if (memory || !(memory = ca_slab_take(&slab)))
        return memory;
    *memory = (memory_t){.spare = ca_registry_key(CA_KIND_ALIAS, ++last_number)};
    link_in(memory, key);
    return memory;
}

void ca_mappings_add(uint64_t address, size_t bytes, uint64_t key)
{
    ca_allocation_t record;
    if (!ca_registry_find(key, &record))
        return;
    ca_lock_take(&lock);
    memory_t *memory = ensure_capacity() ? memory_of(key) : NULL;
    if (memory) {
        size_t at = position(address);
        memmove(&mappings[at + 1], &mappings[at], (count - at) * sizeof *mappings);
        mappings[at] = (mapping_t){address, bytes, memory};
        memory->mappings++;
        count++;
    }
    ca_lock_drop(&lock);
}

/* Removes one mapping from the range. False where there is none; `*key` is that of a record to
 * erase, or 0. */
static bool remove_one(uint64_t address, size_t bytes, uint64_t *key)
{
    *key = 0;
    ca_lock_take(&lock);
    size_t at = position(address);
    bool found = at < count && mappings[at].address - address < bytes;
    if (found) {
        memory_t *memory = mappings[at].memory;
        memmove(&mappings[at], &mappings[at + 1], (--count - at) * sizeof *mappings);
        if (--memory->mappings == 0) {
            *key = memory->released ? memory->spare : 0;
            if (!memory->released)
                link_out(memory);
            ca_slab_give(&slab, memory);
        }
    }
    ca_lock_drop(&lock);
    return found;
}

void ca_mappings_remove(uint64_t address, size_t bytes)
{
    ca_allocation_t record;
    uint64_t key;
    while (remove_one(address, bytes, &key))
        if (key)
            (void)ca_registry_erase(key, &record);
}

static uint64_t spare_of(uint64_t key)
{
    ca_lock_take(&lock);
    const memory_t *memory = find(key);
    uint64_t spare = memory ? memory->spare : 0;
    ca_lock_drop(&lock);
    return spare;
}

/* False where the memory was unmapped meanwhile. */
static bool release(uint64_t key, uint64_t spare)
{
    ca_lock_take(&lock);
    memory_t *memory = find(key);
    bool mapped = memory && memory->spare == spare;
    if (mapped) {
        link_out(memory);
        memory->released = true;
    }
    ca_lock_drop(&lock);
    return mapped;
}

/* The record comes first: a thread that unmaps the memory then finds it. */
uint64_t ca_mappings_keep(const ca_allocation_t *record)
{
    ca_allocation_t kept = *record;
    kept.address = spare_of(record->address);
    if (!kept.address || ca_registry_insert(&kept) != 0)
        return 0;
    if (release(record->address, kept.address))
        return kept.address;
    (void)ca_registry_erase(kept.address, &kept);
    return 0;
}

/* The memory has a handle again. */
static void reopen(memory_t *memory, uint64_t key)
{
    memory->released = false;
    link_in(memory, key);
}

static void move(uint64_t spare, uint64_t key)
{
    ca_allocation_t record;
    if (!ca_registry_erase(spare, &record))
        return;
    record.address = key;
    record.references = 0;
    (void)ca_registry_insert(&record);
}

void ca_mappings_restore(uint64_t kept, uint64_t key)
{
    memory_t *memory = NULL;
    ca_lock_take(&lock);
    for (size_t i = 0; i < count && !memory; i++)
        if (mappings[i].memory->spare == kept && mappings[i].memory->released)
            reopen(memory = mappings[i].memory, key);
    ca_lock_drop(&lock);
    move(kept, key);
}

void ca_mappings_retain(uint64_t address, uint64_t key)
{
    uint64_t spare = 0;
    ca_lock_take(&lock);
    size_t at = position(address);
    if (at < count && mappings[at].address <= address && mappings[at].memory->released) {
        spare = mappings[at].memory->spare;
        reopen(mappings[at].memory, key);
    }
    ca_lock_drop(&lock);
    if (spare)
        move(spare, key);
    else
        ca_registry_retain(key);
}

/* The parent's array stays allocated, for the reason in registry.c. */
void ca_mappings_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = sizeof(memory_t)};
    memset(buckets, 0, sizeof buckets);
    mappings = NULL;
    count = capacity = 0;
}
