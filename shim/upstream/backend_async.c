/* See backend_async.h.
 *
 * Memory is allocated on a stream that carries nothing else, and is usable when that stream has
 * passed. A plain free promises more than cuMemFreeAsync: all work submitted before it, on every
 * stream, may have used the memory. So a fence is recorded behind all that work, and the memory is
 * held here until it has passed; then it is released to the driver. A free in the driver's order
 * behind work that is still running would do as well, but for one thing: a driver that runs short
 * of stream-ordered memory may wait for such frees, and that work may be waiting for the very
 * thread that allocates.
 *
 * The memory is released by cuMemFree, which "will not perform any implicit synchronization when
 * the pointer was allocated with cuMemAllocAsync or cuMemAllocFromPoolAsync" (cuda.h), rather than
 * by a free on a stream, which takes effect a moment later. One takes about as long as the other
 * (tests/gpu/results: cudaFree of async memory). [hw] Whether the pool keeps it all the same.
 *
 * When memory runs out an allocation waits for the fences of earlier frees, oldest first: without
 * bound for work that a plain free of this thread would have waited for, and as long as `oom_wait`
 * says for memory that other threads freed, and for the work of other contexts, which the fences
 * cover too.
 *
 * While a stream is captured no fence can be recorded, and the plain free of such memory waits for
 * nothing: memory freed then is held until a fence was recorded, later, and has passed. That fence
 * also covers work submitted after the free, so no thread waits for it.
 *
 * The program's own frees in the driver's order remain. An allocation that the program did not
 * write in that order must not wait for them: where some may be under way cuMemAlloc is called,
 * which waits for nothing.
 *
 * Memory of an explicit pool has no IPC handle, and a peer reaches it only where the pool grants
 * access. [hw] Whether it dies with its context: the pool is destroyed here, and ends with its last
 * allocation. */
#include "shim/upstream/backend_async.h"
#include <errno.h>
#include "base/clock.h"
#include "base/counters.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/options.h"
#include "pool/fence/fence_order.h"
#include "pool/growth/giving.h"
#include "shim/upstream/async_pool.h"
#include "shim/upstream/attributes.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/mempools.h"
#include "shim/upstream/upstream.h"

/* Memory that the program has freed and that is not released yet. */
typedef struct ca_async_free {
    struct ca_async_free *next, *prev;
    CUdeviceptr address;
    void *fence;     /* NULL until one could be recorded */
    uint64_t number; /* of the fence: see pool/fence/fence_order.h */
    unsigned users;  /* threads that hold a pointer to it */
    bool claimed;    /* one of them changes it, or releases the memory */
    bool ended;      /* in no list any more; the last user recycles it */
} ca_async_free_t;

typedef struct ca_async_backend {
    ca_async_pool_t own;
    ca_async_free_t *first, *last; /* in the order of their fences; some have none yet */
    size_t count;
    _Atomic bool stuck; /* an earlier wait for its work timed out */
} ca_async_backend_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t backends = {.object_bytes = sizeof(ca_async_backend_t)};
static ca_slab_t frees = {.object_bytes = sizeof(ca_async_free_t)};
static _Atomic bool unusable; /* the driver does not support it */

static ca_async_backend_t *backend_of(ca_context_t *context)
{
    ca_lock_take(&lock);
    ca_async_backend_t *backend = context->backend;
    ca_lock_drop(&lock);
    return backend;
}

/* Makes the back end where it is missing; NULL when that fails. The context has been entered. */
static ca_async_backend_t *have_backend(ca_context_t *context)
{
    ca_async_backend_t *backend = backend_of(context);
    ca_async_pool_t made;
    if (backend)
        return backend;
    int rc = ca_async_pool_make(context, &made);
    if (rc < 0 && !atomic_exchange(&unusable, true))
        ca_info("backend:async: the driver's stream-ordered allocator cannot be used here, so that "
                "cudaMalloc is the driver's from now on");
    ca_lock_take(&lock);
    if (!context->backend && rc > 0 && (context->backend = ca_slab_take(&backends))) {
        context->backend->own = made;
        made = (ca_async_pool_t){0};
    }
    backend = context->backend;
    ca_lock_drop(&lock);
    ca_async_pool_destroy(&made); /* another thread was first, or a part could not be made */
    return backend;
}

/* --- the held memory ----------------------------------------------------------------------------
 */

/* Under the lock; so is the next function. */
static void link_last(ca_async_backend_t *backend, ca_async_free_t *free)
{
    free->next = NULL;
    free->prev = backend->last;
    *(backend->last ? &backend->last->next : &backend->first) = free;
    backend->last = free;
    backend->count++;
}

