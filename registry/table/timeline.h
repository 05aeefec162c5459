/* Live and reserved bytes over time, in points that are few: one for each of the first allocations,
 * then for each 128, and for twice as many each time the table is full. They also tell about when
 * an allocation was made, so that no allocation takes the time. Thread-safe; what another thread is
 * noting is left out. */
#ifndef CA_REGISTRY_TABLE_TIMELINE_H
#define CA_REGISTRY_TABLE_TIMELINE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define CA_TIMELINE_MOST 1024u
#define CA_TIMELINE_SINGLE 256u /* each of the first allocations has a point */

/* Live and reserved bytes at some moment. */
typedef struct ca_point {
    uint64_t ns; /* since the start */
    uint64_t sequence;
    uint64_t live, reserved; /* bytes */
} ca_point_t;

/* From the moment of this call times count, in nanoseconds. `reserved` tells the bytes of the pool,
 * from any thread and without a lock; it may be NULL. */
void ca_timeline_start(uint64_t (*reserved)(void));

/* Nanoseconds since then, 0 before it, and when it was, in seconds since 1970. */
uint64_t ca_timeline_now(void);
uint64_t ca_timeline_start_s(void);

/* Notes a point for an allocation's number if one is due. Each is noted, or the first of a few. */
extern _Atomic uint64_t ca_timeline_next;
void ca_timeline_note(uint64_t sequence);
static inline void ca_timeline_at(uint64_t sequence)
{
    if (__builtin_expect(sequence >= atomic_load_explicit(&ca_timeline_next, memory_order_relaxed),
                         0))
        ca_timeline_note(sequence);
}

/* Copies the points, oldest first, and adds one of this moment. Returns how many: up to
 * CA_TIMELINE_MOST and that one, which is what `points` must have room for. */
size_t ca_timeline_copy(ca_point_t *points);

/* When about the allocation of this number was made, by such a copy: not after it. 0 where that is
 * before the first point. */
uint64_t ca_timeline_when(const ca_point_t *points, size_t count, uint64_t sequence);

void ca_timeline_reset_after_fork(void);

#endif
