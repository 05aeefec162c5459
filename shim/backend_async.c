/* See backend_async.h.
 *
 * Memory is allocated on a stream of ours that has nothing else on it, and is usable when that has
 * passed. A plain free promises more than cuMemFreeAsync: all work submitted before it, on every
 * stream, may have used the memory. So a second stream of ours is made to wait, on the device, for
 * a fence behind all that work, and the memory is freed there.
 *
 * The pool may give the memory out again when it sees the free done, not before: with
 * REUSE_ALLOW_INTERNAL_DEPENDENCIES it would make the allocation wait for work that is still
 * running while there is memory left. Where there is none we wait for the fences of earlier frees
 * ourselves, oldest first: for what a plain free of this thread would have waited for, and as long
 * as `oom_wait` says for what other threads freed, and for the work of other contexts, behind which
 * the frees stand too.
 *
 * While anything is captured no fence can be recorded, and the plain free of such memory waits for
 * nothing: what is freed then is held until a fence was recorded, later, and has passed. That one
 * also covers work submitted after the free, so nobody waits for it.
 *
 * Memory that an explicit pool gave has no IPC handle, and a peer reaches it only where the pool
 * says so. [hw] Whether it dies with its context: we destroy the pool, which goes when its last
 * allocation does. */
#include "shim/backend_async.h"
#include <errno.h>
#include <limits.h>
#include "config/clock.h"
#include "config/counters.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/mem.h"
#include "config/options.h"
#include "pool/fence_order.h"
#include "pool/ladder.h"
#include "pool/look.h"
#include "shim/async_pool.h"
#include "shim/attributes.h"
#include "shim/capture.h"
#include "shim/driver_table.h"
#include "shim/mempools.h"
#include "shim/track.h"
#include "shim/upstream.h"

#define UNWAITED_MOST 32 /* frees under way before a free asks about the oldest */
#define SHORTAGE_BYTES ((size_t)64 << 20)

/* A free under way. */
typedef struct ca_async_free {
    struct ca_async_free *next;
    CUdeviceptr held; /* not given to the driver yet; 0 when it was */
    void *work;       /* a fence behind all work before the free, where `fence` is not that one */
    void *fence;      /* behind the free; NULL until it could be recorded */
    uint64_t number;  /* of the fence behind that work: see pool/fence_order.h */
} ca_async_free_t;

typedef struct ca_async_backend {
    ca_async_pool_t own;
    ca_async_free_t *first, *last;
    size_t count;
    _Atomic bool stuck; /* behind work that was waited for in vain */

    ca_look_t look; /* under the lock */
    size_t taken;   /* bytes that were ever allocated, for it */
} ca_async_backend_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t backends = {.object_bytes = sizeof(ca_async_backend_t)};
static ca_slab_t frees = {.object_bytes = sizeof(ca_async_free_t)};
static _Atomic size_t held_count;
static _Atomic bool unusable; /* the driver cannot */

static ca_async_backend_t *backend_of(ca_context_t *context)
{
    ca_lock_take(&lock);
    ca_async_backend_t *backend = context->backend;
    ca_lock_drop(&lock);
    return backend;
}

/* Made where it is missing; NULL when it cannot be. The context has been entered. */
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
    ca_async_pool_destroy(&made); /* another thread was first, or something could not be had */
    return backend;
}

/* --- frees under way ----------------------------------------------------------------------------
 */

/* False where the context has ended meanwhile: nobody looks there any more. */
static bool push(const ca_context_t *context, ca_async_backend_t *backend, ca_async_free_t *free,
                 bool in_front)
{
    ca_lock_take(&lock);
    if (context->backend != backend) {
        ca_lock_drop(&lock);
        return false;
    }
    if (in_front || !backend->first) {
        free->next = backend->first;
        backend->first = free;
        if (!free->next)
            backend->last = free;
    } else {
        free->next = NULL;
        backend->last->next = free;
        backend->last = free;
    }
    backend->count++;
    ca_lock_drop(&lock);
    return true;
}

/* The oldest one, out of the list; NULL when there are not more than `keep`. */
static ca_async_free_t *pop(ca_async_backend_t *backend, size_t keep)
{
    ca_lock_take(&lock);
    ca_async_free_t *free = backend->count > keep ? backend->first : NULL;
    if (free) {
        backend->first = free->next;
        backend->count--;
    }
    ca_lock_drop(&lock);
    return free;
}

