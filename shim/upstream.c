/* See upstream.h. A fence is a chain of events, one for each living context of the process: work of
 * any of them may touch the memory. Events are recycled per context. */
#include "shim/upstream.h"
#include <errno.h>
#include <time.h>
#include "config/lock.h"
#include "config/mem.h"
#include "config/mutation.h"
#include "shim/backend_async.h"
#include "shim/capture.h"
#include "shim/driver_table.h"
#include "shim/heaps.h"
#include "shim/waiter.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(ca_event_t)};

/* Counts the caller in, unless the context is gone or, for longer than a second, about to go. */
static CUresult count_in(ca_context_t *context)
{
    const struct timespec pause = {.tv_nsec = 50000};
    for (int tries = 0; tries < 10000; tries++) {
        /* The count comes before the look at the state; ca_context_suspend does the reverse. */
        atomic_fetch_add(&context->entered, 1);
        int state = atomic_load(&context->state);
        if (state == CA_CONTEXT_SERVING)
            return CUDA_SUCCESS;
        atomic_fetch_sub(&context->entered, 1);
        if (state == CA_CONTEXT_RETIRED)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        nanosleep(&pause, NULL);
    }
    return CUDA_ERROR_NOT_READY;
}

CUresult ca_upstream_enter(ca_context_t *context, ca_entered_t *entered)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext current = NULL;
    entered->context = context;
    entered->pushed = entered->relaxed = false;
    entered->before = NULL;
    CUresult counted = count_in(context);
    if (counted != CUDA_SUCCESS)
        return counted;
    if (driver->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context->handle) {
        CUresult code = driver->cuCtxPushCurrent_v2(context->handle);
        if (code != CUDA_SUCCESS) {
            atomic_fetch_sub(&context->entered, 1);
            return code;
        }
        entered->pushed = true;
        entered->before = current;
    }
    if (ca_capture_active() && driver->cuThreadExchangeStreamCaptureMode) {
        entered->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        entered->relaxed =
            driver->cuThreadExchangeStreamCaptureMode(&entered->mode) == CUDA_SUCCESS;
    }
    return CUDA_SUCCESS;
}

void ca_upstream_leave(ca_entered_t *entered)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext popped;
    /* What we leave behind is what the program goes on with: a call that fails is repeated. */
    if (entered->relaxed &&
        driver->cuThreadExchangeStreamCaptureMode(&entered->mode) != CUDA_SUCCESS)
        driver->cuThreadExchangeStreamCaptureMode(&entered->mode);
    if (entered->pushed && driver->cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS &&
        driver->cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS && driver->cuCtxSetCurrent)
        driver->cuCtxSetCurrent(entered->before);
    atomic_fetch_sub(&entered->context->entered, 1);
}

/* Errors after which every call on the context fails until it is destroyed ("sticky"), as the
 * descriptions of CUresult in cuda.h say: "the context cannot be used", "leaves the process in an
 * inconsistent state". */
static bool is_sticky(CUresult code)
{
    switch (code) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_DEINITIALIZED:
        return true;
    default:
        return false;
    }
}

static int to_errno(ca_context_t *context, CUresult code)
{
    if (code == CUDA_SUCCESS)
        return 0;
    if (is_sticky(code)) {
        int none = 0;
        atomic_compare_exchange_strong(&context->broken, &none, (int)code);
        return -EIO;
    }
    if (code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return -EAGAIN;
    /* Anything else is no shortage: giving memory back would not help. */
    return code == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EINVAL;
}

int ca_upstream_result(ca_context_t *context, CUresult code)
{
    return to_errno(context, code);
}

/* The room that one arena finds on a device is all that the others have. */
static void tell_room(const ca_context_t *finder, size_t bytes)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    ca_arena_t *heap;
    size_t count = ca_contexts_living(living);
    for (size_t i = 0; i < count; i++)
        if (living[i] != finder && living[i]->device == finder->device)
            for (unsigned k = 0; (heap = ca_heap(living[i], k)); k++)
                ca_arena_note_room(heap, bytes);
}

static int alloc(void *arg, size_t bytes, uint64_t *address)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    CUdeviceptr pointer = 0;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        code = ca_driver()->cuMemAlloc_v2(&pointer, bytes);
        ca_upstream_leave(&entered);
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        tell_room(context, 0);
    *address = pointer;
    return to_errno(context, code);
}

static int release(void *arg, uint64_t address, size_t bytes)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    (void)bytes;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        code = ca_driver()->cuMemFree_v2(address);
        /* Once more: the arena has forgotten it, nobody else would give it back. */
        if (code != CUDA_SUCCESS && !is_sticky(code))
            code = ca_driver()->cuMemFree_v2(address);
        ca_upstream_leave(&entered);
    }
    return to_errno(context, code);
}

