/* What held the memory when there was most of it: the groups of all live allocations, copied when
 * the first of them is freed after a peak. So a process that grows pays nothing until it frees, and
 * an allocation or free that is no peak's last pays nothing at all. A copy takes time in proportion
 * to the live allocations. A peak that is up to 1% above the last one copied is copied too while
 * all copies together took 10 ms or a hundredth of the process's time; one that is higher, while
 * they took 100 ms or a twentieth. So what is copied is the highest peak of all, but for 1% where
 * peaks come so often that each is hardly above the one before, and for more where a copy takes
 * very long. Without a listener there is none. Thread-safe. */
#ifndef CA_REGISTRY_TABLE_PEAK_H
#define CA_REGISTRY_TABLE_PEAK_H

#include <stdatomic.h>
#include <stdbool.h>
#include "registry/table/groups.h"

/* A copy is due before the next free. */
extern _Atomic bool ca_peak_due;

/* Called, with any lock held, when a copy becomes due, and, with none, when it is made: frees must
 * come by ca_peak_before_free in between. */
void ca_peak_listen(void (*changed)(void));

/* There are this many live bytes, more than ever before. With any lock held. */
extern _Atomic uint64_t ca_peak_next; /* bytes from which that is to be reported */
void ca_peak_reached(uint64_t bytes);

/* A record is about to be taken out. Takes locks: with none held. */
void ca_peak_copy(void);
static inline void ca_peak_before_free(void)
{
    if (__builtin_expect(atomic_load_explicit(&ca_peak_due, memory_order_relaxed), 0))
        ca_peak_copy();
}

/* When a copy was made, and what for. */
typedef struct ca_peak_moment {
    uint64_t ns;       /* see registry/table/timeline.h */
    uint64_t sequence; /* of the latest allocation */
    unsigned busy;     /* stripes that could not be read */
} ca_peak_moment_t;

/* Copies the groups of the highest peak that was copied, this moment's where that is higher; for
 * ca_groups_free. 0; -ENOMEM; -EBUSY when another thread, or the very frame that a signal
 * interrupted, stays in it. Without any they are empty. */
int ca_peak_groups(ca_groups_t *groups, ca_peak_moment_t *moment);

void ca_peak_reset_after_fork(void);

#endif
