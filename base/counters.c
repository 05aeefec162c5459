#include "base/counters.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include "base/lock.h"
#include "base/mem.h"
#include "base/thread_state.h"

#define COUNTS_BYTES                                                                               \
    ((sizeof(ca_thread_counts_t) + 128 + 15) / 16 * 16) /* no pair of lines in common */

_Alignas(128) ca_thread_counts_t ca_thread_counts_common;
_Thread_local ca_thread_counts_t *ca_thread_counts;
_Atomic unsigned ca_thread_counts_count;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_MEMORY);
static ca_slab_t slab = {.object_bytes = COUNTS_BYTES};
static ca_thread_counts_t *left; /* of threads that ended; under the lock, as is the key */
static ca_thread_counts_t *_Atomic all;
static pthread_key_t thread_end;
static enum { KEY_NONE, KEY_MADE, KEY_REFUSED } key;

/* The thread's other destructors may still come to us: they count in the common one, or get
 * another, which is left like this one. */
static void leave(void *unused)
{
    ca_thread_counts_t *counts = ca_thread_counts;
    (void)unused;
    ca_thread_counts = NULL;
    ca_thread_forget();
    if (!counts)
        return;
    ca_lock_take(&lock);
    counts->next_left = left;
    left = counts;
    ca_lock_drop(&lock);
    atomic_fetch_sub_explicit(&ca_thread_counts_count, 1, memory_order_relaxed);
}

void ca_thread_counts_join(void)
{
    if (ca_thread_counts)
        return;
    ca_lock_take(&lock);
    if (key == KEY_NONE)
        key = pthread_key_create(&thread_end, leave) == 0 ? KEY_MADE : KEY_REFUSED;
    bool made = key == KEY_MADE;
    ca_lock_drop(&lock);
    if (!made || pthread_setspecific(thread_end, &slab) != 0) /* any value but NULL */
        return;
    ca_lock_take(&lock);
    ca_thread_counts_t *counts = left;
    if (counts) {
        left = counts->next_left;
    } else if ((counts = ca_slab_take(&slab))) {
        counts->next = atomic_load_explicit(&all, memory_order_relaxed);
        atomic_store_explicit(&all, counts, memory_order_release);
    }
    ca_lock_drop(&lock);
    if (counts)
        atomic_fetch_add_explicit(&ca_thread_counts_count, 1, memory_order_relaxed);
    ca_thread_counts = counts;
}

const ca_thread_counts_t *ca_thread_counts_first(void)
{
    return atomic_load_explicit(&all, memory_order_acquire);
}

static uint64_t counter_at(const ca_counters_t *counters, size_t offset)
{
    const void *counter = (const char *)counters + offset;
    return atomic_load_explicit((const _Atomic uint64_t *)counter, memory_order_relaxed);
}

static uint64_t of_apis(const _Atomic uint64_t *calls, unsigned from)
{
    uint64_t sum = 0;
    for (unsigned api = from; api < CA_APIS; api++)
        sum += atomic_load_explicit(&calls[api], memory_order_relaxed);
    return sum;
}

uint64_t ca_thread_counts_live_fast(const ca_thread_counts_t *counts)
{
    return of_apis(counts->fast_allocs, 0) - of_apis(counts->fast_frees, 0);
}

/* What a thread's calls on the fast path add to a counter. */
static uint64_t fast_in(const ca_thread_counts_t *counts, size_t offset)
{
    switch (offset) {
    case offsetof(ca_counters_t, alloc_calls):
    case offsetof(ca_counters_t, pool_hits):
        return of_apis(counts->fast_allocs, 0);
    case offsetof(ca_counters_t, lane_r_allocs):
        return of_apis(counts->fast_allocs, CA_API_RUNTIME);
    case offsetof(ca_counters_t, free_calls):
        return of_apis(counts->fast_frees, 0);
    case offsetof(ca_counters_t, lane_r_frees):
        return of_apis(counts->fast_frees, CA_API_RUNTIME);
    default:
        return 0;
    }
}

uint64_t ca_counter_sum(size_t offset)
{
    uint64_t sum = counter_at(&ca_thread_counts_common.counters, offset);
    for (const ca_thread_counts_t *one = ca_thread_counts_first(); one;
         one = ca_thread_counts_next(one))
        sum += counter_at(&one->counters, offset) + fast_in(one, offset);
    return sum;
}

void ca_thread_counts_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_MEMORY);
    slab = (ca_slab_t){.object_bytes = COUNTS_BYTES};
    left = NULL;
    atomic_store(&all, NULL);
    atomic_store(&ca_thread_counts_count, 0);
    ca_thread_counts = NULL;
    ca_thread_forget();
    memset((void *)&ca_thread_counts_common, 0, sizeof(ca_thread_counts_common));
}
