/* See fences.h. Events are recycled per context, in the part of it that they came from. */
#include "shim/upstream/fences.h"
#include <errno.h>
#include "base/clock.h"
#include "base/lock.h"
#include "base/mem.h"
#include "base/mutation.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/upstream.h"
#include "shim/upstream/waiter.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS); /* of the slab */
/* Parts lie apart, since one thread uses each for long. */
static ca_slab_t slab = {.object_bytes = CA_PART_BYTES};
_Static_assert(sizeof(ca_event_t) <= CA_PART_BYTES, "one of them each");

static ca_event_t *make_event(void)
{
    ca_lock_take(&lock);
    ca_event_t *event = ca_slab_take(&slab);
    ca_lock_drop(&lock);
    return event;
}

static void unmake(ca_event_t *event)
{
    ca_lock_take(&lock);
    ca_slab_give(&slab, event);
    ca_lock_drop(&lock);
}

void ca_fences_prepare(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PARTS; i++)
        ca_lock_init(&context->events[i].lock, CA_RANK_CONTEXTS);
}

static ca_event_t *take_event(ca_context_t *context)
{
    unsigned part = ca_part_of_thread();
    ca_event_part_t *own = &context->events[part];
    ca_lock_take(&own->lock);
    ca_event_t *event = own->idle;
    if (event)
        own->idle = event->next;
    /* Before the lock is dropped: a thread that empties the part finds the event in it or held. */
    atomic_fetch_add(&own->held, 1);
    ca_lock_drop(&own->lock);
    if (!event)
        event = make_event();
    if (!event) {
        atomic_fetch_sub(&own->held, 1);
        return NULL;
    }
    event->next = NULL;
    event->context = context;
    event->part = part;
    return event;
}

static void give_event(ca_event_t *event)
{
    ca_context_t *context = event->context;
    ca_event_part_t *own = &context->events[event->part];
    ca_lock_take(&own->lock);
    bool kept = event->handle && atomic_load(&context->state) != CA_CONTEXT_RETIRED;
    if (kept) {
        event->next = own->idle;
        own->idle = event;
    }
    ca_lock_drop(&own->lock);
    if (!kept)
        unmake(event);
    atomic_fetch_sub(&own->held, 1); /* last: from here on the context may be revived */
}

void ca_fence_release(void *arg, void *fence)
{
    (void)arg;
    for (ca_event_t *event = fence, *next; event; event = next) {
        next = event->next;
        give_event(event);
    }
}

bool ca_fences_held(const ca_context_t *context)
{
    bool held = false;
    for (unsigned i = 0; i < CA_PARTS && !held; i++)
        held = atomic_load(&context->events[i].held) != 0;
    return held;
}

void ca_fences_forget(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PARTS; i++) {
        ca_event_part_t *part = &context->events[i];
        ca_lock_take(&part->lock);
        ca_event_t *event = part->idle, *next;
        part->idle = NULL;
        ca_lock_drop(&part->lock);
        for (; event; event = next) {
            next = event->next;
            unmake(event);
        }
    }
}

/* The event's context has been entered. */
static CUresult make_handle(ca_event_t *event)
{
    if (event->handle)
        return CUDA_SUCCESS;
    /* A thread that waits for the event sleeps: otherwise the driver keeps a processor busy for as
     * long. */
    CUresult code = ca_driver()->cuEventCreate(&event->handle,
                                               CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    if (code != CUDA_SUCCESS)
        event->handle = NULL;
    return code;
}

/* Records one event behind everything submitted to `context`. */
static CUresult record(ca_context_t *context, ca_event_t *event)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    code = make_handle(event);
    if (code == CUDA_SUCCESS && CA_MUTATED(fence_legacy_only))
        code = driver->cuEventRecord(event->handle, CU_STREAM_LEGACY);
    else if (code == CUDA_SUCCESS && !CA_MUTATED(query_unrecorded))
        code = driver->cuCtxRecordEvent(context->handle, event->handle);
    ca_upstream_leave(&entered);
    return code;
}

/* Whether `member` is being destroyed, which may take long and does not concern the owner. */
static bool about_to_go(const ca_context_t *owner, const ca_context_t *member)
{
    return member != owner && atomic_load(&member->state) == CA_CONTEXT_SUSPENDED;
}

/* Whether an error of another context says that nothing runs there any more: it is broken, or was
 * destroyed by a call that no wrapper saw. */
static bool runs_nothing(const ca_context_t *owner, const ca_context_t *member, CUresult code)
{
    return member != owner && (ca_upstream_is_sticky(code) ||
                               (code == CUDA_ERROR_INVALID_CONTEXT && ca_context_lost_id(member)));
}

