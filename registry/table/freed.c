/* Each place has a version: twice the number of what is in it, odd while that is being written. A
 * reader believes what it copied where the version is the one expected, before and after. A writer
 * that finds a place in the hands of another, which was overtaken by a round of the ring, leaves
 * it: one record less is known. */
#include "registry/table/freed.h"

#include <stdatomic.h>
#include <string.h>

#define WORDS (sizeof(ca_freed_t) / sizeof(uint64_t))

typedef struct place {
    _Atomic uint64_t version;
    _Atomic uint64_t words[WORDS];
} place_t;

_Static_assert(sizeof(ca_freed_t) == sizeof(ca_allocation_t) + sizeof(uint64_t) &&
                   sizeof(ca_allocation_t) % sizeof(uint64_t) == 0,
               "copied by the word, the last one after the record");
_Static_assert(sizeof(place_t) == 64, "a place is a cache line");

/* Pages that are never written take no memory. */
static place_t ring[CA_FREED_MOST];
static _Atomic uint64_t noted; /* from 0; the next one's number */
static unsigned kept = CA_FREED_FEW;

void ca_freed_keep(unsigned records)
{
    kept = records < CA_FREED_MOST ? records : CA_FREED_MOST;
}

static uint64_t version_of(uint64_t number)
{
    return 2 * (number + 1);
}

void ca_freed_note(const ca_allocation_t *record, uint32_t stack, uint32_t thread)
{
    const uint64_t whose = stack | (uint64_t)thread << 32;
    uint64_t number = atomic_fetch_add_explicit(&noted, 1, memory_order_relaxed);
    place_t *place = &ring[number % kept];
    uint64_t version = atomic_load_explicit(&place->version, memory_order_relaxed);
    if (version % 2 != 0 || version > version_of(number) ||
        !atomic_compare_exchange_strong_explicit(&place->version, &version, version_of(number) - 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return;
        /* Release: a thread that reads one sees the odd version too. */
#pragma GCC unroll 8
    for (size_t i = 0; i < WORDS - 1; i++) {
        uint64_t word;
        memcpy(&word, (const char *)record + i * sizeof word, sizeof word);
        atomic_store_explicit(&place->words[i], word, memory_order_release);
    }
    atomic_store_explicit(&place->words[WORDS - 1], whose, memory_order_release);
    atomic_store_explicit(&place->version, version_of(number), memory_order_release);
}

/* Copies what is there under this number. */
static bool copy(uint64_t number, ca_freed_t *freed)
{
    place_t *place = &ring[number % kept];
    uint64_t words[WORDS];
    if (atomic_load_explicit(&place->version, memory_order_acquire) != version_of(number))
        return false;
    for (size_t i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&place->words[i], memory_order_acquire);
    if (atomic_load_explicit(&place->version, memory_order_relaxed) != version_of(number))
        return false;
    memcpy(freed, words, sizeof *freed);
    return true;
}

bool ca_freed_find(uint64_t address, ca_freed_t *freed)
{
    uint64_t end = atomic_load_explicit(&noted, memory_order_acquire);
    uint64_t oldest = end > kept ? end - kept : 0;
    for (uint64_t number = end; number-- > oldest;)
        if (copy(number, freed) && address - freed->record.address < freed->record.bytes)
            return true;
    return false;
}

void ca_freed_reset_after_fork(void)
{
    uint64_t count = atomic_exchange(&noted, 0);
    for (size_t i = 0; i < count && i < CA_FREED_MOST; i++)
        atomic_store_explicit(&ring[i].version, 0, memory_order_relaxed);
}
