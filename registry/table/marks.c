#include "registry/table/marks.h"

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/text.h"
#include "registry/table/live.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_REGISTRY);
static ca_mark_t kept[CA_MARKS_MOST]; /* under the lock: a ring */
static _Atomic uint64_t added;        /* changes under the lock */

void ca_marks_add(const char *name)
{
    ca_mark_t mark = {.ns = 0};
    ca_text_t text;
    ca_text_init(&text, mark.name, sizeof mark.name);
    ca_text_add(&text, name, strnlen(name, sizeof mark.name));
    ca_text_mark_cut(&text);
    ca_lock_take(&lock); /* the time is taken in it: marks are in order */
    mark.ns = ca_timeline_now();
    mark.sequence = ca_registry_sequence();
    mark.live = ca_registry_total().bytes;
    mark.peak = ca_live_end_phase();
    uint64_t number = atomic_load_explicit(&added, memory_order_relaxed);
    kept[number % CA_MARKS_MOST] = mark;
    atomic_store_explicit(&added, number + 1, memory_order_relaxed);
    ca_lock_drop(&lock);
}

size_t ca_marks_copy(ca_mark_t *marks, uint64_t *dropped)
{
    *dropped = atomic_load_explicit(&added, memory_order_relaxed);
    if (*dropped == 0 || !ca_lock_take_timed(&lock))
        return 0;
    uint64_t all = atomic_load_explicit(&added, memory_order_relaxed);
    size_t count = all < CA_MARKS_MOST ? (size_t)all : CA_MARKS_MOST;
    for (size_t i = 0; marks && i < count; i++)
        marks[i] = kept[(all - count + i) % CA_MARKS_MOST];
    ca_lock_drop(&lock);
    *dropped = all - count;
    return count;
}

void ca_marks_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_REGISTRY);
    atomic_store(&added, 0);
}
