/*
 * Start-up, and which context a call works on.
 *
 * A call binds: if some context is current to the thread, that one is used, whichever API made it
 * (CUDA C++ Programming Guide, "Interoperability between Runtime and Driver APIs"); if none is, the
 * primary context of the thread's device is retained and made current. cudaSetDevice does so at
 * once (cuda_runtime_api.h, cudaSetDevice: "the context will be current on device immediately");
 * under SIMCUDA=runtime:11 it only notes the device, and the thread's next call binds it.
 *
 * A device has a retained primary context or none. cudaDeviceReset destroys it; all threads, the
 * caller too, still have its handle current, which is how their next call sees that it must be
 * retained again. After cuDevicePrimaryCtxReset only the driver's answer shows it, so a call that
 * was answered "destroyed" binds once more and is made again (rt_revive). In a thread in which no
 * context is current cudaDeviceReset does nothing (tests/gpu/results/h200-580.json, after_reset).
 *
 * The lock guards the device table only. The driver is called outside of it: two threads may retain
 * the same primary at once, and the second one releases its reference.
 */
#include "../at_exit.h"
#include "rt.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct {
    CUcontext retained; /* we hold one reference; NULL: none */
    CUcontext dead;     /* its last handle before a reset */
} device_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static device_t devices[RT_MAX_DEVICES];
static atomic_uint resets;

static _Thread_local int selected; /* this thread's device */
static _Thread_local bool noted;   /* runtime:11: selected, not bound yet */

static atomic_bool initialised, exiting;

unsigned rt_reset_generation(void)
{
    return atomic_load(&resets);
}

static void at_exit(void *unused)
{
    (void)unused;
    atomic_store(&exiting, true);
}

cudaError_t rt_init(void)
{
    if (atomic_load_explicit(&initialised, memory_order_acquire))
        return cudaSuccess;
    RT_TRY(rt_driver_load());
    RT_TRY(rt_err(rt_legacy.cuInit(0)));
    if (!atomic_exchange(&initialised, true))
        sim_at_exit(at_exit);
    return cudaSuccess;
}

/* CUDA_ERROR_DEINITIALIZED is the number of cudaErrorCudartUnloading. */
bool rt_unloading(void)
{
    CUcontext current;
    return atomic_load_explicit(&exiting, memory_order_acquire) &&
           rt_legacy.cuCtxGetCurrent(&current) == CUDA_ERROR_DEINITIALIZED;
}

cudaError_t rt_primary(int device, CUcontext *ctx)
{
    CUdevice dev;
    if (device < 0 || device >= RT_MAX_DEVICES ||
        rt_legacy.cuDeviceGet(&dev, device) != CUDA_SUCCESS)
        return cudaErrorInvalidDevice;
    pthread_mutex_lock(&lock);
    *ctx = devices[device].retained;
    pthread_mutex_unlock(&lock);
    if (*ctx != NULL)
        return cudaSuccess;

    CUcontext fresh = NULL;
    RT_TRY(rt_err(rt_legacy.cuDevicePrimaryCtxRetain(&fresh, dev)));
    pthread_mutex_lock(&lock);
    bool first = devices[device].retained == NULL;
    if (first)
        devices[device].retained = fresh;
    *ctx = devices[device].retained;
    pthread_mutex_unlock(&lock);
    if (!first)
        (void)rt_legacy.cuDevicePrimaryCtxRelease(dev);
    return cudaSuccess;
}

/* The device whose primary `ctx` was until a reset, -1 if it is no such handle. A retain after the
 * reset may yield the same handle, which is alive again then. */
static int device_of_dead(CUcontext ctx)
{
    int found = -1;
    if (rt_reset_generation() == 0)
        return found;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RT_MAX_DEVICES && found < 0; i++)
        if (devices[i].dead == ctx && devices[i].retained != ctx)
            found = i;
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t bind_device(int device)
{
    CUcontext ctx;
    RT_TRY(rt_primary(device, &ctx));
    RT_TRY(rt_err(rt_legacy.cuCtxSetCurrent(ctx)));
    selected = device;
    noted = false;
    return cudaSuccess;
}

cudaError_t rt_bind(void)
{
    RT_TRY(rt_init());
    if (noted)
        return bind_device(selected);
    CUcontext current = NULL;
    RT_TRY(rt_err(rt_legacy.cuCtxGetCurrent(&current)));
    if (current == NULL)
        return bind_device(selected);
    int dead = device_of_dead(current);
    return dead >= 0 ? bind_device(dead) : cudaSuccess;
}

