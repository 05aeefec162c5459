#include "shim/upstream/reclaim.h"
#include "base/clock.h"
#include "base/lock.h"
#include "pool/growth/ladder.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/life/life.h"
#include "shim/alloc/pinned_memory.h"
#include "shim/upstream/upstream.h"

/* A call that ran out of memory was allowed while streams are being captured, and the captures live
 * on. Our frees need not be: only with the thread's mode relaxed, for as long as they take. False
 * where that cannot be done: nothing must be freed then. */
static bool relax(CUstreamCaptureMode *mode)
{
    __typeof__(cuThreadExchangeStreamCaptureMode) *exchange =
        ca_driver()->cuThreadExchangeStreamCaptureMode;
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return exchange && exchange(mode) == CUDA_SUCCESS;
}

/* The mode is what the program goes on with: a call that fails is repeated. */
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
    /* A capture that begins in another thread from here on is met by ca_upstream_enter. */
    bool relaxed = ca_capture_active();
    if (relaxed && !relax(&mode))
        return false;
    size_t given = ca_upstream_trim_device((uint8_t)device, NULL, SIZE_MAX, CA_TRIM_IDLE);
    if (given == 0)
        given = ca_upstream_trim_device((uint8_t)device, NULL, SIZE_MAX, CA_TRIM_SHORTAGE);
    if (relaxed)
        restore(mode);
    return given > 0;
}

bool ca_reclaim(const ca_context_t *context)
{
    return context && ca_reclaim_on(context->device);
}

/* The driver is asked and not ca_context_current: a context that holds no memory of ours may be the
 * one that needs some. */
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

ca_asked_t ca_asked(void)
{
    return (ca_asked_t){.ends = {.seen = ca_contexts_resumed()}, .given = ca_giving_done()};
}

/* Longer than ca_context_suspend waits for who is at work in the context. */
#define ENDS_WAIT_NS ((uint64_t)10 * 1000 * 1000 * 1000)

bool ca_ends_wait(ca_ends_t *ends)
{
    ca_lock_assert_none("the end of a context");
    for (;;) {
        /* In this order: a call that is done counts there before it stops counting here. */
        bool any = ca_contexts_leaving() > 0;
        unsigned settled = ca_contexts_resumed();
        uint64_t now = ca_clock_ns();
        if (!ends->until_ns)
            ends->until_ns = now + ca_bound(ENDS_WAIT_NS);
        bool done = settled != ends->seen;
        if (done || !any || now >= ends->until_ns) {
            ends->seen = settled;
            return done && now < ends->until_ns;
        }
        ca_sleep(50000);
    }
}