static size_t available(void *arg)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    size_t free = SIZE_MAX, total;
    if (!driver->cuMemGetInfo_v2 || ca_upstream_enter(arg, &entered) != CUDA_SUCCESS)
        return SIZE_MAX;
    if (driver->cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS)
        free = SIZE_MAX;
    ca_upstream_leave(&entered);
    tell_room(arg, free);
    return free;
}

/* A stream that no work of the program is on: what we do there waits for nothing but itself. The
 * context has been entered. */
static CUresult own_stream(ca_context_t *context, CUstream *stream)
{
    const ca_driver_t *driver = ca_driver();
    CUstream unneeded = NULL;
    if (!driver->cuStreamCreate || !driver->cuStreamDestroy_v2 || !driver->cuStreamSynchronize)
        return CUDA_ERROR_NOT_SUPPORTED;
    ca_lock_take(&lock);
    *stream = context->own_stream;
    ca_lock_drop(&lock);
    if (*stream)
        return CUDA_SUCCESS;
    CUresult code = driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    if (code != CUDA_SUCCESS)
        return code;
    ca_lock_take(&lock);
    if (!context->own_stream) {
        context->own_stream = *stream;
    } else { /* another thread was first */
        unneeded = *stream;
        *stream = context->own_stream;
    }
    ca_lock_drop(&lock);
    if (unneeded)
        driver->cuStreamDestroy_v2(unneeded);
    return CUDA_SUCCESS;
}

/* Whether cuMemFreeAsync really gives memory of cuMemAlloc back. It takes it (cuda.h names no kind
 * of memory; the programming guide lets cudaFreeAsync free what cudaMalloc gave), but only the
 * driver can tell what becomes of it: the first time we look. */
enum { ASYNC_UNKNOWN, ASYNC_FREES, ASYNC_KEEPS };
static _Atomic int async_free = ASYNC_UNKNOWN;

bool ca_upstream_idle_free_waits(void)
{
    return atomic_load(&async_free) != ASYNC_FREES;
}

/* For memory that nothing touches any more. The plain free would wait for the whole device: for
 * work that may be waiting for the thread that asks for memory here. */
static int release_idle(void *arg, uint64_t address, size_t bytes)
{
    ca_context_t *context = arg;
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    int known = atomic_load(&async_free);
    if (known == ASYNC_KEEPS || !driver->cuMemFreeAsync)
        return release(arg, address, bytes);
    size_t before = known == ASYNC_UNKNOWN ? available(context) : 0;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return to_errno(context, code);
    CUstream stream;
    code = own_stream(context, &stream);
    if (code == CUDA_SUCCESS)
        code = driver->cuMemFreeAsync(address, stream);
    bool freed = code == CUDA_SUCCESS;
    if (freed)
        code = driver->cuStreamSynchronize(stream);
    ca_upstream_leave(&entered);
    if (!freed) {
        if (!is_sticky(code))
            atomic_store(&async_free, ASYNC_KEEPS);
        return release(arg, address, bytes);
    }
    if (known == ASYNC_UNKNOWN) {
        size_t after = available(context);
        atomic_store(&async_free,
                     after >= before && after - before >= bytes / 2 ? ASYNC_FREES : ASYNC_KEEPS);
    }
    return to_errno(context, code);
}

static ca_event_t *take_event(ca_context_t *context)
{
    ca_lock_take(&lock);
    ca_event_t *event = context->idle_events;
    if (event)
        context->idle_events = event->next;
    else
        event = ca_slab_take(&slab);
    ca_lock_drop(&lock);
    if (event) {
        event->next = NULL;
        event->context = context;
    }
    return event;
}

static void fence_release(void *arg, void *fence)
{
    (void)arg;
    ca_lock_take(&lock);
    for (ca_event_t *event = fence, *next; event; event = next) {
        next = event->next;
        if (!event->handle || atomic_load(&event->context->state) == CA_CONTEXT_RETIRED) {
            ca_slab_give(&slab, event);
        } else {
            event->next = event->context->idle_events;
            event->context->idle_events = event;
        }
    }
    ca_lock_drop(&lock);
}

