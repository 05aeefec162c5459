/* The driver API's hooks: green contexts. A context made from a green context shares the memory of
 * its device's primary context, so that context's arena serves it. */
#include "base/lock.h"
#include "base/mutation.h"
#include "pool/fence/order.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/contexts.h"
#include "shim/driver/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/reclaim.h"
#include "shim/cuda/streams.h"
#include "shim/driver/green.h"

#define GREEN_MAX 256

static struct {
    CUgreenCtx green;
    CUcontext context; /* from cuCtxFromGreenCtx, or NULL */
    CUdevice device;
} greens[GREEN_MAX];
static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);

/* The index of `green`, or of a free entry for NULL; -1 when there is none. Under the lock. */
static int index_of(CUgreenCtx green)
{
    for (int i = 0; i < GREEN_MAX; i++)
        if (greens[i].green == green)
            return i;
    return -1;
}

/* Where the table is full the green context is not watched. */
static void add(CUgreenCtx green, CUcontext context, CUdevice device)
{
    ca_lock_take(&lock);
    int at = index_of(NULL);
    if (at >= 0) {
        greens[at].green = green;
        greens[at].context = context;
        greens[at].device = device;
    }
    ca_lock_drop(&lock);
}

/* The green context keeps the primary context alive: it is retained for a moment only to learn its
 * handle. */
static CUcontext primary_of(CUdevice device)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext primary;
    if (!driver->cuDevicePrimaryCtxRetain || !driver->cuDevicePrimaryCtxRelease_v2 ||
        driver->cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    driver->cuDevicePrimaryCtxRelease_v2(device);
    ca_primary_note(device, primary);
    return primary;
}

/* The driver has answered that `context` is that of `green`: its primary context's arena serves it.
 */
static void note_context(CUgreenCtx green, CUcontext context)
{
    ca_lock_take(&lock);
    int at = index_of(green);
    bool fresh = at < 0 || !greens[at].context;
    CUdevice device = at < 0 ? 0 : greens[at].device;
    ca_lock_drop(&lock);
    /* A green context that is not in the table must not get an arena of its own. Until it shares
     * the primary's, later calls that ask for it try again. */
    if (fresh && !CA_MUTATED(green_unwatched))
        ca_context_share(context, at < 0 ? NULL : primary_of(device), device);
    ca_lock_take(&lock);
    at = index_of(green);
    if (at >= 0)
        greens[at].context = context;
    ca_lock_drop(&lock);
}

/* The program gets the context without cuCtxFromGreenCtx too: cuStreamGetCtx of one of its streams
 * returns it. So the context is asked for at once; an error of that call does not concern the
 * program. */
CA_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources,
                                            CUdevice device, unsigned flags)
{
    CA_REAL(cuGreenCtxCreate);
    ca_order_end("a green context has streams of its own");
    __typeof__(cuCtxFromGreenCtx) *ask = ca_driver()->cuCtxFromGreenCtx;
    CUcontext context;
    /* The green context may be the first to need the primary context. */
    CUresult code = CA_WITH_RECLAIM(ca_reclaim_on(device), real(green, resources, device, flags));
    if (code != CUDA_SUCCESS || !ca_life_active())
        return code;
    add(*green, NULL, device);
    if (ask && ask(&context, *green) == CUDA_SUCCESS)
        note_context(*green, context);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    CA_REAL(cuCtxFromGreenCtx);
    CUresult code = real(context, green);
    if (code == CUDA_SUCCESS)
        note_context(green, *context);
    return code;
}

/* After a green context of the device was destroyed, if `released`. */
static void resume_primary(ca_context_t *owner, CUcontext handle, CUdevice device, bool released)
{
    bool destroyed = released && handle && ca_primary_inactive(device, owner);
    if (owner)
        ca_context_resume(owner, destroyed);
    else if (destroyed)
        ca_capture_context_destroyed(handle, 0);
}

CA_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    CA_REAL(cuGreenCtxDestroy);
    ca_lock_take(&lock);
    int at = index_of(green);
    CUcontext context = at >= 0 ? greens[at].context : NULL;
    CUdevice device = at >= 0 ? greens[at].device : -1;
    if (at >= 0) { /* before the call: a new one may get this handle at once */
        greens[at].green = NULL;
        greens[at].context = NULL;
    }
    ca_lock_drop(&lock);
    /* It holds a reference to the primary context, which may be the last one. Streams that the
     * program left in it return an error from now on (cuda.h). */
    CUcontext primary = ca_primary_of(device);
    ca_streams_forget(context);
    ca_context_t *owner = ca_context_suspend(primary);
    ca_context_t *entry = ca_context_suspend(context);
    CUresult code = real(green);
    bool destroyed = code == CUDA_SUCCESS;
    /* A reset of the primary context has destroyed it before: its reference is dropped now all the
     * same. */
    bool released = destroyed || code == CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (entry)
        ca_context_resume(entry, destroyed);
    else if (destroyed && context)
        ca_capture_context_destroyed(context, 0);
    if (owner || released)
        resume_primary(owner, primary, device, released);
    if (!released && at >= 0)
        add(green, context, device);
    return code;
}

void ca_green_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
}
