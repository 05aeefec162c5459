#include "registry/table/live.h"

#include "registry/table/peak.h"
#include "registry/table/timeline.h"

ca_live_t ca_live;

static __attribute__((noinline)) void raise_peak(uint64_t now, uint64_t most)
{
    while (now > most && !atomic_compare_exchange_weak_explicit(
                             &ca_live.peak, &most, now, memory_order_relaxed, memory_order_relaxed))
        ;
    if (now >= atomic_load_explicit(&ca_peak_next, memory_order_relaxed))
        ca_peak_reached(now);
}

CA_INLINE uint64_t publish(uint64_t bytes)
{
    uint64_t now =
        atomic_fetch_add_explicit(&ca_live.published, bytes, memory_order_relaxed) + bytes;
    uint64_t most = atomic_load_explicit(&ca_live.peak, memory_order_relaxed);
    if (now <= most)
        return now;
    raise_peak(now, most);
    return now;
}

CA_INLINE uint64_t unpublish(uint64_t bytes)
{
    return atomic_fetch_sub_explicit(&ca_live.published, bytes, memory_order_relaxed) - bytes;
}

uint64_t ca_live_publish(uint64_t bytes)
{
    return publish(bytes);
}

uint64_t ca_live_unpublish(uint64_t bytes)
{
    return unpublish(bytes);
}

static void set_parts(ca_thread_counts_t *counts, uint64_t published)
{
    unsigned threads = ca_thread_counts_threads();
    uint64_t part =
        published / (threads > 1 ? CA_LIVE_CREDIT_SHARED * threads : CA_LIVE_CREDIT_SHARE);
    counts->credit_most = part > CA_LIVE_CREDIT_LEAST ? part : CA_LIVE_CREDIT_LEAST;
    counts->ahead = threads > 1 ? part / 2 : 0;
}

CA_INLINE void publish_own(ca_thread_counts_t *counts, uint64_t bytes)
{
    uint64_t ahead = counts->ahead;
    atomic_store_explicit(&counts->credit, ahead, memory_order_relaxed);
    uint64_t published = publish(bytes + ahead);
    /* Of one that frees, too: else the peak is exact. Alone it sets them when it frees. */
    if (counts->credit_most && (ahead || ca_thread_counts_threads() > 1))
        set_parts(counts, published);
}

void ca_live_publish_own(ca_thread_counts_t *counts, uint64_t bytes)
{
    publish_own(counts, bytes);
}

/* A thread that gets the line with the published bytes gets it once. */
void ca_live_leave_credit(ca_thread_counts_t *counts, uint64_t credit)
{
    if (!counts->credit_most)
        set_parts(counts, atomic_load_explicit(&ca_live.published, memory_order_relaxed));
    if (credit > counts->credit_most) {
        uint64_t keeps = counts->credit_most / 2;
        set_parts(counts, unpublish(credit - keeps));
        credit = keeps;
    }
    atomic_store_explicit(&counts->credit, credit, memory_order_relaxed);
}

static uint64_t batch_at(uint64_t sequence, unsigned threads)
{
    uint64_t batch = sequence / CA_LIVE_BATCH_SHARE / threads;

    if (batch < CA_LIVE_BATCH)
        return CA_LIVE_BATCH;
    return batch < CA_LIVE_BATCH_MOST ? batch : CA_LIVE_BATCH_MOST;
}

/* How many numbers behind the last one a batch is dropped. While each thread uses two of its own
 * all take so many: were it fewer, each would take a batch for each number. */
static uint64_t stale_at(uint64_t sequence, uint64_t batch, unsigned threads)
{
    uint64_t behind = 2 * batch * threads, most = sequence / CA_LIVE_STALE_SHARE;

    if (behind > most)
        behind = most;
    return behind > 2 * batch ? behind : 2 * batch;
}

uint64_t ca_live_next_batch(ca_thread_counts_t *counts)
{
    uint64_t so_far = atomic_load_explicit(&ca_live.sequence, memory_order_relaxed);
    unsigned threads = ca_thread_counts_threads();
    uint64_t most = batch_at(so_far, threads), behind = stale_at(so_far, most, threads);
    uint64_t batch = !counts || so_far < CA_TIMELINE_SINGLE ? 1 : most;
    uint64_t before = atomic_fetch_add_explicit(&ca_live.sequence, batch, memory_order_relaxed);
    /* Another thread may put less there after this: until the next batch. */
    if (before + batch > behind)
        atomic_store_explicit(&ca_live.stale, (before + batch - behind) * CA_RECORD_SEQUENCE_ONE,
                              memory_order_relaxed);
    if (counts) {
        atomic_store_explicit(&counts->sequence, (before + 1) * CA_RECORD_SEQUENCE_ONE,
                              memory_order_relaxed);
        atomic_store_explicit(&counts->last, (before + batch) * CA_RECORD_SEQUENCE_ONE,
                              memory_order_relaxed);
    }
    ca_timeline_at(before + 1);
    return before + 1;
}

