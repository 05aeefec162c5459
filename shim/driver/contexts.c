/* The driver API's hooks: contexts. When one is destroyed or reset, its arena is retired with it.
 *
 * The entry is suspended before the driver is called: once a context is destroyed its handle may be
 * used again at any moment, and must not find the old arena. */
#include <stdatomic.h>
#include "base/thread_state.h"
#include "base/mutation.h"
#include "pool/fence/order.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/contexts.h"
#include "shim/driver/contexts.h"
#include "shim/alloc/debug_guard.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/reclaim.h"
#include "shim/cuda/unseen.h"

#define DEVICES_MAX 256

/* The primary context of each device, as the program retained it. */
static _Atomic(CUcontext) primary[DEVICES_MAX];

CUcontext ca_primary_of(CUdevice device)
{
    return device >= 0 && device < DEVICES_MAX ? atomic_load(&primary[device]) : NULL;
}

void ca_primary_note(CUdevice device, CUcontext handle)
{
    if (device >= 0 && device < DEVICES_MAX)
        atomic_store(&primary[device], handle);
}

CA_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CA_REAL(cuDevicePrimaryCtxRetain);
    ca_unseen_context(ca_primary_of(device));
    CUresult code = CA_WITH_RECLAIM(ca_reclaim_on(device), real(context, device));
    if (code == CUDA_SUCCESS) {
        ca_primary_note(device, *context);
        ca_context_made(*context, device, false);
    }
    return code;
}

static CUresult made(CUresult code, const CUcontext *context, CUdevice device)
{
    if (code == CUDA_SUCCESS && context)
        ca_context_made(*context, device, true);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    CA_REAL(cuCtxCreate);
    ca_unseen_context(NULL);
    return made(CA_WITH_RECLAIM(ca_reclaim_on(device), real(context, flags, device)), context,
                device);
}

CA_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    CA_REAL(cuCtxCreate_v2);
    ca_unseen_context(NULL);
    return made(CA_WITH_RECLAIM(ca_reclaim_on(device), real(context, flags, device)), context,
                device);
}

CA_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity,
                                          int count, unsigned flags, CUdevice device)
{
    CA_REAL(cuCtxCreate_v3);
    ca_unseen_context(NULL);
    return made(
        CA_WITH_RECLAIM(ca_reclaim_on(device), real(context, affinity, count, flags, device)),
        context, device);
}

CA_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params,
                                          unsigned flags, CUdevice device)
{
    CA_REAL(cuCtxCreate_v4);
    ca_unseen_context(NULL);
    return made(CA_WITH_RECLAIM(ca_reclaim_on(device), real(context, params, flags, device)),
                context, device);
}

/* --- which one is current -----------------------------------------------------------------------
 *
 * The runtime's cudaFree makes the device's primary context current in a thread that has none. The
 * thread state says that a context is current, so that the fast path does not ask the driver
 * (shim/alloc/fast_path.h).
 */

static CUresult popped(CUresult code)
{
    CUcontext now = NULL;
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    if (code == CUDA_SUCCESS && (!get || get(&now) != CUDA_SUCCESS || !now))
        ca_thread_forget();
    return code;
}

CA_EXPORT CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context)
{
    CA_REAL(cuCtxPopCurrent);
    return popped(real(context));
}

CA_EXPORT CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *context)
{
    CA_REAL(cuCtxPopCurrent_v2);
    return popped(real(context));
}

CA_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    CA_REAL(cuCtxSetCurrent);
    CUresult code = real(context);
    if (code == CUDA_SUCCESS && !context)
        ca_thread_forget();
    return code;
}

/* --- destroying ---------------------------------------------------------------------------------
 */

/* The driver destroys `handle` next, or may do so. Returns its entry, or NULL. */
static ca_context_t *before_destroy(CUcontext handle)
{
    ca_guard_before_end(handle);
    return ca_context_suspend(handle);
}

/* The driver was asked to destroy `handle`, whose entry is `entry` or NULL. */
static void after_destroy(ca_context_t *entry, CUcontext handle, bool destroyed)
{
    ca_thread_forget(); /* it may have been current */
    if (destroyed)
        ca_order_stream_ends(0);
    if (entry)
        ca_context_resume(entry, destroyed);
    else if (destroyed && handle)
        ca_capture_context_destroyed(handle, 0);
}

static CUresult destroy(__typeof__(cuCtxDestroy_v2) *real, CUcontext context)
{
    ca_context_t *entry = before_destroy(context);
    CUresult code = real(context);
    after_destroy(entry, context, code == CUDA_SUCCESS);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext context)
{
    CA_REAL(cuCtxDestroy);
    return destroy(real, context);
}

