#include "registry/table/peak.h"

#include <errno.h>
#include <string.h>

#include "base/thread_state.h"
#include "base/lock.h"
#include "registry/table/registry.h"
#include "registry/table/timeline.h"

#define STEP 100u /* of the bytes of the last copy, one part */

/* Of copying no account is kept up to so many ns, then it takes one part of the time since the
 * start: for a peak that is a step above the last copy, and for a lower one. */
#define FREE_NS 100000000u
#define SHARE 20u
#define FINE_FREE_NS 10000000u
#define FINE_SHARE 100u

_Atomic bool ca_peak_due;
_Atomic uint64_t ca_peak_next = 1;

/* Never held when a stripe's lock is taken but by the thread that copies: their rank is the same,
 * so it is only tried. */
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_REGISTRY);
static ca_groups_t held; /* under the lock, as is the next */
static ca_peak_moment_t held_at;
static _Atomic uint64_t step_at; /* bytes that are a step above the last copy */
/* ns: until then a copy of so many would cost too much, or one of less. */
static _Atomic uint64_t not_before, fine_not_before;
static uint64_t spent; /* ns, on copies; of the thread that copies */
static void (*_Atomic listener)(void);

void ca_peak_listen(void (*changed)(void))
{
    atomic_store(&listener, changed);
}

static void notify_listener(void)
{
    void (*changed)(void) = atomic_load(&listener);
    changed();
}

void ca_peak_reached(uint64_t bytes)
{
    bool is_step = bytes >= atomic_load_explicit(&step_at, memory_order_relaxed);
    uint64_t wait =
        atomic_load_explicit(is_step ? &not_before : &fine_not_before, memory_order_relaxed);
    if (!atomic_load_explicit(&listener, memory_order_relaxed) ||
        atomic_load_explicit(&ca_peak_due, memory_order_relaxed) ||
        (wait && ca_timeline_now() < wait))
        return;
    if (!atomic_exchange(&ca_peak_due, true))
        notify_listener();
}

/* Groups what is live. False where it is no more than what is held, or cannot be had. */
static bool group(ca_groups_t *groups, ca_peak_moment_t *moment)
{
    ca_allocation_t *records;
    size_t count;
    memset(groups, 0, sizeof *groups);
    moment->ns = ca_timeline_now();
    moment->sequence = ca_registry_sequence();
    if (ca_registry_snapshot(&records, &count, &moment->busy) != 0)
        return false;
    for (size_t i = 0; i < count; i++)
        ca_groups_add(groups, &records[i]);
    ca_registry_snapshot_free(records, count);
    return groups->total.bytes > held.total.bytes;
}

/* The share of all time that copies may take. */
static void account(uint64_t began)
{
    uint64_t now = ca_timeline_now();
    spent += now - began;
    atomic_store(&not_before, spent > FREE_NS ? spent * SHARE : 0);
    atomic_store(&fine_not_before, spent > FINE_FREE_NS ? spent * FINE_SHARE : 0);
}

/* Each new peak is to be reported from now on; `bytes` are what a step is counted from. */
static void wait_for_next(uint64_t bytes)
{
    uint64_t step = bytes + bytes / STEP + 1, next = ca_registry_peak_bytes() + 1;
    atomic_store(&step_at, step);
    atomic_store(&ca_peak_next, next < step ? next : step);
}

static void copy_locked(void)
{
    ca_groups_t fresh;
    ca_peak_moment_t moment;
    uint64_t began = ca_timeline_now();
    if (group(&fresh, &moment)) {
        ca_groups_free(&held);
        held = fresh;
        held_at = moment;
        wait_for_next(held.total.bytes);
    } else {
        /* Other threads' spare bytes count for the peak, and are no live ones. */
        ca_groups_free(&fresh);
        wait_for_next(ca_registry_peak_bytes());
    }
    account(began);
}

void ca_peak_copy(void)
{
    int cancel = ca_cancel_hold();
    if (ca_lock_try(&lock)) {
        bool due = atomic_exchange(&ca_peak_due, false);
        if (due)
            copy_locked();
        ca_lock_drop(&lock);
        if (due)
            notify_listener();
    }
    ca_cancel_resume(cancel);
}

int ca_peak_groups(ca_groups_t *groups, ca_peak_moment_t *moment)
{
    memset(groups, 0, sizeof *groups);
    memset(moment, 0, sizeof *moment);
    if (!ca_lock_take_timed(&lock))
        return -EBUSY;
    if (atomic_load(&listener) && ca_registry_total().bytes > held.total.bytes)
        copy_locked();
    int result = ca_groups_copy(groups, &held);
    *moment = held_at;
    ca_lock_drop(&lock);
    return result;
}

void ca_peak_reset_after_fork(void)
{
    /* What the parent mapped stays mapped, for the reason given in registry.c. */
    ca_lock_init(&lock, CA_RANK_REGISTRY);
    memset(&held, 0, sizeof held);
    memset(&held_at, 0, sizeof held_at);
    spent = 0;
    atomic_store(&not_before, 0);
    atomic_store(&fine_not_before, 0);
    atomic_store(&step_at, 0);
    atomic_store(&ca_peak_due, false);
    atomic_store(&ca_peak_next, 1);
}
