/* See upstream.h. */
#include "shim/upstream/upstream.h"
#include <errno.h>
#include "base/thread_state.h"
#include "base/history.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mutation.h"
#include "config/options.h"
#include "pool/fence/order.h"
#include "registry/table/registry.h"
#include "shim/upstream/backend_async.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/fences.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/mempools.h"
#include "shim/upstream/pages.h"
#include "shim/cuda/real_dlsym.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);

/* Counts the caller in, unless the context is destroyed or, for longer than a second, being
 * destroyed. */
static CUresult count_in(ca_context_t *context)
{
    for (int tries = 0; tries < 10000; tries++) {
        /* The thread is counted before it reads the state; ca_context_suspend does the reverse. */
        ca_in_flight_enter(&context->entered);
        int state = atomic_load(&context->state);
        if (state == CA_CONTEXT_SERVING)
            return CUDA_SUCCESS;
        ca_in_flight_leave(&context->entered);
        if (state == CA_CONTEXT_RETIRED)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        ca_sleep(50000);
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
    entered->cancel = ca_cancel_hold();
    CUresult code = count_in(context);
    if (code != CUDA_SUCCESS) {
        ca_cancel_resume(entered->cancel);
        return code;
    }
    if (driver->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != context->handle) {
        code = driver->cuCtxPushCurrent_v2(context->handle);
        if (code != CUDA_SUCCESS) {
            ca_in_flight_leave(&context->entered);
            ca_cancel_resume(entered->cancel);
            return code;
        }
        entered->pushed = true;
        entered->before = current;
    }
    if ((ca_capture_active() || !ca_hooks_in_place()) &&
        driver->cuThreadExchangeStreamCaptureMode) {
        entered->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        entered->relaxed =
            driver->cuThreadExchangeStreamCaptureMode(&entered->mode) == CUDA_SUCCESS;
    }
    return CUDA_SUCCESS;
}

/* The program goes on with this mode: a call that fails is repeated. */
static void restore_mode(ca_entered_t *entered)
{
    if (!entered->relaxed)
        return;
    const ca_driver_t *driver = ca_driver();
    if (driver->cuThreadExchangeStreamCaptureMode(&entered->mode) != CUDA_SUCCESS)
        driver->cuThreadExchangeStreamCaptureMode(&entered->mode);
    entered->relaxed = false;
}

void ca_upstream_leave(ca_entered_t *entered)
{
    CUcontext popped;
    restore_mode(entered);
    const ca_driver_t *driver = entered->pushed ? ca_driver() : NULL;
    if (driver && driver->cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS &&
        driver->cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS && driver->cuCtxSetCurrent)
        driver->cuCtxSetCurrent(entered->before);
    ca_in_flight_leave(&entered->context->entered);
    ca_cancel_resume(entered->cancel);
}

/* Errors after which every call on the context fails until it is destroyed ("sticky"), as the
 * descriptions of CUresult in cuda.h say: "the context cannot be used", "leaves the process in an
 * inconsistent state". */
bool ca_upstream_is_sticky(CUresult code)
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

int ca_upstream_result(ca_context_t *context, CUresult code)
{
    if (code == CUDA_SUCCESS)
        return 0;
    if (ca_upstream_is_sticky(code)) {
        int none = 0;
        if (atomic_compare_exchange_strong(&context->broken, &none, (int)code)) {
            ca_fast_invalidate();
            ca_info(
                "device %u: nothing is served in a context any more: the driver answers error %d "
                "there",
                context->device, (int)code);
        }
        return -EIO;
    }
    if (code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return -EAGAIN;
    /* Any other error is no shortage: releasing memory would not help. */
    return code == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EINVAL;
}

/* --- addresses on their way ------------------------------------------------------------------- */

/* Addresses that the driver gave and that are in no index yet, and those of frees that go to the
 * driver though no index has them. More at a time than these go unguarded. */
#define MOVING_MOST 64
#define MOVING_TRIES 2000

typedef struct moving {
    uint64_t address;
    bool obtained;
} moving_t;

static ca_lock_t moving_lock = CA_LOCK_INIT(CA_RANK_SPANS);
static moving_t moving[MOVING_MOST];
static unsigned moving_count;

/* Under the lock. */
static moving_t *find_moving(uint64_t address, bool obtained)
{
    for (unsigned i = 0; i < moving_count; i++)
        if (moving[i].address == address && moving[i].obtained == obtained)
            return &moving[i];
    return NULL;
}

/* Returns whether the other kind is there: then a free is not added, which must not go on. */
static bool add_moving(uint64_t address, bool obtained)
{
    ca_lock_take(&moving_lock);
    bool other = find_moving(address, !obtained);
    if ((obtained || !other) && moving_count < MOVING_MOST)
        moving[moving_count++] = (moving_t){address, obtained};
    ca_lock_drop(&moving_lock);
    return other;
}

static void drop_moving(uint64_t address, bool obtained)
{
    ca_lock_take(&moving_lock);
    moving_t *found = find_moving(address, obtained);
    if (found)
        *found = moving[--moving_count];
    ca_lock_drop(&moving_lock);
}

static bool is_forwarded(uint64_t address)
{
    ca_lock_take(&moving_lock);
    bool forwarded = find_moving(address, false);
    ca_lock_drop(&moving_lock);
    return forwarded;
}

bool ca_forward_begin(uint64_t address)
{
    return !add_moving(address, false);
}

void ca_forward_end(uint64_t address)
{
    drop_moving(address, false);
}

bool ca_upstream_obtained(ca_context_t *context, uint64_t address)
{
    unsigned type;
    __typeof__(cuPointerGetAttribute) *ask = ca_driver()->cuPointerGetAttribute;
    if (add_moving(address, true) && !CA_MUTATED(forwards_unseen)) {
        /* It came before that memory or took it; it is in the driver, and on its way out. */
        for (int tries = 0; is_forwarded(address) && tries < MOVING_TRIES; tries++)
            ca_sleep(50000);
        if (ask &&
            ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_ERROR_INVALID_VALUE) {
            drop_moving(address, true);
            return false;
        }
    }
    ca_in_flight_enter(&context->entered);
    return true;
}

void ca_upstream_placed(void *context, uint64_t address)
{
    drop_moving(address, true);
    ca_in_flight_leave(&((ca_context_t *)context)->entered);
}

void ca_upstream_share_free(const ca_context_t *finder, size_t bytes)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count = ca_contexts_living(living);
    for (size_t i = 0; i < count; i++)
        if (living[i] != finder && living[i]->device == finder->device && living[i]->arena)
            ca_arena_note_free_bytes(living[i]->arena, bytes);
}

static int alloc(void *arg, size_t bytes, uint64_t *address)
{
    ca_context_t *context = arg;
    ca_entered_t entered;
    CUdeviceptr pointer = 0;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        do
            code = ca_driver()->cuMemAlloc_v2(&pointer, bytes);
        while (code == CUDA_SUCCESS && !ca_upstream_obtained(context, pointer));
        ca_upstream_leave(&entered);
    }
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        ca_upstream_share_free(context, 0);
    if (code == CUDA_SUCCESS)
        ca_history_note(.event = CA_EVENT_SEGMENT, .address = pointer, .bytes = bytes,
                        .device = context->device, .kind = CA_KIND_DEVICE);
    *address = pointer;
    return ca_upstream_result(context, code);
}

