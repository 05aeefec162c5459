/* Open addressing; half of the buckets stay free, so that a look-up is one or two steps. */
#include "registry/stack/intern.h"

#include <string.h>

#include "base/mem.h"

#define FIRST_CAPACITY 256

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 32) * 0x9e3779b97f4a7c15;
    return value ^ value >> 29;
}

static uint64_t hash(const ca_intern_t *table, const ca_intern_key_t *key)
{
    if (!table->texts)
        return mix(mix(key->a) + key->b);
    uint64_t sum = 0;
    for (const char *at = (const char *)(uintptr_t)key->a; *at != '\0'; at++)
        sum = (sum ^ (unsigned char)*at) * 0x100000001b3;
    return mix(sum);
}

static bool same(const ca_intern_t *table, const ca_intern_key_t *a, const ca_intern_key_t *b)
{
    if (!table->texts)
        return a->a == b->a && a->b == b->b;
    return strcmp((const char *)(uintptr_t)a->a, (const char *)(uintptr_t)b->a) == 0;
}

/* The bucket that has the key, or is free for it. */
static uint32_t *find(const ca_intern_t *table, const ca_intern_key_t *key)
{
    size_t mask = table->capacity - 1;
    for (size_t i = hash(table, key) & mask;; i = (i + 1) & mask) {
        uint32_t *bucket = &table->buckets[i];
        if (*bucket == 0 || same(table, &table->keys[*bucket - 1], key))
            return bucket;
    }
}

static size_t key_bytes(size_t capacity)
{
    return capacity / 2 * sizeof(ca_intern_key_t);
}

static bool grow(ca_intern_t *table)
{
    ca_intern_t larger = *table;
    larger.capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY;
    larger.keys = ca_mem_map(key_bytes(larger.capacity));
    larger.buckets = ca_mem_map(larger.capacity * sizeof *larger.buckets);
    if (!larger.keys || !larger.buckets || larger.capacity > UINT32_MAX) {
        larger.count = 0;
        ca_intern_free(&larger);
        return false;
    }
    if (table->count)
        memcpy(larger.keys, table->keys, table->count * sizeof *table->keys);
    for (size_t i = 0; i < table->count; i++)
        *find(&larger, &larger.keys[i]) = (uint32_t)i + 1;
    ca_intern_free(table);
    *table = larger;
    return true;
}

size_t ca_intern(ca_intern_t *table, uint64_t a, uint64_t b)
{
    ca_intern_key_t key = {a, b};
    uint32_t known = table->capacity ? *find(table, &key) : 0;
    if (known != 0)
        return known - 1;
    bool full = table->capacity == 0 || table->count == table->capacity / 2;
    if (full && !grow(table)) {
        table->failed = true;
        return 0;
    }
    table->keys[table->count] = key;
    *find(table, &key) = (uint32_t)++table->count;
    return table->count - 1;
}

size_t ca_intern_text(ca_intern_t *table, const char *text)
{
    return ca_intern(table, (uintptr_t)text, 0);
}

void ca_intern_free(ca_intern_t *table)
{
    if (table->keys)
        ca_mem_unmap(table->keys, key_bytes(table->capacity));
    if (table->buckets)
        ca_mem_unmap(table->buckets, table->capacity * sizeof *table->buckets);
    table->keys = NULL;
    table->buckets = NULL;
    table->count = table->capacity = 0;
}
