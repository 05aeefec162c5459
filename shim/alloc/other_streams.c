/* See other_streams.h. */
#include "shim/alloc/other_streams.h"
#include <stddef.h>
#include "base/lock.h"
#include "base/mem.h"

#define BUCKETS 1024

typedef struct node {
    struct node *next;
    uint64_t address;
} node_t;

_Atomic unsigned ca_other_streams_count;
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(node_t)};
static node_t *buckets[BUCKETS];

/* Under the lock. */
static node_t **place(uint64_t address)
{
    node_t **at = &buckets[(address * 0x9e3779b97f4a7c15u) >> 54];
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    return at;
}

bool ca_other_streams_add(uint64_t address)
{
    ca_lock_take(&lock);
    node_t **at = place(address), *fresh = *at ? NULL : ca_slab_take(&slab);
    bool known = *at || fresh;
    if (fresh) {
        *fresh = (node_t){NULL, address};
        *at = fresh;
        atomic_fetch_add(&ca_other_streams_count, 1);
    }
    ca_lock_drop(&lock);
    return known;
}

bool ca_other_streams_take_slow(uint64_t address)
{
    ca_lock_take(&lock);
    node_t **at = place(address), *node = *at;
    if (node) {
        *at = node->next;
        ca_slab_give(&slab, node);
        atomic_fetch_sub(&ca_other_streams_count, 1);
    }
    ca_lock_drop(&lock);
    return node != NULL;
}

void ca_other_streams_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = sizeof(node_t)}; /* the parent's stays mapped */
    for (size_t i = 0; i < BUCKETS; i++)
        buckets[i] = NULL;
    atomic_store(&ca_other_streams_count, 0);
}
