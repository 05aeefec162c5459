/* What all live allocations come to: their number, their bytes, the most bytes there were, and the
 * sequence numbers of allocations.
 *
 * Each thread has a part of its own (base/counters.h), or every allocation of every thread would
 * write the same line. Live bytes are `published`, which all threads change, less the credit of
 * each: a free leaves its bytes with the thread, up to SPARE_LEAST or a part of what was published,
 * and an allocation takes from there first. Where there are several threads, one that frees, too,
 * and has no credit left publishes some bytes in advance, half of such a part, or the next
 * allocation would find nothing either. So `published` is never less than what is live. Its peak is
 * exact where there is one thread, or nothing was freed before, else too high by all threads' parts
 * together and SPARE_LEAST for each at most.
 *
 * Sequence numbers come to a thread by the batch, all threads' together a part of what numbers
 * there are: or threads would wait for the line that has the next one. A batch whose thread is
 * slower than others is dropped: numbers tell the order of allocations but for three such parts.
 * Where there are so many threads for the numbers there are that the least batches are more than
 * that, this takes CA_LIVE_STALE_SHARE of all numbers. */
#ifndef CA_REGISTRY_TABLE_LIVE_H
#define CA_REGISTRY_TABLE_LIVE_H

#include <stdatomic.h>
#include "base/counters.h"
#include "base/inline.h"
#include "base/record.h"
#include "registry/table/registry.h"

#define CA_LIVE_CREDIT_LEAST ((uint64_t)1 << 20)
#define CA_LIVE_CREDIT_SHARE 1024u /* of one thread */
#define CA_LIVE_CREDIT_SHARED 32u  /* of several together */
#define CA_LIVE_BATCH 64u          /* numbers, at least and at most */
#define CA_LIVE_BATCH_MOST 1024u
#define CA_LIVE_BATCH_SHARE 1024u /* the part; as exact as the points in time (timeline.h) */
#define CA_LIVE_STALE_SHARE 64u

typedef struct ca_live {
    _Alignas(128) _Atomic uint64_t published; /* bytes */
    _Atomic int64_t live;                     /* of threads without counts */
    _Alignas(128) _Atomic uint64_t sequence;
    _Atomic uint64_t stale; /* a batch is dropped where its last number is not above; as in words */
    /* Of `published`, since the phase began: read often, written while a process grows. */
    _Alignas(128) _Atomic uint64_t peak;
    _Atomic uint64_t earlier_peak; /* of the phases before */
} ca_live_t;

extern ca_live_t ca_live;

/* All of what it does beyond its own thread's part. Both return what all have published then. */
uint64_t ca_live_publish(uint64_t bytes);
uint64_t ca_live_unpublish(uint64_t bytes);
uint64_t ca_live_next_batch(ca_thread_counts_t *counts);

/* `counts` is the calling thread's, here and below. It has no credit, and publishes so many
 * bytes. */
void ca_live_publish_own(ca_thread_counts_t *counts, uint64_t bytes);

CA_INLINE void ca_live_add_own(ca_thread_counts_t *counts, uint64_t bytes)
{
    uint64_t credit;
    ca_thread_counts_add(&counts->live, 1);
    credit = atomic_load_explicit(&counts->credit, memory_order_relaxed);
    if (__builtin_expect(credit >= bytes, 1)) {
        atomic_store_explicit(&counts->credit, credit - bytes, memory_order_relaxed);
    } else {
        ca_live_publish_own(counts, bytes - credit);
    }
}

/* A free leaves its bytes with the thread: its credit then. Up to counts->credit_most it
 * is set; above that it is left to ca_live_leave_credit, which publishes it. */
CA_INLINE uint64_t ca_live_credit_with(const ca_thread_counts_t *counts, uint64_t bytes)
{
    return atomic_load_explicit(&counts->credit, memory_order_relaxed) + bytes;
}

CA_INLINE void ca_live_set_credit(ca_thread_counts_t *counts, uint64_t credit)
{
    atomic_store_explicit(&counts->credit, credit, memory_order_relaxed);
}

