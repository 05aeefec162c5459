/* See seen.h. */
#include "shim/cuda/seen.h"

#if CA_DEBUG
#include <stdatomic.h>
#include <string.h>

enum { TABLES = 256 };

static ca_seen_t *_Atomic wrappers; /* that were called once */
static CUuuid asked[TABLES];
static _Atomic size_t asked_count;

void ca_seen_call(ca_seen_t *wrapper)
{
    if (atomic_fetch_add(&wrapper->calls, 1))
        return;
    wrapper->next = atomic_load(&wrappers);
    while (!atomic_compare_exchange_weak(&wrappers, &wrapper->next, wrapper)) {
    }
}

unsigned long cachealloc_seen(const char *begins)
{
    unsigned long calls = 0;
    for (ca_seen_t *one = atomic_load(&wrappers); one; one = one->next)
        if (strncmp(one->symbol, begins, strlen(begins)) == 0)
            calls += atomic_load(&one->calls);
    return calls;
}

void ca_seen_table(const CUuuid *id)
{
    if (!id)
        return;
    size_t i = atomic_fetch_add(&asked_count, 1);
    if (i < TABLES)
        asked[i] = *id;
}

size_t cachealloc_seen_tables(CUuuid *tables, size_t most)
{
    size_t count = atomic_load(&asked_count);
    size_t kept = count < TABLES ? count : TABLES;
    memcpy(tables, asked, (kept < most ? kept : most) * sizeof *tables);
    return count;
}
#endif