/* The contexts whose work a fence covers: the memory's own; those too that may reach its memory;
 * all of its device, and of other devices all that ever allocated, or freed on a stream; or every
 * context.
 *
 * A plain free waits for all work of the memory's own context, and for no other's
 * (tests/gpu/results: "What the H200 said", of two contexts on one device): a program that frees
 * has waited for the others' work itself, or has made a stream of the memory's own context wait. So
 * no more need be covered. Neither the simulator nor one GPU can show whether the free waits for
 * other devices that reach the memory by themselves: peers, and those that copied from or to it by
 * the driver's cuMemcpyPeer are covered. A free on a stream of another context comes behind that
 * context's work. */
typedef enum { ITS_CONTEXT, ITS_MEMORY, WIDE, ALL } reach_t;

static bool reaches(const ca_context_t *member, const ca_context_t *context, reach_t reach)
{
    if (member == context || reach == ALL)
        return true;
    if (reach == ITS_CONTEXT)
        return false;
    return ca_context_is_reached_by(context, member) ||
           (reach == WIDE && (member->device == context->device || atomic_load(&member->asked)));
}

static size_t fence_members(ca_context_t *context, reach_t reach,
                            ca_context_t *members[CA_CONTEXTS_MAX])
{
    size_t count = ca_contexts_living(members), kept = 0;
    if (count == 1 && members[0] == context)
        return 1;
    for (size_t i = 0; i < count; i++) {
        ca_context_t *member = members[i];
        if (reaches(member, context, CA_MUTATED(fence_no_peers) ? ITS_CONTEXT : reach))
            members[kept++] = member;
    }
    return kept;
}

static int record_over(ca_context_t *context, reach_t reach, void **fence)
{
    const ca_driver_t *driver = ca_driver();
    if (!driver->cuCtxRecordEvent || !driver->cuEventCreate || !driver->cuEventQuery ||
        atomic_load_explicit(&context->no_records, memory_order_relaxed))
        return -ENOSYS;
    if (!ca_contexts_all_listed() || !ca_capture_recorder_enter())
        return -EAGAIN;

    int result = 0;
    ca_event_t *chain = NULL;
    ca_context_t *members[CA_CONTEXTS_MAX];
    size_t count = fence_members(context, reach, members);
    for (size_t i = 0; i < count && result == 0; i++) {
        ca_context_t *member = members[i];
        ca_event_t *event = about_to_go(context, member) ? NULL : take_event(member);
        if (!event) {
            result = -EAGAIN; /* or no host memory: the epoch stays open */
            break;
        }
        CUresult code = record(member, event);
        if (code == CUDA_SUCCESS) {
            event->next = chain;
            chain = event;
            continue;
        }
        give_event(event);
        if (code == CUDA_ERROR_NOT_SUPPORTED) {
            atomic_store(&context->no_records, true);
            result = -ENOSYS;
        } else if (ca_upstream_is_sticky(code) && member == context)
            result = ca_upstream_result(context, code);
        else if (!runs_nothing(context, member, code))
            result = -EAGAIN;
    }
    ca_capture_recorder_leave();
    if (result != 0) {
        ca_fence_release(context, chain);
        chain = NULL;
    }
    *fence = chain;
    return result;
}

int ca_fence_record(void *arg, bool all, void **fence)
{
    return record_over(arg, all ? WIDE : ITS_MEMORY, fence);
}

int ca_fence_record_host(void *arg, bool all, void **fence)
{
    (void)all;
    return record_over(arg, ALL, fence);
}

int ca_fence_record_on(void *arg, void *queue, void **fence)
{
    ca_context_t *context = arg;
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    if (!driver->cuEventCreate || !driver->cuEventRecord || !driver->cuEventQuery)
        return -ENOSYS;
    if (!ca_capture_recorder_enter())
        return -EAGAIN;
    CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
    ca_event_t *event = take_event(context);
    if (event && (code = ca_upstream_enter(context, &entered)) == CUDA_SUCCESS) {
        code = make_handle(event);
        if (code == CUDA_SUCCESS)
            code = driver->cuEventRecord(event->handle, queue);
        ca_upstream_leave(&entered);
    }
    ca_capture_recorder_leave();
    *fence = event;
    if (code == CUDA_SUCCESS)
        return 0;
    ca_fence_release(context, event);
    *fence = NULL;
    int result = ca_upstream_result(context, code);
    return result == -ENOMEM ? -EAGAIN : result; /* no device memory ran out */
}

/* Keeps `member` from being destroyed for the length of a short call: its events are destroyed with
 * it, and a destroyed one must not be named. */
static bool keep(ca_context_t *member)
{
    /* In this order: see count_in of shim/upstream/upstream.c. */
    ca_in_flight_enter(&member->entered);
    bool kept = atomic_load(&member->state) == CA_CONTEXT_SERVING;
    if (!kept)
        ca_in_flight_leave(&member->entered);
    return kept;
}

