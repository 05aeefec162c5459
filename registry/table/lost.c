#include "registry/table/lost.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"

/* Never taken together with a stripe's lock, whose rank it shares. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_REGISTRY);
static ca_groups_t lost; /* under the lock */
static _Atomic uint64_t lost_count, lost_bytes;

void ca_lost_add(ca_registry_total_t dropped, const ca_allocation_t *records, size_t count)
{
    if (dropped.count == 0)
        return;
    atomic_fetch_add_explicit(&lost_count, dropped.count, memory_order_relaxed);
    atomic_fetch_add_explicit(&lost_bytes, dropped.bytes, memory_order_relaxed);
    ca_lock_take(&lock);
    for (size_t i = 0; i < count; i++)
        ca_groups_add(&lost, &records[i]);
    ca_lock_drop(&lock);
}

int ca_lost_copy(ca_groups_t *groups)
{
    memset(groups, 0, sizeof *groups);
    if (!ca_lock_take_timed(&lock))
        return -EBUSY;
    int result = ca_groups_copy(groups, &lost);
    ca_lock_drop(&lock);
    return result;
}

ca_registry_total_t ca_registry_lost(void)
{
    ca_registry_total_t total;
    total.count = atomic_load_explicit(&lost_count, memory_order_relaxed);
    total.bytes = atomic_load_explicit(&lost_bytes, memory_order_relaxed);
    return total;
}

void ca_lost_reset_after_fork(void)
{
    /* What the parent mapped stays mapped, for the reason given in registry.c. */
    ca_lock_init(&lock, CA_RANK_REGISTRY);
    memset(&lost, 0, sizeof lost);
    atomic_store_explicit(&lost_count, 0, memory_order_relaxed);
    atomic_store_explicit(&lost_bytes, 0, memory_order_relaxed);
}