static void note_trim(const ca_context_t *context, uint64_t address, size_t bytes)
{
    ca_history_note(.event = CA_EVENT_TRIM, .address = address, .bytes = bytes,
                    .device = context->device, .kind = CA_KIND_DEVICE);
}

/* It is noted before the call: another thread may get the address at once. */
static int release_plainly(ca_context_t *context, uint64_t address, size_t bytes)
{
    ca_entered_t entered;
    note_trim(context, address, bytes);
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        code = ca_driver()->cuMemFree_v2(address);
        /* Once more: the arena has dropped the segment, nothing else would free it. */
        if (code != CUDA_SUCCESS && !ca_upstream_is_sticky(code))
            code = ca_driver()->cuMemFree_v2(address);
        ca_upstream_leave(&entered);
    }
    return ca_upstream_result(context, code);
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
    ca_upstream_share_free(arg, free);
    return free;
}

/* A stream that carries no work of the program: a wait for it waits for this library's calls alone.
 * The context has been entered. */
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

/* Which streams a query is asked of makes no difference: ours has nothing on it. */
/* Makes a call that is potentially unsafe in a capture, in the calling thread's own mode, and that
 * does nothing else: what the driver answers, and does to the capture, is what it would to
 * cuMemAlloc or cuMemFree. No call of those two does: one gives memory, the other takes a segment.
 * cuda.h (cuThreadExchangeStreamCaptureMode) has one rule for all such calls, and on hardware the
 * rows of cuStreamQuery are those of both (tests/gpu/results: capture). */