static void unlink_one(ca_async_backend_t *backend, ca_async_free_t *free)
{
    *(free->prev ? &free->prev->next : &backend->first) = free->next;
    *(free->next ? &free->next->prev : &backend->last) = free->prev;
    backend->count--;
}

static void forget(ca_context_t *context, ca_async_free_t *free)
{
    if (free->fence)
        ca_upstream_fence_release(&ca_upstream_cuda, context, free->fence);
    ca_lock_take(&lock);
    ca_slab_give(&frees, free);
    ca_lock_drop(&lock);
}

/* False where the context was destroyed meanwhile, and the memory with it. */
static bool push(const ca_context_t *context, ca_async_backend_t *backend, ca_async_free_t *free)
{
    ca_lock_take(&lock);
    bool serves = context->backend == backend;
    if (serves)
        link_last(backend, free);
    ca_lock_drop(&lock);
    return serves;
}

/* The oldest one, with `wait` the oldest that a thread may wait for; NULL: none. One without a
 * fence is claimed. All stay in the list, so that a second free of the memory is recognised. */
static ca_async_free_t *use_oldest(ca_async_backend_t *backend, bool wait)
{
    ca_lock_take(&lock);
    ca_async_free_t *free = backend->first;
    while (free && (free->claimed || (wait && free->number == CA_FENCE_NONE)))
        free = free->next;
    if (free) {
        free->users++;
        free->claimed = !free->fence;
    }
    ca_lock_drop(&lock);
    return free;
}

static bool claim(ca_async_free_t *free)
{
    ca_lock_take(&lock);
    bool was = free->claimed || free->ended;
    free->claimed = true;
    ca_lock_drop(&lock);
    return !was;
}

/* The result of a use: nothing; it is `claimed` no more; its fence, recorded now, is the newest;
 * the memory was released to the driver. */
typedef enum { UNCHANGED, LEFT, FENCED, RELEASED } change_t;

static void end_use(ca_context_t *context, ca_async_backend_t *backend, ca_async_free_t *free,
                    change_t change)
{
    ca_lock_take(&lock);
    if (change != UNCHANGED)
        free->claimed = false;
    if (!free->ended && (change == FENCED || change == RELEASED))
        unlink_one(backend, free);
    if (!free->ended && change == FENCED)
        link_last(backend, free);
    free->ended |= change == RELEASED;
    bool last = --free->users == 0 && free->ended;
    ca_lock_drop(&lock);
    if (last)
        forget(context, free);
}

static size_t held(ca_async_backend_t *backend)
{
    ca_lock_take(&lock);
    size_t count = backend->count;
    ca_lock_drop(&lock);
    return count;
}

/* Releases memory that no work uses any more. */
static bool release(ca_context_t *context, CUdeviceptr address)
{
    ca_entered_t entered;
    if (ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return false;
    ca_count(upstream_frees);
    CUresult code = ca_driver()->cuMemFree_v2(address);
    ca_upstream_leave(&entered);
    return code == CUDA_SUCCESS;
}

/* 1, 0 or an error. A plain free of this thread would have waited for the context's own work; all
 * other work may be waiting for this very thread. That wait takes what it needs of `left`
 * nanoseconds. */
static int wait_for(ca_context_t *context, ca_async_backend_t *backend, const ca_async_free_t *free,
                    uint64_t *left)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    int done = 0;
    if (free->number <= ca_fence_freed_after(context))
        done = ca_upstream_fence_wait(cuda, context, free->fence, CA_WAIT_OWN);
    if (done >= 0)
        done = ca_upstream_fence_query(cuda, context, free->fence);
    if (done == 0 && *left && !atomic_load(&backend->stuck)) {
        uint64_t begin = ca_clock_ns();
        done = ca_upstream_fence_wait(cuda, context, free->fence, *left);
        uint64_t took = ca_clock_ns() - begin;
        *left = took < *left ? *left - took : 0;
        atomic_store(&backend->stuck, done == 0);
    }
    return done;
}

/* Releases one whose fence has passed, unless another thread is faster. */
static change_t release_one(ca_context_t *context, ca_async_backend_t *backend,
                            ca_async_free_t *free)
{
    change_t change = UNCHANGED;
    ca_giving_begin();
    if (claim(free))
        change = release(context, free->address) ? RELEASED : LEFT;
    if (change == RELEASED)
        atomic_store(&backend->stuck, false);
    ca_giving_end(change == RELEASED);
    return change;
}

/* Releases memory whose fences have passed, oldest first. With `left` (see wait_for) it waits for
 * the oldest, and releases no more than one. Returns whether any was released. */
