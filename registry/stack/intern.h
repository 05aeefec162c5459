/* Numbers for things that are written once and then referred to: strings, frames, functions.
 *
 * A hash table in mapped memory. Not thread-safe. */
#ifndef CA_REGISTRY_STACK_INTERN_H
#define CA_REGISTRY_STACK_INTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ca_intern_key {
    uint64_t a, b;
} ca_intern_key_t;

/* All zero is an empty one. */
typedef struct ca_intern {
    bool texts;            /* keys' `a` are strings, the same where their characters are */
    bool failed;           /* there was no memory for one */
    ca_intern_key_t *keys; /* by number; strings belong to the caller */
    uint32_t *buckets;     /* number + 1 of a key, 0: free */
    size_t count;
    size_t capacity; /* buckets; a power of two, or 0. Keys have half of it */
} ca_intern_t;

/* The number of a key, counted from 0 in the order in which they first come. 0 without memory for
 * a new one, and `failed` says so. */
size_t ca_intern(ca_intern_t *table, uint64_t a, uint64_t b);
size_t ca_intern_text(ca_intern_t *table, const char *text);

/* Gives the memory back. */
void ca_intern_free(ca_intern_t *table);

#endif