static CUresult ask_unsafe(void)
{
    __typeof__(cuStreamQuery) *query = ca_driver()->cuStreamQuery;
    ca_context_t *context = ca_context_current(false, NULL);
    ca_entered_t entered;
    CUstream stream;
    for (ca_context_t *c = ca_context_next(NULL); c && !context; c = ca_context_next(c))
        if (atomic_load(&c->state) == CA_CONTEXT_SERVING && !atomic_load(&c->shares))
            context = c;
    if (!query || !context)
        return CUDA_SUCCESS;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    code = own_stream(context, &stream);
    restore_mode(&entered);
    if (code == CUDA_SUCCESS)
        code = query(stream);
    ca_upstream_leave(&entered);
    return code;
}

CUresult ca_upstream_capture_check(void)
{
    if (!ca_capture_active() ||
        (ca_options.capture == CA_CAPTURE_KEEP && ca_options.backend == CA_BACKEND_POOL))
        return CUDA_SUCCESS;
    CUresult code = ask_unsafe();
    return code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ||
                   code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
               ? code
               : CUDA_SUCCESS;
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

/* Releases a segment by the plain free, which waits for the whole device: for work, too, that may
 * be waiting for the thread that asks for memory here. So only where that work is done soon. */
static int release_when_idle(ca_context_t *context, uint64_t address, size_t bytes)
{
    void *fence;
    if (ca_fence_record(context, false, &fence) != 0)
        return release_plainly(context, address, bytes); /* without fences the work is unknown */
    bool busy = atomic_load(&context->busy);
    int passed =
        busy ? ca_fence_query(context, fence) : ca_fence_wait(context, fence, ca_options.oom_wait);
    ca_fence_release(context, fence);
    atomic_store(&context->busy, passed == 0);
    return passed == 0 ? -EAGAIN : release_plainly(context, address, bytes);
}

/* Releases a segment that no work uses any more. */
static int release_idle(ca_context_t *context, uint64_t address, size_t bytes)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    int known = atomic_load(&async_free);
    if (known == ASYNC_KEEPS || !driver->cuMemFreeAsync)
        return release_when_idle(context, address, bytes);
    size_t before = known == ASYNC_UNKNOWN ? available(context) : 0;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return ca_upstream_result(context, code);
    CUstream stream;
    code = own_stream(context, &stream);
    if (code == CUDA_SUCCESS) {
        note_trim(context, address, bytes);
        code = driver->cuMemFreeAsync(address, stream);
    }
    bool freed = code == CUDA_SUCCESS;
    if (freed)
        code = driver->cuStreamSynchronize(stream);
    ca_upstream_leave(&entered);
    if (!freed) {
        if (!ca_upstream_is_sticky(code))
            atomic_store(&async_free, ASYNC_KEEPS);
        return release_when_idle(context, address, bytes);
    }
    /* The driver has the memory, even if the wait failed: it must not count as refused. */
    bool waited = code == CUDA_SUCCESS;
    if (!ca_upstream_is_sticky(code))
        code = CUDA_SUCCESS;
    if (known == ASYNC_UNKNOWN && waited) {
        size_t after = available(context);
        atomic_store(&async_free,
                     after >= before && after - before >= bytes / 2 ? ASYNC_FREES : ASYNC_KEEPS);
    }
    return ca_upstream_result(context, code);
}

/* Where all work of its own context is done the plain free waits for nothing that may be waiting
 * for this very thread, though only the driver knows whether it waits for a peer. Otherwise a
 * segment that only others may still use is released without a wait for the context. */