static bool collect(ca_context_t *context, ca_async_backend_t *backend, uint64_t *left)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    ca_async_free_t *free;
    bool released = false;
    for (size_t tries = held(backend);
         tries > 0 && !(left && released) && (free = use_oldest(backend, left)) != NULL; tries--) {
        if (!free->fence) {
            int rc = ca_upstream_fence_record(cuda, context, true, &free->fence);
            end_use(context, backend, free, rc == 0 ? FENCED : LEFT);
            if (rc != 0)
                break;
            continue;
        }
        int passed = left ? wait_for(context, backend, free, left)
                          : ca_upstream_fence_query(cuda, context, free->fence);
        change_t change = passed == 1 ? release_one(context, backend, free) : UNCHANGED;
        end_use(context, backend, free, change);
        released |= change == RELEASED;
        if (passed != 1 || change == LEFT)
            break;
    }
    return released;
}

/* --- allocating ---------------------------------------------------------------------------------
 */

static CUresult alloc_once(ca_context_t *context, ca_async_backend_t **backend,
                           CUdeviceptr *address, size_t bytes)
{
    ca_entered_t entered;
    if (ca_async_pool_may_wait(context))
        return CUDA_ERROR_NOT_READY;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    *backend = have_backend(context);
    code =
        *backend ? ca_async_pool_alloc(&(*backend)->own, address, bytes) : CUDA_ERROR_NOT_SUPPORTED;
    ca_upstream_leave(&entered);
    return code;
}

/* When no memory is left it waits for earlier frees; not for frees that other threads make
 * meanwhile, which may never end. */
static CUresult alloc(ca_context_t *context, ca_async_backend_t **backend, CUdeviceptr *address,
                      size_t bytes)
{
    uint64_t left = ca_options.oom_wait;
    unsigned released = ca_giving_done();
    size_t rounds = *backend ? held(*backend) : 0;
    CUresult code = alloc_once(context, backend, address, bytes);
    if (code == CUDA_ERROR_OUT_OF_MEMORY && rounds > 0 && ca_upstream_trim_driver(context) > 0)
        code = alloc_once(context, backend, address, bytes);
    for (; code == CUDA_ERROR_OUT_OF_MEMORY && rounds > 0 &&
           (collect(context, *backend, NULL) || collect(context, *backend, &left) ||
            ca_giving_wait(&released));
         rounds--)
        code = alloc_once(context, backend, address, bytes);
    return code;
}

bool ca_backend_async_alloc(ca_context_t *context, CUdeviceptr *address, size_t bytes,
                            CUstream *stream)
{
    CUdeviceptr pointer;
    /* Memory of a created context would outlive it: see ca_mempool_served. */
    if (ca_options.backend != CA_BACKEND_ASYNC || !context || context->created ||
        ca_capture_active() || ca_context_has_peers(context) || atomic_load(&unusable) ||
        atomic_load(&context->broken) || !ca_async_pool_possible())
        return false;
    ca_async_backend_t *backend = backend_of(context);
    if (backend)
        collect(context, backend, NULL);
    CUresult code = alloc(context, &backend, &pointer, bytes);
    if (code == CUDA_ERROR_OUT_OF_MEMORY)
        ca_backend_async_trim(context, CA_TRIM_IDLE); /* before cuMemAlloc is called */
    if (code != CUDA_SUCCESS)
        return false;
    if ((ca_options.debug & CA_DEBUG_ZERO) &&
        ca_upstream_fill(context, pointer, 0, bytes) != CUDA_SUCCESS) {
        release(context, pointer);
        return false;
    }
    *address = pointer;
    *stream = backend->own.allocs;
    return true;
}

void ca_backend_async_untracked(ca_context_t *context, CUdeviceptr address)
{
    release(context, address);
}

/* --- freeing ------------------------------------------------------------------------------------
 */

bool ca_backend_async_gave(const ca_allocation_t *record)
{
    return record->kind == CA_KIND_DEVICE && !record->owner && record->stream;
}