/* The event's context has been entered. */
static CUresult make_handle(ca_event_t *event)
{
    if (event->handle)
        return CUDA_SUCCESS;
    /* Who waits for it sleeps: otherwise the driver keeps a processor busy for as long. */
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

/* Whether `member` is being destroyed, which may take long and is no business of the owner's. */
static bool about_to_go(const ca_context_t *owner, const ca_context_t *member)
{
    return member != owner && atomic_load(&member->state) == CA_CONTEXT_SUSPENDED;
}

/* Who may be at work on the memory of `context`: all of its device, and of other devices those that
 * ever asked for memory; on host memory all there are. One that never did is not waited for by a
 * free on another device, and may be at work for ever. */
static size_t fence_members(ca_context_t *context, bool host,
                            ca_context_t *members[CA_CONTEXTS_MAX])
{
    size_t count = ca_contexts_living(members), kept = 0;
    for (size_t i = 0; i < count; i++) {
        ca_context_t *member = members[i];
        if (member == context ||
            (!CA_MUTATED(fence_no_peers) &&
             (host || member->device == context->device || atomic_load(&member->asked))))
            members[kept++] = member;
    }
    return kept;
}

int ca_upstream_fence_record_over(ca_context_t *context, bool host, void **fence)
{
    const ca_driver_t *driver = ca_driver();
    if (!driver->cuCtxRecordEvent || !driver->cuEventCreate || !driver->cuEventQuery)
        return -ENOSYS;
    if (!ca_contexts_all_listed() || !ca_capture_recorder_enter())
        return -EAGAIN;

    int result = 0;
    ca_event_t *chain = NULL;
    ca_context_t *members[CA_CONTEXTS_MAX];
    size_t count = fence_members(context, host, members);
    for (size_t i = 0; i < count && result == 0; i++) {
        ca_context_t *member = members[i];
        ca_event_t *event = about_to_go(context, member) ? NULL : take_event(member);
        if (!event) {
            result = -EAGAIN; /* or no host memory: keep the epoch open */
            break;
        }
        event->next = chain;
        chain = event;
        CUresult code = record(member, event);
        if (code == CUDA_SUCCESS)
            continue;
        if (code == CUDA_ERROR_NOT_SUPPORTED)
            result = -ENOSYS;
        else if (is_sticky(code) && member == context)
            result = to_errno(context, code);
        else if (!is_sticky(code)) /* a broken peer runs nothing any more */
            result = -EAGAIN;
    }
    ca_capture_recorder_leave();
    if (result != 0) {
        fence_release(context, chain);
        chain = NULL;
    }
    *fence = chain;
    return result;
}

static int fence_record(void *arg, void **fence)
{
    return ca_upstream_fence_record_over(arg, false, fence);
}

static int fence_record_on(void *arg, void *queue, void **fence)
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
    fence_release(context, event);
    *fence = NULL;
    int result = to_errno(context, code);
    return result == -ENOMEM ? -EAGAIN : result; /* it was no device memory that ran out */
}

static int fence_join(void *arg, void *queue, void *fence)
{
    ca_context_t *context = arg;
    __typeof__(cuStreamWaitEvent) *join = ca_driver()->cuStreamWaitEvent;
    ca_entered_t entered;
    if (!join)
        return -ENOSYS;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return to_errno(context, code);
    for (ca_event_t *event = fence; event && code == CUDA_SUCCESS; event = event->next)
        code = join(queue, event->handle, CU_EVENT_WAIT_DEFAULT);
    ca_upstream_leave(&entered);
    return to_errno(context, code);
}

/* Asks or waits for one event: 1 passed, 0 not yet, negative errno. */
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
    if (context != owner && is_sticky(code))
        return 1; /* gone or broken: nothing runs in it any more */
    return to_errno(owner, code);
}

static int fence_done(void *arg, void *fence, bool wait)
{
    for (ca_event_t *event = fence; event; event = event->next) {
        int done = event_done(arg, event->context, event->handle, wait);
        if (done != 1)
            return done;
    }
    return 1;
}

static int fence_query(void *arg, void *fence)
{
    return fence_done(arg, fence, false);
}