/* One event of a chain; `context`, whose stream it is, has been entered. */
static int join_one(ca_context_t *context, CUstream stream, const ca_event_t *event)
{
    ca_context_t *member = event->context;
    bool other = member != context;
    if (other && !keep(member)) /* nothing runs in a destroyed context */
        return atomic_load(&member->state) == CA_CONTEXT_RETIRED ? 0 : -EAGAIN;
    CUresult code = ca_driver()->cuStreamWaitEvent(stream, event->handle, CU_EVENT_WAIT_DEFAULT);
    if (!other)
        return ca_upstream_result(context, code);
    ca_in_flight_leave(&member->entered);
    /* The error is the peer's: nothing runs there any more. */
    return ca_upstream_is_sticky(code) ? 0 : ca_upstream_result(context, code);
}

int ca_fence_join(void *arg, void *queue, void *fence)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    if (!ca_driver()->cuStreamWaitEvent)
        return -ENOSYS;
    if (!ca_capture_recorder_enter()) /* an event from outside breaks a capture */
        return -EAGAIN;
    CUresult code = ca_upstream_enter(context, &entered);
    int result = ca_upstream_result(context, code);
    for (const ca_event_t *event = fence; event && result == 0; event = event->next)
        result = join_one(context, queue, event);
    if (code == CUDA_SUCCESS)
        ca_upstream_leave(&entered);
    ca_capture_recorder_leave();
    return result;
}

/* Polls or waits for one event: 1 passed, 0 not yet, negative errno. */
static int event_done(ca_context_t *owner, ca_context_t *context, CUevent handle, bool wait)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    if (!wait && about_to_go(owner, context))
        return 0;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        code = wait ? driver->cuEventSynchronize(handle) : driver->cuEventQuery(handle);
        ca_upstream_leave(&entered);
    }
    if (code == CUDA_SUCCESS)
        return 1;
    if (code == CUDA_ERROR_NOT_READY)
        return 0;
    if (runs_nothing(owner, context, code))
        return 1;
    return ca_upstream_result(owner, code);
}

/* The contexts whose events it waits for: pool/upstream.h, fence_wait. */
typedef enum { POLL, WAIT_OWN, WAIT_ALL } wait_t;

/* 1 passed, 0 not yet, negative errno. */
static int fence_done(void *arg, void *fence, wait_t wait)
{
    const ca_context_t *owner = arg;
    int all = 1;
    for (ca_event_t *event = fence; event; event = event->next) {
        bool waits = wait == WAIT_ALL || (wait == WAIT_OWN && event->context == owner);
        int done = event_done(arg, event->context, event->handle, waits);
        if (done < 0 || (done == 0 && wait == POLL))
            return done;
        all &= done;
    }
    return all;
}

int ca_fence_query(void *arg, void *fence)
{
    return fence_done(arg, fence, POLL);
}

bool ca_fence_own_idle(ca_context_t *context)
{
    void *fence = NULL;
    if (record_over(context, ITS_CONTEXT, &fence) != 0)
        return false;
    bool idle = fence_done(context, fence, POLL) == 1;
    ca_fence_release(context, fence);
    return idle;
}

static int wait_for_event(ca_context_t *owner, ca_context_t *context, CUevent handle)
{
    return event_done(owner, context, handle, true);
}

#define LEAST_STEP_NS 20000
#define OTHERS_WAIT_NS ((uint64_t)1000 * 1000 * 1000)

/* A bounded wait without the helper: sleep half as long as the last one took, then poll in steps.
 * Where the device sets the pace waits are alike, and few polls are needed; half, so that one long
 * wait does not make all later ones long. */
static int poll_in_steps(ca_context_t *context, void *fence, uint64_t nanoseconds)
{
    uint64_t begin = ca_clock_ns(), spent = 0;
    uint64_t step = atomic_load_explicit(&context->last_wait_ns, memory_order_relaxed) / 2;
    for (;;) {
        if (step < LEAST_STEP_NS)
            step = LEAST_STEP_NS;
        if (step > nanoseconds - spent)
            step = nanoseconds - spent;
        ca_sleep(step);
        int done = fence_done(context, fence, POLL);
        spent = ca_clock_ns() - begin;
        if (done == 1)
            atomic_store_explicit(&context->last_wait_ns, spent, memory_order_relaxed);
        if (done != 0 || spent >= nanoseconds)
            return done;
        step = spent / 2;
    }
}

