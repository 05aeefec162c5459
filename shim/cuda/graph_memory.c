/* See graph_memory.h.
 *
 * One table has the blocks by address, live ones that a capture may know and those that are kept;
 * another one the graphs by handle. Both under one lock, which nests inside capture.c's. */
#include "shim/cuda/graph_memory.h"
#include <stdatomic.h>
#include "base/lock.h"
#include "base/mem.h"
#include "config/options.h"
#include "pool/cache/cache.h"
#include "shim/cuda/capture.h"

#define BUCKETS 1024

typedef struct node {
    struct node *next;
    uint64_t key; /* an address or a handle */
    ca_graph_range_t range;
    void *block;      /* NULL for a graph */
    size_t kept;      /* bytes of it, once it is freed */
    uint16_t context; /* its number */
} node_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_GRAPHS);
static ca_slab_t slab = {.object_bytes = sizeof(node_t)};
static node_t *blocks[BUCKETS], *graphs[BUCKETS];
static uint64_t *active; /* numbers of captures that go on */
static size_t active_count, active_capacity;
static uint64_t latest;
static _Atomic size_t block_count, kept_bytes;
static _Atomic bool
    blind; /* without host memory something was not noted: all is kept from now on */

_Atomic bool ca_graph_memory_asked;

void ca_graph_memory_want(void)
{
    if (!atomic_load_explicit(&ca_graph_memory_asked, memory_order_relaxed))
        atomic_store(&ca_graph_memory_asked, true);
}

static bool on(void)
{
    return ca_graph_memory_on();
}

/* --- under the lock --------------------------------------------------------------------------- */

static node_t **place(node_t *table[BUCKETS], uint64_t key)
{
    node_t **at = &table[(key * 0x9e3779b97f4a7c15u) >> 54];
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    return at;
}

_Static_assert(BUCKETS == 1 << 10, "the shift by 54");

static void take_out(node_t **at)
{
    node_t *node = *at;
    *at = node->next;
    if (node->block)
        atomic_fetch_sub(&block_count, 1);
    atomic_fetch_sub(&kept_bytes, node->kept);
    ca_slab_give(&slab, node);
}

/* The node of a key, made where it is missing; NULL without host memory. */
static node_t *node_for(node_t *table[BUCKETS], uint64_t key, void *block)
{
    node_t **at = place(table, key), *node = *at;
    if (node)
        return node;
    node = ca_slab_take(&slab);
    if (!node) {
        atomic_store(&blind, true);
        return NULL;
    }
    node->key = key;
    node->block = block;
    if (block)
        atomic_fetch_add(&block_count, 1);
    *at = node;
    return node;
}

static void widen(ca_graph_range_t *range, ca_graph_range_t by)
{
    if (!by.first)
        return;
    if (!range->first || by.first < range->first)
        range->first = by.first;
    if (by.last > range->last)
        range->last = by.last;
}

static bool meet(ca_graph_range_t a, ca_graph_range_t b)
{
    return a.first && b.first && a.first <= b.last && b.first <= a.last;
}

/* The captures that go on; where there are none, one whose begin call is under way. */
static ca_graph_range_t now(void)
{
    ca_graph_range_t range = {.first = latest + 1, .last = latest + !active_count};
    for (size_t i = 0; i < active_count; i++)
        if (active[i] < range.first)
            range.first = active[i];
    return range;
}

/* A graph has it, or will. */
static bool in_use(const node_t *block)
{
    if (atomic_load(&blind) || (ca_capture_active() && meet(block->range, now())))
        return true;
    for (size_t i = 0; i < BUCKETS; i++)
        for (const node_t *graph = graphs[i]; graph; graph = graph->next)
            if (meet(block->range, graph->range))
                return true;
    return false;
}

/* --- captures and graphs ---------------------------------------------------------------------- */

uint64_t ca_graph_memory_began(void)
{
    if (!on())
        return 0;
    ca_lock_take(&lock);
    if (active_count == active_capacity) {
        size_t capacity = active_capacity ? active_capacity * 2 : 512;
        uint64_t *more = ca_mem_map(capacity * sizeof *more);
        for (size_t i = 0; more && i < active_count; i++)
            more[i] = active[i];
        if (more && active)
            ca_mem_unmap(active, active_capacity * sizeof *active);
        active = more ? more : active;
        active_capacity = more ? capacity : active_capacity;
    }
    uint64_t number = ++latest;
    if (active_count < active_capacity)
        active[active_count++] = number;
    else
        atomic_store(&blind, true);
    ca_lock_drop(&lock);
    return number;
}

