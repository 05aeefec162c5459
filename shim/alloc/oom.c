/* See oom.h. The report needs the report lock at once: a call that is out of memory does
 * not wait, and the next one will be like it. */
#include "shim/alloc/oom.h"
#include <stdatomic.h>
#include <stdint.h>
#include "base/thread_state.h"
#include "base/clock.h"
#include "base/history.h"
#include "base/lock.h"
#include "base/log.h"
#include "config/options.h"
#include "base/out.h"
#include "shim/cuda/driver_table.h"
#include "shim/alloc/oom_report.h"
#include "shim/alloc/track.h"
#include "shim/alloc/report_lock.h"

/* --- the program's function ------------------------------------------------------------------- */

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS); /* innermost: taken alone */
static cachealloc_oom_t function;                       /* under the lock, as is its argument */
static void *argument;
static _Atomic bool has_function;

/* In the function, or in the report of this thread. */
static _Thread_local bool inside;

static unsigned known_device(CUdevice device)
{
    __typeof__(cuCtxGetDevice) *get = ca_driver()->cuCtxGetDevice;
    if (device != CA_OOM_HERE)
        return (unsigned)device;
    return get && get(&device) == CUDA_SUCCESS && device > 0 ? (unsigned)device : 0;
}

bool ca_oom_retry(ca_kind_t kind, size_t bytes, CUdevice device)
{
    if (!atomic_load(&has_function) || inside)
        return false;
    ca_lock_take(&lock);
    cachealloc_oom_t now = function;
    void *its = argument;
    ca_lock_drop(&lock);
    if (!now)
        return false;
    ca_lock_assert_none("the program's function");
    /* Its allocations have stacks of their own, ours keeps the one of the call to the runtime. */
    uint32_t stack = ca_track_runtime_stack;
    ca_track_runtime_stack = 0;
    inside = true;
    int again = now(bytes, (int)known_device(device), kind == CA_KIND_PINNED, its);
    inside = false;
    ca_track_runtime_stack = stack;
    return again == 1;
}

void ca_oom_set_function(cachealloc_oom_t wanted, void *arg)
{
    ca_lock_take(&lock);
    function = wanted;
    argument = arg;
    atomic_store(&has_function, wanted != NULL);
    ca_lock_drop(&lock);
}

/* --- the report ------------------------------------------------------------------------------- */

/* Whether it is time for one; then the next is later. */
static bool is_due(void)
{
    static _Atomic uint64_t last; /* when, or 0 */
    uint64_t now = ca_clock_ns(), before = atomic_load(&last);
    return (before == 0 || now - before >= ca_options.oom_report) &&
           atomic_compare_exchange_strong(&last, &before, now);
}

void ca_oom_report(ca_kind_t kind, size_t bytes, CUdevice device)
{
    static ca_out_t out;
    unsigned where = known_device(device);
    ca_history_note(.event = CA_EVENT_OOM, .bytes = bytes, .device = (uint8_t)where,
                    .kind = (uint8_t)kind, .thread = ca_track_thread(),
                    .stack = ca_track_runtime_stack ? ca_track_runtime_stack : ca_track_stack());
    if (inside || ca_options.oom_report == UINT64_MAX || ca_options.log < CA_LOG_WARN)
        return;
    int cancel = ca_cancel_hold();
    if (ca_report_lock_take(0)) {
        inside = true;
        if (is_due()) {
            ca_out_open(&out, ca_out_stderr());
            ca_oom_report_write(&out, kind, bytes, where);
            ca_out_flush(&out);
        }
        inside = false;
        ca_report_lock_drop();
    }
    ca_cancel_resume(cancel);
}

void ca_oom_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    inside = false;
}