static void forget(ca_context_t *context, ca_async_free_t *free)
{
    if (free->work)
        ca_upstream_fence_release(&ca_upstream_cuda, context, free->work);
    if (free->fence)
        ca_upstream_fence_release(&ca_upstream_cuda, context, free->fence);
    if (free->held)
        atomic_fetch_sub(&held_count, 1);
    ca_lock_take(&lock);
    ca_slab_give(&frees, free);
    ca_lock_drop(&lock);
}

/* On a stream of ours, behind all that it was made to wait for. */
static CUresult free_on_stream(ca_context_t *context, CUdeviceptr address, CUstream stream)
{
    ca_entered_t entered;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    ca_count(upstream_frees);
    code = ca_driver()->cuMemFreeAsync(address, stream);
    ca_upstream_leave(&entered);
    return code;
}

/* 1, 0 or an error. A plain free of this thread's would have waited for the context's own work; all
 * other may be waiting for this very thread. */
static int wait_for_free(ca_context_t *context, ca_async_backend_t *backend,
                         const ca_async_free_t *free)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    void *work = free->work ? free->work : free->fence;
    int done = 0;
    if (free->number <= ca_fence_freed_after(context))
        done = ca_upstream_fence_wait(cuda, context, work, CA_WAIT_OWN);
    if (done >= 0)
        done = ca_upstream_fence_query(cuda, context, free->fence);
    if (done == 0 && !atomic_load(&backend->stuck))
        done = ca_upstream_fence_wait(cuda, context, free->fence, ca_options.oom_wait);
    atomic_store(&backend->stuck, done == 0);
    return done;
}

/* Whether the free is done; asks, or waits for a fence that was recorded in the free itself. What
 * was held is given to the driver now, on the stream that has nothing on it: nobody uses it. */
static bool settle(ca_context_t *context, ca_async_backend_t *backend, ca_async_free_t *free,
                   bool wait)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    if (!free->fence && ca_upstream_fence_record(cuda, context, true, &free->fence) != 0)
        return false;
    int done = wait && !free->held ? wait_for_free(context, backend, free)
                                   : ca_upstream_fence_query(cuda, context, free->fence);
    return done == 1 && (!free->held ||
                         free_on_stream(context, free->held, backend->own.allocs) == CUDA_SUCCESS);
}

/* Goes through what is under way, oldest first, until one is not done; what is held has no order.
 * With `wait` for one only. Returns whether there was any progress. */
static bool collect(ca_context_t *context, ca_async_backend_t *backend, size_t keep, bool wait)
{
    ca_async_free_t *free;
    bool progress = false;
    for (size_t held = atomic_load(&held_count) + 1;
         !(wait && progress) && (free = pop(backend, keep)) != NULL;) {
        if (settle(context, backend, free, wait)) {
            forget(context, free);
            progress = true;
            continue;
        }
        bool ordered = !free->held; /* once it is back, another thread may take it out for good */
        if (!push(context, backend, free, ordered))
            forget(context, free);
        if (ordered || --held == 0)
            break;
    }
    return progress;
}

/* --- allocating ---------------------------------------------------------------------------------
 */

static CUresult alloc_once(ca_context_t *context, ca_async_backend_t **backend,
                           CUdeviceptr *address, size_t bytes)
{
    ca_entered_t entered;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code != CUDA_SUCCESS)
        return code;
    *backend = have_backend(context);
    code =
        *backend ? ca_async_pool_alloc(&(*backend)->own, address, bytes) : CUDA_ERROR_NOT_SUPPORTED;
    ca_upstream_leave(&entered);
    return code;
}

static size_t under_way(ca_async_backend_t *backend)
{
    ca_lock_take(&lock);
    size_t count = backend->count;
    ca_lock_drop(&lock);
    return count;
}

static bool plenty(ca_async_backend_t *backend, size_t wanted)
{
    ca_lock_take(&lock);
    bool is = ca_look_serves(&backend->look, backend->taken, wanted, 0, ca_clock_ns());
    ca_lock_drop(&lock);
    return is;
}

static size_t ask_for_room(ca_context_t *context, ca_async_backend_t *backend)
{
    size_t found = ca_async_pool_room(context, &backend->own);
    ca_lock_take(&lock);
    backend->look = (ca_look_t){found, backend->taken, ca_clock_ns() + CA_LOOK_SERVES_NS};
    ca_lock_drop(&lock);
    return found;
}

