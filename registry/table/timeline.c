#include "registry/table/timeline.h"

#include <time.h>

#include "base/clock.h"
#include "base/lock.h"
#include "registry/table/registry.h"

#define STEP 128u /* what a point costs is spread over as many allocations */

_Atomic uint64_t ca_timeline_next = 1;

/* Tried only, never waited for: a thread that allocates may hold any other. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_REGISTRY);
static ca_point_t noted[CA_TIMELINE_MOST]; /* under the lock, as are the next two */
static size_t count;
static uint64_t step = STEP; /* numbers from one point to the next, once the first have passed */
static _Atomic uint64_t start_ns, start_s;
static uint64_t (*_Atomic reserved_bytes)(void);

void ca_timeline_start(uint64_t (*reserved)(void))
{
    atomic_store(&reserved_bytes, reserved);
    atomic_store(&start_s, ca_clock_of(CLOCK_REALTIME) / 1000000000u);
    atomic_store(&start_ns, ca_clock_ns());
}

uint64_t ca_timeline_now(void)
{
    uint64_t start = atomic_load(&start_ns);
    return start ? ca_clock_ns() - start : 0;
}

uint64_t ca_timeline_start_s(void)
{
    return atomic_load(&start_s);
}

static ca_point_t point_of(uint64_t sequence)
{
    uint64_t (*reserved)(void) = atomic_load(&reserved_bytes);
    return (ca_point_t){
        .ns = ca_timeline_now(),
        .sequence = sequence,
        .live = ca_registry_total().bytes,
        .reserved = reserved ? reserved() : 0,
    };
}

/* Every second one stays. */
static void thin_out(void)
{
    for (size_t i = 0; i < count / 2; i++)
        noted[i] = noted[2 * i];
    count /= 2;
    step *= 2;
}

void ca_timeline_note(uint64_t sequence)
{
    if (!ca_lock_try(&lock))
        return;
    /* Numbers come to threads in batches, so that one may be late. */
    if (count == 0 || sequence > noted[count - 1].sequence) {
        if (count == CA_TIMELINE_MOST)
            thin_out();
        noted[count++] = point_of(sequence);
        atomic_store_explicit(&ca_timeline_next,
                              sequence + (sequence < CA_TIMELINE_SINGLE ? 1 : step),
                              memory_order_relaxed);
    }
    ca_lock_drop(&lock);
}

size_t ca_timeline_copy(ca_point_t *points)
{
    size_t copied = 0;
    if (ca_lock_try(&lock)) {
        for (; copied < count; copied++)
            points[copied] = noted[copied];
        ca_lock_drop(&lock);
    }
    points[copied++] = point_of(ca_registry_sequence());
    return copied;
}

uint64_t ca_timeline_when(const ca_point_t *points, size_t known, uint64_t sequence)
{
    size_t low = 0, high = known ? known - 1 : 0; /* the last point is the copy's own moment */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (points[middle].sequence <= sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? points[low - 1].ns : 0;
}

void ca_timeline_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_REGISTRY);
    count = 0;
    step = STEP;
    atomic_store(&ca_timeline_next, 1);
}
