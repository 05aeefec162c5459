#include "registry/table/allocated.h"

#include <errno.h>
#include <string.h>

#include "base/lock.h"
#include "registry/table/live.h"

/* Never taken together with a stripe's lock, whose rank it shares. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_REGISTRY);
static ca_groups_t allocated; /* under the lock */

/* What the calling thread allocated last, while it is live and nothing came after it. */
static _Thread_local struct {
    uint64_t address; /* 0: none */
    uint32_t thread;  /* its own id, which is another one in the child of a fork */
} latest;

void ca_allocated_add(const ca_allocation_t *record)
{
    ca_allocation_t numbered = *record;
    if (numbered.sequence == 0)
        numbered.sequence = ca_live_latest_number(ca_thread_counts);
    latest.address = record->address;
    latest.thread = record->thread;
    ca_lock_take(&lock);
    ca_groups_add(&allocated, &numbered);
    ca_lock_drop(&lock);
}

/* A record of that address and thread is the latest: had another thread freed that one, this one
 * would have allocated since. */
void ca_allocated_freed(const ca_allocation_t *record)
{
    if (latest.address != record->address || latest.thread != record->thread)
        return;
    latest.address = 0;
    ca_lock_take(&lock);
    ca_group_t *group = ca_groups_find(&allocated, record);
    if (group)
        group->temporaries++;
    ca_lock_drop(&lock);
}

int ca_allocated_copy(ca_groups_t *groups)
{
    memset(groups, 0, sizeof *groups);
    if (!ca_lock_take_timed(&lock))
        return -EBUSY;
    int result = ca_groups_copy(groups, &allocated);
    ca_lock_drop(&lock);
    return result;
}

void ca_allocated_reset_after_fork(void)
{
    /* What the parent mapped stays mapped, for the reason given in registry.c. */
    ca_lock_init(&lock, CA_RANK_REGISTRY);
    memset(&allocated, 0, sizeof allocated);
    latest.address = 0;
}