/* A driver that runs short while frees are under way may wait for all work, some of which may be
 * waiting for this very thread. So where memory is short we wait first, for those frees alone. Of
 * `most` it returns those that were not waited for. */
static size_t make_room(ca_context_t *context, ca_async_backend_t *backend, size_t bytes,
                        size_t most)
{
    size_t wanted = bytes > SIZE_MAX / 2 - SHORTAGE_BYTES ? SIZE_MAX : 2 * bytes + SHORTAGE_BYTES;
    bool asks = true; /* the driver's own pool, once */
    if (plenty(backend, wanted))
        return most;
    while (most > 0 && ask_for_room(context, backend) < wanted) {
        bool given = asks && ca_upstream_trim_driver(context) > 0;
        asks = false;
        if (given)
            continue;
        if (!collect(context, backend, 0, true))
            break;
        most--;
    }
    return most;
}

/* Behind what was waited for in vain the driver would wait without bound. */
static bool in_vain(ca_context_t *context, ca_async_backend_t *backend, size_t bytes)
{
    return atomic_load(&backend->stuck) && under_way(backend) > 0 &&
           ask_for_room(context, backend) < bytes;
}

bool ca_backend_async_blocks(ca_context_t *context, size_t bytes)
{
    ca_async_backend_t *backend = context ? backend_of(context) : NULL;
    size_t waits = backend ? under_way(backend) : 0;
    return waits && make_room(context, backend, bytes, waits) > 0 &&
           in_vain(context, backend, bytes);
}

/* What earlier frees give back is waited for when there is nothing left; not what others free
 * meanwhile, who may go on for ever. */