bool rt_revive(cudaError_t e)
{
    CUcontext current = NULL;
    CUdevice dev;
    unsigned flags;
    int active = 1, device = -1;
    if (e != cudaErrorContextIsDestroyed || rt_legacy.cuCtxGetCurrent(&current) != CUDA_SUCCESS ||
        current == NULL)
        return false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RT_MAX_DEVICES && device < 0; i++)
        if (devices[i].retained == current)
            device = i;
    pthread_mutex_unlock(&lock);
    if (device < 0 || rt_legacy.cuDeviceGet(&dev, device) != CUDA_SUCCESS ||
        rt_legacy.cuDevicePrimaryCtxGetState(dev, &flags, &active) != CUDA_SUCCESS)
        return false;
    /* A retain makes it active again; the reference that we have outlived the reset. */
    if (!active && rt_legacy.cuDevicePrimaryCtxRetain(&current, dev) == CUDA_SUCCESS)
        (void)rt_legacy.cuDevicePrimaryCtxRelease(dev);
    return bind_device(device) == cudaSuccess;
}

cudaError_t rt_current_device(int *device)
{
    RT_TRY(rt_init());
    CUcontext current = NULL;
    CUdevice dev;
    *device = selected;
    if (noted || rt_legacy.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == NULL)
        return cudaSuccess;
    int dead = device_of_dead(current);
    if (dead >= 0)
        *device = dead;
    else if (rt_legacy.cuCtxGetDevice(&dev) == CUDA_SUCCESS)
        *device = (int)dev;
    return cudaSuccess;
}

/* --- the API ---------------------------------------------------------------------------------- */

RT_FN_UNBOUND(cudaSetDevice, (int device), device)
{
    RT_TRY(rt_init());
    int count = 0;
    RT_TRY(rt_err(rt_legacy.cuDeviceGetCount(&count)));
    if (device < 0 || device >= count)
        return cudaErrorInvalidDevice;
    if (rt_version() >= 12000)
        return bind_device(device);
    /* "Set" holds against a context that the driver API made current, hence a mark and not only
     * the number. */
    selected = device;
    noted = true;
    return cudaSuccess;
}

RT_FN_UNBOUND(cudaGetDevice, (int *device), device)
{
    RT_NEED(device);
    return rt_current_device(device);
}

RT_FN_UNBOUND(cudaGetDeviceCount, (int *count), count)
{
    RT_NEED(count);
    *count = 0;
    RT_TRY(rt_init());
    return rt_err(rt_legacy.cuDeviceGetCount(count));
}

/* Initialises, makes nothing current (cuda_runtime_api.h, cudaInitDevice). */
RT_FN_UNBOUND(cudaInitDevice, (int device, unsigned int device_flags, unsigned int flags), device,
              device_flags, flags)
{
    if ((flags & ~(unsigned)cudaInitDeviceFlagsAreValid) != 0)
        return cudaErrorInvalidValue;
    RT_TRY(rt_init());
    CUdevice dev;
    if (rt_legacy.cuDeviceGet(&dev, device) != CUDA_SUCCESS)
        return cudaErrorInvalidDevice;
    if ((flags & cudaInitDeviceFlagsAreValid) != 0)
        RT_TRY(rt_err(rt_legacy.cuDevicePrimaryCtxSetFlags(dev, device_flags &
                                                                    ~(unsigned)cudaDeviceMapHost)));
    CUcontext ctx;
    return rt_primary(device, &ctx);
}

/* Whether `ctx` is the device's primary though we retained none: the driver API may have made it
 * current. An inactive primary is not asked for, that would make it. */
static bool is_primary(CUcontext ctx, CUdevice dev)
{
    unsigned flags;
    int active = 0;
    CUcontext primary = NULL;
    if (rt_legacy.cuDevicePrimaryCtxGetState(dev, &flags, &active) != CUDA_SUCCESS || !active ||
        rt_legacy.cuDevicePrimaryCtxRetain(&primary, dev) != CUDA_SUCCESS)
        return false;
    (void)rt_legacy.cuDevicePrimaryCtxRelease(dev);
    return primary == ctx;
}

/* The runtime's reference to the device's primary context, removed from the table; NULL: none. */
static CUcontext take_primary(int device)
{
    pthread_mutex_lock(&lock);
    CUcontext primary = devices[device].retained;
    devices[device].retained = NULL;
    if (primary != NULL)
        devices[device].dead = primary;
    pthread_mutex_unlock(&lock);
    return primary;
}

/* With a context that the program made current the runtime has no state to destroy
 * (cuda_runtime_api.h, cudaDeviceReset, second note), and with none neither. */
RT_FN_UNBOUND(cudaDeviceReset, (void), )
{
    RT_TRY(rt_init());
    int device;
    CUdevice dev;
    CUcontext current = NULL;
    RT_TRY(rt_current_device(&device));
    RT_TRY(rt_err(rt_legacy.cuDeviceGet(&dev, device)));
    if (!noted) {
        (void)rt_legacy.cuCtxGetCurrent(&current);
        if (current == NULL || (device_of_dead(current) < 0 && !is_primary(current, dev)))
            return cudaSuccess;
    }

    CUcontext primary = take_primary(device);
    cudaError_t e = rt_err(rt_legacy.cuDevicePrimaryCtxReset(dev));
    /* A reset releases no references (cuda.h, cuDevicePrimaryCtxReset). */
    if (primary != NULL)
        (void)rt_legacy.cuDevicePrimaryCtxRelease(dev);
    atomic_fetch_add(&resets, 1);
    return e;
}
