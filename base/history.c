#include "base/history.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

#define WORDS (sizeof(ca_event_t) / sizeof(uint64_t))
#define WRITING UINT64_MAX

/* In words, since one thread may write what another reads: it then drops it. */
typedef struct entry {
    _Atomic uint64_t stamp; /* the number of the event, from 1; 0 where there is none yet */
    _Atomic uint64_t words[WORDS];
} entry_t;

_Static_assert(sizeof(ca_event_t) % sizeof(uint64_t) == 0, "an event is some words");

_Atomic bool ca_history_on;

static entry_t *ring;
static size_t size;
static _Atomic uint64_t claimed;
static uint64_t (*now)(void);

int ca_history_start(size_t events, uint64_t (*clock_ns)(void))
{
    if (events == 0)
        return 0;
    ring = ca_mem_map(events * sizeof *ring);
    if (!ring)
        return -ENOMEM;
    size = events;
    now = clock_ns;
    atomic_store(&ca_history_on, true);
    return 0;
}

void ca_history_add(const ca_event_t *event)
{
    uint64_t number = atomic_fetch_add_explicit(&claimed, 1, memory_order_relaxed) + 1;
    entry_t *entry = &ring[(number - 1) % size];
    ca_event_t timed = *event;
    uint64_t words[WORDS];
    timed.ns = now();
    memcpy(words, &timed, sizeof words);
    /* A thread that is a round of the ring behind may still be writing: then this event is lost. */
    if (atomic_exchange_explicit(&entry->stamp, WRITING, memory_order_acquire) == WRITING)
        return;
    for (size_t i = 0; i < WORDS; i++)
        atomic_store_explicit(&entry->words[i], words[i], memory_order_release);
    atomic_store_explicit(&entry->stamp, number, memory_order_release);
}

size_t ca_history_count(void)
{
    uint64_t all = atomic_load(&claimed);
    return all < size ? (size_t)all : size;
}

/* A thread that is a round of the ring ahead may be writing here: then the stamp has changed. */
static bool copy_one(uint64_t number, ca_event_t *event)
{
    entry_t *entry = &ring[(number - 1) % size];
    if (atomic_load_explicit(&entry->stamp, memory_order_acquire) != number)
        return false;
    uint64_t words[WORDS] = {0};
    for (size_t i = 0; i < WORDS; i++)
        words[i] = atomic_load_explicit(&entry->words[i], memory_order_acquire);
    memcpy(event, words, sizeof words);
    return atomic_load_explicit(&entry->stamp, memory_order_relaxed) == number;
}

size_t ca_history_copy(ca_event_t *events, size_t space, uint64_t *dropped)
{
    uint64_t last = atomic_load(&claimed);
    size_t copied = 0;
    for (uint64_t number = last > space ? last - space + 1 : 1; number <= last && copied < space;
         number++)
        copied += copy_one(number, &events[copied]);
    *dropped = last - copied;
    return copied;
}

void ca_history_reset_after_fork(void)
{
    /* As fresh from mmap: zero. */
    if (ring && madvise(ring, size * sizeof *ring, MADV_DONTNEED) != 0)
        atomic_store(&ca_history_on, false);
    atomic_store(&claimed, 0);
}