void ca_graph_memory_ended(uint64_t number)
{
    if (!on())
        return;
    ca_lock_take(&lock);
    for (size_t i = 0; i < active_count; i++)
        if (active[i] == number)
            active[i--] = active[--active_count];
    ca_lock_drop(&lock);
}

void ca_graph_memory_restore(const void *handle, ca_graph_range_t range)
{
    if (!on() || !handle || !range.first)
        return;
    ca_lock_take(&lock);
    node_t *node = node_for(graphs, (uint64_t)(uintptr_t)handle, NULL);
    if (node)
        widen(&node->range, range);
    ca_lock_drop(&lock);
}

void ca_graph_memory_captured(const void *graph, uint64_t number)
{
    ca_graph_memory_restore(graph, (ca_graph_range_t){.first = number, .last = number});
}

void ca_graph_memory_derived(const void *made, const void *from)
{
    if (!on())
        return;
    ca_lock_take(&lock);
    const node_t *source = *place(graphs, (uint64_t)(uintptr_t)from);
    ca_graph_range_t range = source ? source->range : (ca_graph_range_t){0};
    ca_lock_drop(&lock);
    ca_graph_memory_restore(made, range);
}

ca_graph_range_t ca_graph_memory_destroy(const void *handle)
{
    ca_graph_range_t range = {0};
    if (!on())
        return range;
    ca_lock_take(&lock);
    node_t **at = place(graphs, (uint64_t)(uintptr_t)handle);
    if (*at) {
        range = (*at)->range;
        take_out(at);
    }
    ca_lock_drop(&lock);
    return range;
}

/* --- blocks ----------------------------------------------------------------------------------- */

void ca_graph_memory_acquired(uint64_t address, void *block, uint16_t context)
{
    if (!on() || !ca_capture_active())
        return;
    ca_block_bar_fast_path(block); /* before another thread knows the address */
    ca_lock_take(&lock);
    node_t *node = node_for(blocks, address, block);
    if (node) {
        node->range = now();
        node->context = context;
    }
    ca_lock_drop(&lock);
}

/* Then there is none of an address that is freed now: another thread notes one only before. */
static bool none_noted(void)
{
    return atomic_load_explicit(&block_count, memory_order_relaxed) == 0;
}

bool ca_graph_memory_wanted(uint64_t address)
{
    if (!on())
        return false;
    if (ca_capture_active() || atomic_load(&blind))
        return true;
    if (none_noted())
        return false;
    ca_lock_take(&lock);
    const node_t *node = *place(blocks, address);
    bool wanted = node && in_use(node);
    ca_lock_drop(&lock);
    return wanted;
}

bool ca_graph_memory_keep_slow(const ca_allocation_t *record)
{
    bool wanted = ca_graph_memory_wanted(record->address);
    if (!wanted && none_noted())
        return false;
    size_t bytes = wanted ? ca_block_bytes(record->owner) : 0;
    ca_lock_take(&lock);
    node_t **at = place(blocks, record->address);
    if (wanted) {
        node_t *node = node_for(blocks, record->address, record->owner);
        if (node) {
            if (ca_capture_active())
                widen(&node->range, now());
            node->kept = bytes;
            node->context = record->context;
            atomic_fetch_add(&kept_bytes, bytes);
        }
    } else if (*at) {
        take_out(at);
    }
    ca_lock_drop(&lock);
    return wanted;
}

/* A block that no graph has any more, out of the table; NULL: none. */
static void *take_unused(void)
{
    void *block = NULL;
    ca_lock_take(&lock);
    for (size_t i = 0; i < BUCKETS && !block; i++)
        for (node_t **at = &blocks[i]; *at && !block;)
            if ((*at)->kept && !in_use(*at)) {
                block = (*at)->block;
                take_out(at);
            } else {
                at = &(*at)->next;
            }
    ca_lock_drop(&lock);
    return block;
}

void ca_graph_memory_release(void)
{
    void *block;
    while (atomic_load(&kept_bytes) > 0 && (block = take_unused()))
        ca_cached_free(block);
}

size_t ca_graph_memory_bytes(void)
{
    return atomic_load(&kept_bytes);
}

void ca_graph_memory_drop_context(uint16_t context)
{
    if (!on())
        return;
    ca_lock_take(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (node_t **at = &blocks[i]; *at;)
            if ((*at)->context == context)
                take_out(at);
            else
                at = &(*at)->next;
    ca_lock_drop(&lock);
}

void ca_graph_memory_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_GRAPHS);
    slab = (ca_slab_t){.object_bytes = sizeof(node_t)}; /* the parent's stays mapped */
    for (size_t i = 0; i < BUCKETS; i++)
        blocks[i] = graphs[i] = NULL;
    active_count = 0;
    atomic_store(&block_count, 0);
    atomic_store(&kept_bytes, 0);
}