void ca_live_leave_credit(ca_thread_counts_t *counts, uint64_t credit);

/* Whether the thread has a number left that is not stale. */
CA_INLINE bool ca_live_has_number(const ca_thread_counts_t *counts)
{
    uint64_t last = atomic_load_explicit(&counts->last, memory_order_relaxed);
    return atomic_load_explicit(&counts->sequence, memory_order_relaxed) < last &&
           last > atomic_load_explicit(&ca_live.stale, memory_order_relaxed);
}

/* The next one, of a thread that has one, as a record's state has it. */
CA_INLINE uint64_t ca_live_next_own(ca_thread_counts_t *counts)
{
    uint64_t next = atomic_load_explicit(&counts->sequence, memory_order_relaxed);
    next += CA_RECORD_SEQUENCE_ONE;
    atomic_store_explicit(&counts->sequence, next, memory_order_relaxed);
    return next;
}

/* `counts` may be NULL. */
CA_INLINE uint64_t ca_live_number(ca_thread_counts_t *counts)
{
    if (__builtin_expect(counts && ca_live_has_number(counts), 1))
        return ca_live_next_own(counts) / CA_RECORD_SEQUENCE_ONE;
    return ca_live_next_batch(counts);
}

/* The one that the thread was given last; `counts` may be NULL: about that. */
static inline uint64_t ca_live_latest_number(const ca_thread_counts_t *counts)
{
    return counts ? atomic_load_explicit(&counts->sequence, memory_order_relaxed) /
                        CA_RECORD_SEQUENCE_ONE
                  : atomic_load_explicit(&ca_live.sequence, memory_order_relaxed);
}

/* The fast path makes sure before anything else that it needs nothing from beyond its own thread's
 * part: after this, ca_live_add_ready can add `bytes`. A request that then is not served at all may
 * have raised the peak. */
void ca_live_make_ready(ca_thread_counts_t *counts, uint64_t bytes);
CA_INLINE void ca_live_ready(ca_thread_counts_t *counts, uint64_t bytes)
{
    if (__builtin_expect(!ca_live_has_number(counts) ||
                             atomic_load_explicit(&counts->credit, memory_order_relaxed) < bytes,
                         0))
        ca_live_make_ready(counts, bytes);
}

/* One more allocation, which the fast path serves; its number, as a record's state has it. */
CA_INLINE uint64_t ca_live_add_ready(ca_thread_counts_t *counts, uint64_t bytes)
{
    ca_thread_counts_take(&counts->credit, bytes);
    return ca_live_next_own(counts);
}

/* All of what a free does. */
CA_INLINE void ca_live_leave_own(ca_thread_counts_t *counts, uint64_t bytes)
{
    uint64_t credit = ca_live_credit_with(counts, bytes);
    if (__builtin_expect(credit > counts->credit_most, 0))
        ca_live_leave_credit(counts, credit);
    else
        ca_live_set_credit(counts, credit);
}

static inline void ca_live_add(uint64_t bytes)
{
    if (__builtin_expect(ca_thread_counts != NULL, 1)) {
        ca_live_add_own(ca_thread_counts, bytes);
    } else {
        atomic_fetch_add_explicit(&ca_live.live, 1, memory_order_relaxed);
        ca_live_publish(bytes);
    }
}

static inline void ca_live_remove(uint64_t bytes)
{
    if (__builtin_expect(ca_thread_counts != NULL, 1)) {
        ca_thread_counts_add(&ca_thread_counts->live, -1);
        ca_live_leave_own(ca_thread_counts, bytes);
    } else {
        atomic_fetch_sub_explicit(&ca_live.live, 1, memory_order_relaxed);
        ca_live_unpublish(bytes);
    }
}

/* A phase ends and the next begins. Returns the most bytes that were live in it, an upper bound as
 * ca_registry_peak_bytes is. One at a time. */
uint64_t ca_live_end_phase(void);

/* The same of the phase that has not ended. */
uint64_t ca_live_phase_peak(void);

void ca_live_reset_after_fork(void);

#endif