/* Holds it behind `fence`, or until there is one. */
static CUresult hold(ca_context_t *context, ca_async_backend_t *backend, CUdeviceptr address,
                     void *fence)
{
    uint64_t number = fence ? ca_fence_number() : CA_FENCE_NONE;
    if (fence)
        ca_fence_note_free(context, number);
    ca_lock_take(&lock);
    ca_async_free_t *free = ca_slab_take(&frees);
    ca_lock_drop(&lock);
    if (!free) {
        if (fence)
            ca_upstream_fence_release(&ca_upstream_cuda, context, fence);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *free = (ca_async_free_t){.address = address, .fence = fence, .number = number};
    if (!push(context, backend, free))
        forget(context, free);
    else
        collect(context, backend, NULL);
    return CUDA_SUCCESS;
}

CUresult ca_backend_async_free(const ca_allocation_t *record)
{
    CUresult code = ca_context_check();
    if (code != CUDA_SUCCESS)
        return code;
    ca_context_t *context = ca_context_numbered(record->context);
    ca_async_backend_t *backend = context ? backend_of(context) : NULL;
    if (!backend || atomic_load(&context->state) == CA_CONTEXT_RETIRED)
        return CUDA_SUCCESS; /* the context was destroyed meanwhile, and its memory with it */
    ca_attributes_clear(record->address);
    if (ca_options.free_sync)
        ca_upstream_cuda.synchronize(context, false);
    void *fence;
    if (ca_upstream_fence_record(&ca_upstream_cuda, context, true, &fence) != 0)
        fence = NULL;
    code = fence ? CUDA_SUCCESS : (CUresult)atomic_load(&context->broken);
    return code == CUDA_SUCCESS ? hold(context, backend, record->address, fence) : code;
}

bool ca_backend_async_holds(uint64_t address)
{
    bool found = false;
    ca_lock_take(&lock);
    for (ca_context_t *c = ca_context_next(NULL); c && !found; c = ca_context_next(c))
        for (ca_async_free_t *f = c->backend ? c->backend->first : NULL; f && !found; f = f->next)
            found = f->address == address;
    ca_lock_drop(&lock);
    return found;
}

/* --- releasing ----------------------------------------------------------------------------------
 */

size_t ca_backend_async_idle(ca_context_t *context)
{
    ca_entered_t entered;
    ca_async_backend_t *backend = backend_of(context);
    if (!backend)
        return 0;
    collect(context, backend, NULL);
    if (ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return 0;
    size_t kept = ca_mempool_kept(backend->own.pool); /* the pool is not destroyed meanwhile */
    ca_upstream_leave(&entered);
    return kept;
}

static size_t trim(ca_context_t *context, ca_async_backend_t *backend)
{
    ca_entered_t entered;
    collect(context, backend, NULL);
    if (ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return 0;
    size_t released = ca_mempool_trim(backend->own.pool);
    ca_upstream_leave(&entered);
    return released;
}

/* Releases all that the thread would have waited for in its own frees, but no more than one of the
 * others: other threads may go on freeing for ever, and the caller comes again. */
static size_t trim_after_waits(ca_context_t *context, ca_async_backend_t *backend)
{
    uint64_t none = 0, left = ca_options.oom_wait;
    size_t rounds = held(backend);
    while (rounds > 0 && collect(context, backend, &none))
        rounds--;
    size_t released = trim(context, backend);
    if (released == 0 && collect(context, backend, &left))
        released = trim(context, backend);
    return released;
}

size_t ca_backend_async_trim(ca_context_t *context, ca_trim_t how)
{
    ca_async_backend_t *backend = backend_of(context);
    if (!backend || !ca_driver()->cuMemPoolTrimTo)
        return 0;
    size_t released = trim(context, backend);
    if (how == CA_TRIM_SHORTAGE && released == 0)
        released = ca_upstream_trim_driver(context);
    if (how == CA_TRIM_SHORTAGE && released == 0)
        released = trim_after_waits(context, backend);
    return released;
}

void ca_backend_async_open_to(ca_context_t *context, CUdevice device)
{
    ca_context_let_peer_in(context);
    if (!context)
        return;
    ca_async_backend_t *backend = backend_of(context);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    __typeof__(cuMemPoolSetAccess) *set = ca_driver()->cuMemPoolSetAccess;
    if (backend && device != context->device &&
        (!set || set(backend->own.pool, &access, 1) != CUDA_SUCCESS))
        ca_warn_once("backend:async: a peer cannot reach what was allocated before it was let in");
}

void ca_backend_async_destroyed(ca_context_t *context)
{
    ca_async_free_t *free = NULL;
    ca_lock_take(&lock);
    ca_async_backend_t *backend = context->backend;
    context->backend = NULL; /* another thread may still read it: never recycled */
    ca_lock_drop(&lock);
    if (!backend)
        return;
    do {
        ca_lock_take(&lock);
        if ((free = backend->first)) {
            unlink_one(backend, free);
            free->ended = true;
            free->users++;
        }
        ca_lock_drop(&lock);
        if (free)
            end_use(context, backend, free, UNCHANGED);
    } while (free);
    ca_driver()->cuMemPoolDestroy(backend->own.pool);
}

void ca_backend_async_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    backends = (ca_slab_t){.object_bytes = sizeof(ca_async_backend_t)};
    frees = (ca_slab_t){.object_bytes = sizeof(ca_async_free_t)};
    ca_async_pool_reset_after_fork();
}
