/* Lane D, watching contexts: when one is destroyed or reset its arena goes with it.
 *
 * The entry is suspended before the driver is called: once a context is destroyed its handle may
 * come again at any moment, and must not find the old arena. */
#include <stdatomic.h>
#include "config/lock.h"
#include "shim/contexts.h"
#include "shim/driver_table.h"

#define DEVICES_MAX 256

/* The primary context of each device, as the program retained it. */
static _Atomic(CUcontext) primary[DEVICES_MAX];

static CUcontext primary_of(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? atomic_load(&primary[device]) : NULL;
}

CA_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CA_REAL(cuDevicePrimaryCtxRetain);
    CUresult code = real(context, device);
    if (code == CUDA_SUCCESS && device >= 0 && device < DEVICES_MAX)
        atomic_store(&primary[device], *context);
    return code;
}

/* The driver was asked to destroy what `entry` stands for; `gone` tells whether it did. */
static void settle(ca_context_t *entry, bool gone)
{
    if (entry && gone)
        ca_context_retire(entry);
    else if (entry)
        ca_context_resume(entry);
}

CA_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context)
{
    CA_REAL(cuCtxDestroy_v2);
    ca_context_t *entry = ca_context_suspend(context);
    CUresult code = real(context);
    settle(entry, code == CUDA_SUCCESS);
    return code;
}

/* A release destroys only when the count reaches zero: ask afterwards. */
static CUresult release(__typeof__(cuDevicePrimaryCtxRelease_v2) *real, CUdevice device)
{
    __typeof__(cuDevicePrimaryCtxGetState) *state = ca_driver()->cuDevicePrimaryCtxGetState;
    ca_context_t *entry = ca_context_suspend(primary_of(device));
    CUresult code = real(device);
    unsigned flags;
    int active = 1;
    bool gone =
        code == CUDA_SUCCESS && state && state(device, &flags, &active) == CUDA_SUCCESS && !active;
    settle(entry, gone);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    CA_REAL(cuDevicePrimaryCtxRelease);
    return release(real, device);
}

CA_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CA_REAL(cuDevicePrimaryCtxRelease_v2);
    return release(real, device);
}

static CUresult reset(__typeof__(cuDevicePrimaryCtxReset_v2) *real, CUdevice device)
{
    ca_context_t *entry = ca_context_suspend(primary_of(device));
    CUresult code = real(device);
    settle(entry, code == CUDA_SUCCESS);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    CA_REAL(cuDevicePrimaryCtxReset);
    return reset(real, device);
}

CA_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CA_REAL(cuDevicePrimaryCtxReset_v2);
    return reset(real, device);
}

CA_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext owner, unsigned flags)
{
    CA_REAL(cuCtxEnablePeerAccess);
    /* Noted before it is allowed: from then on every fence of the owner covers the accessor. */
    ca_context_t *accessor = ca_context_current(true, NULL);
    if (accessor)
        ca_context_note_peer(accessor, owner);
    return real(owner, flags);
}

/* --- green contexts ------------------------------------------------------------------------------
 * A context made from a green context shares the memory of its device's primary context. */

#define GREEN_MAX 256

static struct {
    CUgreenCtx green;
    CUcontext context; /* once cuCtxFromGreenCtx was asked */
    CUdevice device;
} greens[GREEN_MAX];
static ca_lock_t greens_lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);

/* The index of `green`, NULL for a free place; -1 when there is none. Under the lock. */
static int green_index(CUgreenCtx green)
{
    for (int i = 0; i < GREEN_MAX; i++)
        if (greens[i].green == green)
            return i;
    return -1;
}

CA_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources,
                                            CUdevice device, unsigned flags)
{
    CA_REAL(cuGreenCtxCreate);
    CUresult code = real(green, resources, device, flags);
    if (code == CUDA_SUCCESS) {
        ca_lock_take(&greens_lock);
        int at = green_index(NULL);
        if (at >= 0) {
            greens[at].green = *green;
            greens[at].device = device;
        }
        ca_lock_drop(&greens_lock);
    }
    return code;
}

CA_EXPORT CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    CA_REAL(cuCtxFromGreenCtx);
    const ca_driver_t *driver = ca_driver();
    CUresult code = real(context, green);
    if (code != CUDA_SUCCESS || !driver->cuDevicePrimaryCtxRetain ||
        !driver->cuDevicePrimaryCtxRelease_v2)
        return code;
    ca_lock_take(&greens_lock);
    int at = green_index(green);
    bool fresh = at >= 0 && !greens[at].context;
    CUdevice device = fresh ? greens[at].device : 0;
    if (fresh)
        greens[at].context = *context;
    ca_lock_drop(&greens_lock);
    /* The green context keeps the primary alive: retaining it for a moment only asks its handle. */
    CUcontext handle;
    if (fresh && driver->cuDevicePrimaryCtxRetain(&handle, device) == CUDA_SUCCESS) {
        ca_context_share(*context, handle, device);
        driver->cuDevicePrimaryCtxRelease_v2(device);
    }
    return code;
}

CA_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    CA_REAL(cuGreenCtxDestroy);
    ca_lock_take(&greens_lock);
    int at = green_index(green);
    CUcontext context = at >= 0 ? greens[at].context : NULL;
    ca_lock_drop(&greens_lock);
    ca_context_t *entry = ca_context_suspend(context);
    CUresult code = real(green);
    settle(entry, code == CUDA_SUCCESS);
    if (code == CUDA_SUCCESS && at >= 0) {
        ca_lock_take(&greens_lock);
        greens[at].green = NULL;
        greens[at].context = NULL;
        ca_lock_drop(&greens_lock);
    }
    return code;
}
