/* Lane D, watching contexts: when one is destroyed or reset its arena goes with it.
 *
 * The entry is suspended before the driver is called: once a context is destroyed its handle may
 * come again at any moment, and must not find the old arena. */
#include <stdatomic.h>
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