int ca_fence_wait(void *arg, void *fence, uint64_t nanoseconds)
{
    if (nanoseconds == CA_WAIT_OWN)
        return fence_done(arg, fence, WAIT_OWN);
    int done = ca_driver()->cuEventSynchronize
                   ? ca_waiter_wait(arg, fence, wait_for_event, nanoseconds)
                   : -EBUSY;
    return done == -EBUSY ? poll_in_steps(arg, fence, nanoseconds) : done;
}

/* For drivers without context-wide events. A capture that begins meanwhile is not kept away. */
static int synchronize_each(ca_context_t *context, reach_t reach)
{
    ca_entered_t entered;
    ca_context_t *members[CA_CONTEXTS_MAX];
    if (!ca_contexts_all_listed())
        return -EAGAIN; /* it would miss some contexts' work */
    size_t count = fence_members(context, reach, members);
    for (size_t i = 0; i < count; i++) {
        if (ca_capture_active())
            return -EAGAIN; /* it would fail, or invalidate the capture */
        CUresult code = ca_upstream_enter(members[i], &entered);
        if (code == CUDA_SUCCESS) {
            code = ca_driver()->cuCtxSynchronize();
            ca_upstream_leave(&entered);
        }
        if (code != CUDA_SUCCESS && !runs_nothing(context, members[i], code))
            return ca_upstream_result(context, code) == -EIO ? -EIO : -EAGAIN;
    }
    return 0;
}

/* Waits by an event: a wait for an event that was recorded before breaks no capture that began
 * since, where cuCtxSynchronize would. */
static int synchronize_over(ca_context_t *context, reach_t reach)
{
    void *fence = NULL;
    int result = record_over(context, reach, &fence);
    if (result == -ENOSYS)
        return synchronize_each(context, reach);
    if (result != 0)
        return result == -EIO ? -EIO : -EAGAIN;
    result = fence_done(context, fence, WAIT_ALL);
    ca_fence_release(context, fence);
    return result == 1 ? 0 : result == -EIO ? -EIO : -EAGAIN;
}

/* A ca_waiter_wait_t for all work of a context. */
static int wait_for_context(ca_context_t *owner, ca_context_t *context, CUevent unused)
{
    ca_entered_t entered;
    (void)unused;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        code = ca_driver()->cuCtxSynchronize();
        ca_upstream_leave(&entered);
    }
    return code == CUDA_SUCCESS || runs_nothing(owner, context, code)
               ? 1
               : ca_upstream_result(owner, code);
}

/* The helper's answer, as a result of `synchronize`. */
static int waited(ca_context_t *context, ca_event_t *chain, ca_waiter_wait_t *wait)
{
    int done = chain ? ca_waiter_wait(context, chain, wait, ca_bound(OTHERS_WAIT_NS)) : 1;
    ca_fence_release(context, chain);
    return done == 1 ? 0 : done == -EIO ? -EIO : -EAGAIN;
}

/* Waits for the work of all other contexts, but not for long: it may be waiting for this very
 * thread. The helper does the wait; while it still waits for an earlier caller in vain, the answer
 * comes at once. By events where there are any, as above; when those have passed it is done. */
static int synchronize_others(ca_context_t *context, reach_t reach)
{
    void *fence = NULL;
    int result = record_over(context, reach, &fence);
    if (result == 0 && fence_done(context, fence, POLL) == 1) {
        ca_fence_release(context, fence);
        return 0;
    }
    if (result == 0)
        return waited(context, fence, wait_for_event);
    if (result != -ENOSYS)
        return result == -EIO ? -EIO : -EAGAIN;
    ca_context_t *members[CA_CONTEXTS_MAX];
    ca_event_t *chain = NULL;
    int done = 1;
    if (!ca_contexts_all_listed() || ca_capture_active())
        return -EAGAIN;
    size_t count = fence_members(context, reach, members);
    for (size_t i = 0; i < count && done == 1; i++) {
        ca_event_t *event = members[i] == context ? NULL : take_event(members[i]);
        if (event) {
            event->next = chain;
            chain = event;
        } else if (members[i] != context) {
            done = -EAGAIN;
        }
    }
    if (done == 1)
        return waited(context, chain, wait_for_context);
    ca_fence_release(context, chain);
    return -EAGAIN;
}

int ca_fence_synchronize(void *arg, bool all)
{
    int result = synchronize_over(arg, all ? WIDE : ITS_CONTEXT);
    return result != 0 || all ? result : synchronize_others(arg, ITS_MEMORY);
}

int ca_fence_synchronize_host(void *arg, bool all)
{
    int result = synchronize_over(arg, all ? ALL : ITS_CONTEXT);
    return result != 0 || all ? result : synchronize_others(arg, ALL);
}

void ca_fences_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = CA_PART_BYTES}; /* the parent's memory stays mapped */
    ca_waiter_reset_after_fork();
}