static CUresult alloc(ca_context_t *context, ca_async_backend_t **backend, CUdeviceptr *address,
                      size_t bytes)
{
    size_t waits = *backend ? under_way(*backend) : 0;
    if (waits)
        waits = make_room(context, *backend, bytes, waits);
    if (waits && in_vain(context, *backend, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult code = alloc_once(context, backend, address, bytes);
    for (; code == CUDA_ERROR_OUT_OF_MEMORY && waits && collect(context, *backend, 0, true);
         waits--)
        code = alloc_once(context, backend, address, bytes);
    if (code == CUDA_SUCCESS) {
        ca_lock_take(&lock);
        (*backend)->taken += bytes;
        ca_lock_drop(&lock);
    }
    return code;
}

bool ca_backend_async_alloc(ca_context_t *context, CUdeviceptr *address, size_t bytes)
{
    CUdeviceptr pointer;
    /* Of a created context it would outlive it: see ca_mempool_served. */
    if (ca_options.backend != CA_BACKEND_ASYNC || !context || context->created ||
        ca_capture_active() || ca_context_has_peers(context) || atomic_load(&unusable) ||
        atomic_load(&context->broken) || !ca_async_pool_possible())
        return false;
    ca_async_backend_t *backend = backend_of(context);
    if (backend && atomic_load(&held_count) > 0)
        collect(context, backend, 0, false);
    if (alloc(context, &backend, &pointer, bytes) != CUDA_SUCCESS) {
        ca_backend_async_trim(context); /* before cuMemAlloc is asked */
        return false;
    }
    if ((ca_options.zero && ca_upstream_fill(context, pointer, 0, bytes) != CUDA_SUCCESS) ||
        ca_track_alloc(CA_KIND_DEVICE, pointer, bytes, context, backend->own.allocs, NULL) != 0) {
        /* Without a record a free could not tell where it came from. */
        free_on_stream(context, pointer, backend->own.allocs);
        return false;
    }
    *address = pointer;
    return true;
}

/* --- freeing ------------------------------------------------------------------------------------
 */

bool ca_backend_async_gave(const ca_record_t *record)
{
    return record->kind == CA_KIND_DEVICE && !record->owner && record->stream;
}

/* Frees behind the fence `work`, and makes one behind the free itself. Whether the driver took it.
 */
static bool free_behind(ca_context_t *context, ca_async_backend_t *backend, CUdeviceptr address,
                        void *work, void **fence)
{
    const ca_upstream_t *cuda = &ca_upstream_cuda;
    if (ca_upstream_fence_join(cuda, context, backend->own.frees, work) != 0 ||
        free_on_stream(context, address, backend->own.frees) != CUDA_SUCCESS)
        return false;
    if (ca_upstream_fence_record_on(cuda, context, backend->own.frees, fence) != 0)
        *fence = NULL;
    return true;
}

/* Takes note of a free that was given to the driver, or could not be. */
static CUresult note(ca_context_t *context, ca_async_backend_t *backend, void *work, void *fence,
                     CUdeviceptr held)
{
    uint64_t number = work ? ca_fence_number() : CA_FENCE_NONE;
    if (work)
        ca_fence_note_free(context, number);
    ca_lock_take(&lock);
    ca_async_free_t *free = ca_slab_take(&frees);
    ca_lock_drop(&lock);
    if (!free) {
        if (work)
            ca_upstream_fence_release(&ca_upstream_cuda, context, work);
        if (fence)
            ca_upstream_fence_release(&ca_upstream_cuda, context, fence);
        return held ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    *free = (ca_async_free_t){
        .held = held, .work = fence ? work : NULL, .fence = fence ? fence : work, .number = number};
    if (held)
        atomic_fetch_add(&held_count, 1);
    if (!push(context, backend, free, false))
        forget(context, free);
    collect(context, backend, UNWAITED_MOST, false);
    return CUDA_SUCCESS;
}

CUresult ca_backend_async_free(const ca_record_t *record)
{
    CUresult code = ca_context_check();
    if (code != CUDA_SUCCESS)
        return code;
    ca_context_t *context = ca_context_numbered(record->context);
    ca_async_backend_t *backend = context ? backend_of(context) : NULL;
    if (!backend || atomic_load(&context->state) == CA_CONTEXT_RETIRED)
        return CUDA_SUCCESS; /* its context went while we came here, and took the memory along */
    ca_attributes_clear(record->address);
    if (ca_options.free_sync)
        ca_upstream_cuda.synchronize(context, false);
    void *work = NULL, *fence = NULL;
    if (ca_upstream_fence_record(&ca_upstream_cuda, context, true, &work) != 0)
        work = NULL;
    bool freed = work && free_behind(context, backend, record->address, work, &fence);
    code = freed ? CUDA_SUCCESS : (CUresult)atomic_load(&context->broken);
    if (code == CUDA_SUCCESS)
        return note(context, backend, work, fence, freed ? 0 : record->address);
    if (work)
        ca_upstream_fence_release(&ca_upstream_cuda, context, work);
    if (fence)
        ca_upstream_fence_release(&ca_upstream_cuda, context, fence);
    return code;
}

bool ca_backend_async_holds(uint64_t address)
{
    bool found = false;
    if (atomic_load(&held_count) == 0)
        return false;
    ca_lock_take(&lock);
    for (ca_context_t *c = ca_context_next(NULL); c && !found; c = ca_context_next(c))
        for (ca_async_free_t *f = c->backend ? c->backend->first : NULL; f && !found; f = f->next)
            found = f->held == address;
    ca_lock_drop(&lock);
    return found;
}

/* --- giving back --------------------------------------------------------------------------------
 */

size_t ca_backend_async_idle(ca_context_t *context)
{
    ca_entered_t entered;
    ca_async_backend_t *backend = backend_of(context);
    if (!backend || ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return 0;
    size_t kept = ca_mempool_kept(backend->own.pool); /* it is not destroyed meanwhile */
    ca_upstream_leave(&entered);
    return kept;
}

size_t ca_backend_async_trim(ca_context_t *context)
{
    ca_entered_t entered;
    ca_async_backend_t *backend = backend_of(context);
    if (!backend || !ca_driver()->cuMemPoolTrimTo)
        return 0;
    collect(context, backend, 0, false);
    if (ca_upstream_enter(context, &entered) != CUDA_SUCCESS)
        return 0;
    size_t given = ca_mempool_trim(backend->own.pool);
    ca_upstream_leave(&entered);
    return given;
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

void ca_backend_async_gone(ca_context_t *context)
{
    ca_async_free_t *free;
    ca_lock_take(&lock);
    ca_async_backend_t *backend = context->backend;
    context->backend = NULL; /* who is still at it may read it: it is not given away */
    ca_lock_drop(&lock);
    if (!backend)
        return;
    while ((free = pop(backend, 0)) != NULL)
        forget(context, free);
    ca_driver()->cuMemPoolDestroy(backend->own.pool);
}

void ca_backend_async_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    backends = (ca_slab_t){.object_bytes = sizeof(ca_async_backend_t)};
    frees = (ca_slab_t){.object_bytes = sizeof(ca_async_free_t)};
    atomic_store(&held_count, 0);
}