CA_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context)
{
    CA_REAL(cuCtxDestroy_v2);
    return destroy(real, context);
}

/* Whether the context is destroyed. Its id says so (asked twice, see below), and before CUDA 12
 * whether it can be made current. */
static bool is_destroyed(const ca_context_t *entry, CUcontext handle)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext popped;
    if (entry && entry->id)
        return ca_context_lost_id(entry) && ca_context_lost_id(entry);
    if (driver->cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS)
        return true;
    if (driver->cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS)
        driver->cuCtxPopCurrent_v2(&popped);
    return false;
}

/* Detaching destroys the context when no other thread is attached, so the driver is asked
 * afterwards. */
CA_EXPORT CUresult CUDAAPI cuCtxDetach(CUcontext context)
{
    CA_REAL(cuCtxDetach);
    ca_context_t *entry = before_destroy(context);
    CUresult code = real(context);
    after_destroy(entry, context, code == CUDA_SUCCESS && is_destroyed(entry, context));
    return code;
}

/* Whether the primary context is inactive now. The driver is asked twice: a lost answer would leave
 * a dead arena in service. Where both fail, the context's id decides. */
bool ca_primary_inactive(CUdevice device, const ca_context_t *entry)
{
    __typeof__(cuDevicePrimaryCtxGetState) *ask = ca_driver()->cuDevicePrimaryCtxGetState;
    unsigned flags;
    int active = 1;
    if (CA_MUTATED(release_destroys))
        return true;
    if (ask && (ask(device, &flags, &active) == CUDA_SUCCESS ||
                ask(device, &flags, &active) == CUDA_SUCCESS))
        return !active;
    return entry && ca_context_lost_id(entry);
}

/* Before CUDA 12 a context has no id, and another thread may have made the primary context anew,
 * with the same handle. A piece of the arena's memory then decides: "a unique ID for an allocated
 * memory region" (cuda.h, CU_POINTER_ATTRIBUTE_BUFFER_ID) is lost with the old context. */
typedef struct sample {
    CUdeviceptr address; /* 0: there is none, or none is needed */
    unsigned long long id;
} sample_t;

static CUresult ask_id(CUdeviceptr address, unsigned long long *id)
{
    __typeof__(cuPointerGetAttribute) *ask = ca_driver()->cuPointerGetAttribute;
    return ask ? ask(id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) : CUDA_ERROR_NOT_FOUND;
}

/* The context is suspended: nothing of it is released meanwhile. */
static sample_t sample_of(const ca_context_t *entry)
{
    sample_t sample = {0, 0};
    if (entry && !entry->id && entry->arena)
        sample.address = ca_arena_address(entry->arena);
    if (sample.address && ask_id(sample.address, &sample.id) != CUDA_SUCCESS)
        sample.address = 0;
    return sample;
}

static bool lost(sample_t sample)
{
    unsigned long long id;
    if (!sample.address)
        return false;
    CUresult code = ask_id(sample.address, &id);
    return code == CUDA_ERROR_INVALID_VALUE || (code == CUDA_SUCCESS && id != sample.id);
}

/* A release destroys only when the count reaches zero, so the driver is asked afterwards. */
static CUresult release(__typeof__(cuDevicePrimaryCtxRelease_v2) *real, CUdevice device)
{
    CUcontext primary_context = ca_primary_of(device);
    ca_context_t *entry = before_destroy(primary_context);
    const sample_t sample = sample_of(entry);
    CUresult code = real(device);
    bool destroyed = code == CUDA_SUCCESS && (ca_primary_inactive(device, entry) || lost(sample));
    after_destroy(entry, primary_context, destroyed);
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

/* While a reset runs another thread may make the primary context, perhaps anew: the reset ends it
 * too, though it had no entry before the call. */
static void resume_made_meanwhile(CUdevice device)
{
    ca_context_t *entry = ca_context_suspend(ca_primary_of(device));
    if (entry)
        ca_context_resume(entry, ca_primary_inactive(device, entry));
}

static CUresult reset(__typeof__(cuDevicePrimaryCtxReset_v2) *real, CUdevice device)
{
    CUcontext primary_context = ca_primary_of(device);
    ca_context_t *entry = before_destroy(primary_context);
    CUresult code = real(device);
    after_destroy(entry, primary_context, code == CUDA_SUCCESS);
    if (code == CUDA_SUCCESS)
        resume_made_meanwhile(device);
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
