#include "shim/upstream/reclaim.h"
#include "base/clock.h"
#include "base/lock.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/upstream.h"
#include "shim/upstream/upstream_pinned.h"

/* While streams are being captured a call that ran out of memory was allowed, and the captures live
 * on. The pool's frees may break them, so they are made with the thread's capture mode relaxed, for
 * as long as they take. False where that is not possible: nothing must be freed then. */
static bool relax(CUstreamCaptureMode *mode)
{
    __typeof__(cuThreadExchangeStreamCaptureMode) *exchange =
        ca_driver()->cuThreadExchangeStreamCaptureMode;
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return exchange && exchange(mode) == CUDA_SUCCESS;
}

/* The program goes on with this mode: a call that fails is repeated. */
static void restore(CUstreamCaptureMode mode)
{
    const ca_driver_t *driver = ca_driver();
    if (driver->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        driver->cuThreadExchangeStreamCaptureMode(&mode);
}

bool ca_reclaim_on(CUdevice device)
{
    CUstreamCaptureMode mode;
    if (device < 0 || device > UINT8_MAX || !ca_life_active())
        return false;
    /* ca_upstream_enter handles a capture that begins in another thread from here on. */
    bool relaxed = ca_capture_active();
    if (relaxed && !relax(&mode))
        return false;
    size_t released = ca_upstream_trim_device((uint8_t)device, NULL, SIZE_MAX, CA_TRIM_IDLE);
    if (released == 0)
        released = ca_upstream_trim_device((uint8_t)device, NULL, SIZE_MAX, CA_TRIM_SHORTAGE);
    if (relaxed)
        restore(mode);
    return released > 0;
}

bool ca_reclaim(const ca_context_t *context)
{
    return context && ca_reclaim_on(context->device);
}

/* The driver is asked and not ca_context_current: a context without an arena may be the one that
 * needs memory. */
bool ca_reclaim_here(void)
{
    CUdevice device;
    __typeof__(cuCtxGetDevice) *get = ca_driver()->cuCtxGetDevice;
    return get && get(&device) == CUDA_SUCCESS && ca_reclaim_on(device);
}

bool ca_reclaim_everywhere(void)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    bool done[UINT8_MAX + 1] = {false}, any = false;
    size_t count = ca_contexts_living(living);
    for (size_t i = 0; i < count; i++) {
        if (!done[living[i]->device])
            any |= ca_reclaim_on(living[i]->device);
        done[living[i]->device] = true;
    }
    return any;
}

bool ca_reclaim_pinned(void)
{
    return ca_life_active() && ca_pinned_trim(SIZE_MAX) > 0;
}

bool ca_reclaim_any(void)
{
    bool here = ca_reclaim_here();
    return ca_reclaim_pinned() || here;
}

ca_retry_t ca_retry_begin(void)
{
    return (ca_retry_t){.destroys = {.seen = ca_contexts_resumed()}, .released = ca_giving_done()};
}

/* Longer than ca_context_suspend waits for threads at work in the context. */
#define DESTROYS_WAIT_NS ((uint64_t)10 * 1000 * 1000 * 1000)

bool ca_destroys_wait(ca_destroys_t *destroys)
{
    ca_lock_assert_none("the end of a context");
    for (;;) {
        /* In this order: a call that is done counts in the second before it stops counting in the
         * first. */
        bool any = ca_contexts_leaving() > 0;
        unsigned resumed = ca_contexts_resumed();
        uint64_t now = ca_clock_ns();
        if (!destroys->until_ns)
            destroys->until_ns = now + ca_bound(DESTROYS_WAIT_NS);
        bool done = resumed != destroys->seen;
        if (done || !any || now >= destroys->until_ns) {
            destroys->seen = resumed;
            return done && now < destroys->until_ns;
        }
        ca_sleep(50000);
    }
}