static __attribute__((noinline, cold)) void make_number(ca_thread_counts_t *counts)
{
    uint64_t next = ca_live_next_batch(counts);
    atomic_store_explicit(&counts->sequence, (next - 1) * CA_RECORD_SEQUENCE_ONE,
                          memory_order_relaxed);
}

void ca_live_make_ready(ca_thread_counts_t *counts, uint64_t bytes)
{
    if (__builtin_expect(!ca_live_has_number(counts), 0))
        make_number(counts);
    uint64_t credit = atomic_load_explicit(&counts->credit, memory_order_relaxed);
    if (credit < bytes) {
        publish_own(counts, bytes - credit);
        ca_thread_counts_add(&counts->credit, bytes);
    }
}

/* Other threads go on meanwhile: what is summed up may have been taken from one part and not yet
 * come to another, and a sum below 0 is shown as 0. */
ca_registry_total_t ca_registry_total(void)
{
    int64_t live = atomic_load_explicit(&ca_live.live, memory_order_relaxed);
    uint64_t published = atomic_load_explicit(&ca_live.published, memory_order_relaxed), credit = 0;
    for (const ca_thread_counts_t *one = ca_thread_counts_first(); one;
         one = ca_thread_counts_next(one)) {
        live += atomic_load_explicit(&one->live, memory_order_relaxed) +
                ca_thread_counts_live_fast(one);
        credit += atomic_load_explicit(&one->credit, memory_order_relaxed);
    }
    return (ca_registry_total_t){live > 0 ? (uint64_t)live : 0,
                                 published > credit ? published - credit : 0};
}

/* The newest batch may not be used up. */
uint64_t ca_registry_sequence(void)
{
    uint64_t newest = atomic_load_explicit(&ca_live.sequence, memory_order_relaxed);
    for (const ca_thread_counts_t *one = ca_thread_counts_first(); one;
         one = ca_thread_counts_next(one))
        if (atomic_load_explicit(&one->last, memory_order_relaxed) ==
            newest * CA_RECORD_SEQUENCE_ONE)
            return atomic_load_explicit(&one->sequence, memory_order_relaxed) /
                   CA_RECORD_SEQUENCE_ONE;
    return newest;
}

uint64_t ca_live_phase_peak(void)
{
    return atomic_load_explicit(&ca_live.peak, memory_order_relaxed);
}

uint64_t ca_registry_peak_bytes(void)
{
    uint64_t earlier = atomic_load_explicit(&ca_live.earlier_peak, memory_order_relaxed);
    uint64_t peak = ca_live_phase_peak();
    return peak > earlier ? peak : earlier;
}

/* The calling thread's credit is no part of what is live as the next phase begins. A
 * thread that raises the peak just now raises the one phase's or the other's. */
uint64_t ca_live_end_phase(void)
{
    if (ca_thread_counts)
        unpublish(atomic_exchange_explicit(&ca_thread_counts->credit, 0, memory_order_relaxed));
    uint64_t most = ca_registry_peak_bytes();
    atomic_store_explicit(&ca_live.earlier_peak, most, memory_order_relaxed);
    uint64_t peak = atomic_exchange_explicit(
        &ca_live.peak, atomic_load_explicit(&ca_live.published, memory_order_relaxed),
        memory_order_relaxed);
    if (peak > most)
        atomic_store_explicit(&ca_live.earlier_peak, peak, memory_order_relaxed);
    return peak;
}

/* The parts of threads were reset before. */
void ca_live_reset_after_fork(void)
{
    atomic_store(&ca_live.published, 0);
    atomic_store(&ca_live.live, 0);
    atomic_store(&ca_live.sequence, 0);
    atomic_store(&ca_live.stale, 0);
    atomic_store(&ca_live.peak, 0);
    atomic_store(&ca_live.earlier_peak, 0);
}