static int wait_for_event(ca_context_t *owner, ca_context_t *context, CUevent handle)
{
    return event_done(owner, context, handle, true);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

#define LEAST_STEP_NS 20000

/* A bounded wait without the helper: sleep half as long as the last one took, then ask in steps.
 * Where the device sets the pace waits are alike, and few questions are needed; half, so that a
 * wait that was long once does not make all later ones long. */
static int ask_in_steps(ca_context_t *context, void *fence, uint64_t nanoseconds)
{
    uint64_t begin = now_ns(), spent = 0;
    uint64_t step = atomic_load_explicit(&context->last_wait_ns, memory_order_relaxed) / 2;
    for (;;) {
        if (step < LEAST_STEP_NS)
            step = LEAST_STEP_NS;
        if (step > nanoseconds - spent)
            step = nanoseconds - spent;
        struct timespec pause = {.tv_sec = (time_t)(step / 1000000000u),
                                 .tv_nsec = (long)(step % 1000000000u)};
        nanosleep(&pause, NULL);
        int done = fence_done(context, fence, false);
        spent = now_ns() - begin;
        if (done == 1)
            atomic_store_explicit(&context->last_wait_ns, spent, memory_order_relaxed);
        if (done != 0 || spent >= nanoseconds)
            return done;
        step = spent / 2;
    }
}

static int fence_wait(void *arg, void *fence, uint64_t nanoseconds)
{
    if (nanoseconds == UINT64_MAX)
        return fence_done(arg, fence, true);
    int done = ca_driver()->cuEventSynchronize
                   ? ca_waiter_wait(arg, fence, wait_for_event, nanoseconds)
                   : -EBUSY;
    return done == -EBUSY ? ask_in_steps(arg, fence, nanoseconds) : done;
}

int ca_upstream_synchronize_over(ca_context_t *context, bool host)
{
    ca_entered_t entered;
    ca_context_t *members[CA_CONTEXTS_MAX];
    if (ca_capture_active())
        return -EAGAIN; /* it would fail, or invalidate the capture */
    size_t count = fence_members(context, host, members);
    for (size_t i = 0; i < count; i++) {
        CUresult code = ca_upstream_enter(members[i], &entered);
        if (code == CUDA_SUCCESS) {
            code = ca_driver()->cuCtxSynchronize();
            ca_upstream_leave(&entered);
        }
        if (code != CUDA_SUCCESS && (members[i] == context || !is_sticky(code)))
            return to_errno(context, code) == -EIO ? -EIO : -EAGAIN;
    }
    return 0;
}

static int synchronize(void *arg)
{
    return ca_upstream_synchronize_over(arg, false);
}

size_t ca_upstream_trim_device(uint8_t device, const ca_context_t *except, size_t bytes,
                               ca_trim_t how)
{
    size_t given = 0;
    for (ca_context_t *c = ca_context_next(NULL); c && given < bytes; c = ca_context_next(c))
        if (c != except && c->device == device && atomic_load(&c->state) == CA_CONTEXT_SERVING)
            given += c->arena ? ca_heaps_trim(c, bytes - given, how) : ca_backend_async_trim(c);
    return given;
}

/* Memory pressure: other arenas on the device, then the driver's own pool, give back. */
static size_t reclaim(void *arg, size_t bytes)
{
    ca_context_t *context = arg;
    const ca_driver_t *driver = ca_driver();
    size_t given = ca_upstream_trim_device(context->device, context, bytes, CA_TRIM_IDLE);

    CUmemoryPool pool;
    ca_entered_t entered;
    if (given < bytes && driver->cuDeviceGetDefaultMemPool && driver->cuMemPoolTrimTo &&
        ca_upstream_enter(context, &entered) == CUDA_SUCCESS) {
        if (driver->cuDeviceGetDefaultMemPool(&pool, context->device) == CUDA_SUCCESS)
            driver->cuMemPoolTrimTo(pool, 0);
        ca_upstream_leave(&entered);
    }
    return given;
}

CUresult ca_upstream_zero(ca_context_t *context, CUdeviceptr address, size_t bytes)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    if (!driver->cuMemsetD8Async)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    CUstream stream;
    code = own_stream(context, &stream);
    if (code == CUDA_SUCCESS)
        code = driver->cuMemsetD8Async(address, 0, bytes, stream);
    if (code == CUDA_SUCCESS)
        code = driver->cuStreamSynchronize(stream);
    ca_upstream_leave(&entered);
    return code;
}

CUresult ca_upstream_zero_on(ca_context_t *context, CUdeviceptr address, size_t bytes,
                             CUstream stream)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    if (!driver->cuMemsetD8Async)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    code = driver->cuMemsetD8Async(address, 0, bytes, stream);
    ca_upstream_leave(&entered);
    return code;
}

void ca_upstream_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = sizeof(ca_event_t)}; /* the parent's stays mapped */
    ca_waiter_reset_after_fork();
}

const ca_upstream_t ca_upstream_cuda = {
    .alloc = alloc,
    .free = release,
    .free_idle = release_idle,
    .available = available,
    .fence_record = fence_record,
    .fence_record_on = fence_record_on,
    .fence_join = fence_join,
    .fence_query = fence_query,
    .fence_wait = fence_wait,
    .fence_release = fence_release,
    .synchronize = synchronize,
    .reclaim = reclaim,
};