static int release(void *arg, uint64_t address, size_t bytes, ca_free_t how)
{
    return how == CA_FREE_PENDING || (how == CA_FREE_PASSED && ca_fence_own_idle(arg))
               ? release_plainly(arg, address, bytes)
               : release_idle(arg, address, bytes);
}

size_t ca_upstream_trim_device(uint8_t device, const ca_context_t *except, size_t bytes,
                               ca_trim_t how)
{
    size_t released = 0;
    for (ca_context_t *c = ca_context_next(NULL); c && released < bytes; c = ca_context_next(c))
        if (c != except && c->device == device && atomic_load(&c->state) == CA_CONTEXT_SERVING)
            released += c->arena ? ca_arena_trim_as(c->arena, bytes - released, how)
                                 : ca_backend_async_trim(c, how);
    return released;
}

size_t ca_upstream_trim_driver(ca_context_t *context)
{
    __typeof__(cuDeviceGetDefaultMemPool) *ask = ca_driver()->cuDeviceGetDefaultMemPool;
    size_t released = 0;
    CUmemoryPool pool;
    ca_entered_t entered;
    if (!ask || ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return 0;
    if (ask(&pool, context->device) == CUDA_SUCCESS)
        released = ca_mempool_trim(pool);
    ca_upstream_leave(&entered);
    return released;
}

/* Memory pressure: other arenas on the device release idle segments, then the driver's own pool is
 * trimmed. */
static size_t reclaim(void *arg, size_t bytes)
{
    ca_context_t *context = arg;
    size_t released = ca_upstream_trim_device(context->device, context, bytes, CA_TRIM_IDLE);
    return released < bytes ? released + ca_upstream_trim_driver(context) : released;
}

CUresult ca_upstream_fill(ca_context_t *context, CUdeviceptr address, unsigned char value,
                          size_t bytes)
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
        code = driver->cuMemsetD8Async(address, value, bytes, stream);
    if (code == CUDA_SUCCESS)
        code = driver->cuStreamSynchronize(stream);
    ca_upstream_leave(&entered);
    return code;
}

CUresult ca_upstream_fill_on(ca_context_t *context, CUdeviceptr address, unsigned char value,
                             size_t bytes, CUstream stream)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    if (!driver->cuMemsetD8Async)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    code = driver->cuMemsetD8Async(address, value, bytes, stream);
    ca_order_unquiet();
    ca_upstream_leave(&entered);
    return code;
}

static CUresult read_from(ca_context_t *context, CUdeviceptr address, void *to, size_t bytes,
                          bool own, CUstream stream)
{
    const ca_driver_t *driver = ca_driver();
    ca_entered_t entered;
    if (!driver->cuMemcpyDtoHAsync_v2 || !driver->cuStreamSynchronize)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    if (own)
        code = own_stream(context, &stream);
    if (code == CUDA_SUCCESS)
        code = driver->cuMemcpyDtoHAsync_v2(to, address, bytes, stream);
    if (code == CUDA_SUCCESS)
        code = driver->cuStreamSynchronize(stream);
    ca_upstream_leave(&entered);
    return code;
}

CUresult ca_upstream_read(ca_context_t *context, CUdeviceptr address, void *to, size_t bytes)
{
    return read_from(context, address, to, bytes, true, NULL);
}

CUresult ca_upstream_read_on(ca_context_t *context, CUdeviceptr address, void *to, size_t bytes,
                             CUstream stream)
{
    return read_from(context, address, to, bytes, false, stream);
}

void ca_upstream_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    ca_lock_init(&moving_lock, CA_RANK_SPANS);
    moving_count = 0;
    ca_fences_reset_after_fork();
    ca_pages_reset_after_fork();
}

const ca_upstream_t ca_upstream_cuda = {
    .alloc = alloc,
    .free = release,
    .placed = ca_upstream_placed,
    .available = available,
    .fence_record = ca_fence_record,
    .fence_record_on = ca_fence_record_on,
    .fence_join = ca_fence_join,
    .fence_query = ca_fence_query,
    .fence_wait = ca_fence_wait,
    .fence_release = ca_fence_release,
    .synchronize = ca_fence_synchronize,
    .reclaim = reclaim,
    .forget = ca_registry_forget,
    .end = ca_registry_end,
    .pages = &ca_pages_cuda,
};
