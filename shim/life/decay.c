/* See decay.h.
 *
 * The thread wakes twice in a decay time, lets each arena poll its pending blocks, and releases
 * segments that were idle for two whole intervals: for the decay time at least, and half of it more
 * at most. The program did not make these driver calls, so they must never delay or break one that
 * it makes:
 *
 *   - a free that waits for its context is made only when nothing runs there;
 *   - while a stream is captured nothing is done. A capture that begins meanwhile is not broken:
 *     the thread is in the relaxed mode for good;
 *   - no signal is ever handled on the thread, and only the end of the process waits for it, for a
 *     call under way and not for long.
 *
 * Without context-wide events (before CUDA 12.5) it makes nothing ready: that would need a wait for
 * all work of the context. What was freed last stays until more is freed.
 *
 * A process whose other threads have all ended by pthread_exit would be kept alive by this thread;
 * the driver's own threads do so already. */
#include "shim/life/decay.h"
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include "base/lock.h"
#include "base/log.h"
#include "config/options.h"
#include "pool/arena.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/helper.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/upstream.h"

#define WAKES 2 /* in a decay time */
#define LEAST_INTERVAL_NS UINT64_C(10000000)
#define STACK_BYTES ((size_t)256 << 10) /* enough for a driver's calls */
#define STOP_TRIES 200                  /* times half a millisecond */

static _Atomic bool started;
static _Atomic bool stopping; /* the process ends: no driver call begins any more */
static _Atomic bool working;  /* in a round, perhaps inside the driver */

static bool may_work(void)
{
    return !atomic_load(&stopping) && !ca_capture_active() && ca_life_active();
}

static void round_over(ca_arena_t *arena, uint32_t ticks, bool waits)
{
    ca_arena_tick(arena);
    while (may_work() && ca_arena_decay(arena, ticks, waits) > 0) {
    }
}

static void round_of(ca_context_t *context, uint32_t ticks)
{
    ca_arena_t *arena;
    if (atomic_load(&context->state) != CA_CONTEXT_SERVING || atomic_load(&context->broken))
        return;
    if (context->arena && may_work())
        round_over(context->arena, ticks, ca_upstream_idle_free_waits());
    for (unsigned i = 0; i < CA_PINNED_KINDS && may_work(); i++)
        if ((arena = atomic_load(&context->pinned[i])))
            round_over(arena, ticks, true);
}

static void work(uint32_t ticks)
{
    ca_context_t *living[CA_CONTEXTS_MAX];
    size_t count = ca_contexts_living(living);
    for (size_t i = 0; i < count && may_work(); i++)
        round_of(living[i], ticks);
}

static void *run(void *arg)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    uint64_t decay = ca_options.decay, interval = decay / WAKES;
    (void)arg;
    pthread_setname_np(pthread_self(), "cachealloc");
    if (ca_driver()->cuThreadExchangeStreamCaptureMode)
        ca_driver()->cuThreadExchangeStreamCaptureMode(&mode);
    if (interval < LEAST_INTERVAL_NS)
        interval = LEAST_INTERVAL_NS;
    uint32_t ticks = (uint32_t)((decay + interval - 1) / interval);
    while (!atomic_load(&stopping)) {
        ca_sleep(interval);
        /* In this order: either the exit handler sees the round, or the round sees the exit. */
        atomic_store(&working, true);
        work(ticks);
        atomic_store(&working, false);
    }
    return NULL;
}

/* It runs before the driver's own exit handlers, which were registered before a context could be
 * made: no call of the thread meets a driver that has shut down. The report neither needs nor waits
 * for this. */
static void stop(void)
{
    atomic_store(&stopping, true);
    for (int tries = 0; atomic_load(&working) && tries < STOP_TRIES; tries++)
        ca_sleep(500000);
}

/* The caller may be a library's constructor, under the loader's lock: the thread does not take that
 * lock, and nothing waits for the thread here. */
void ca_decay_start(void)
{
    if (ca_options.decay == 0 || ca_options.backend != CA_BACKEND_POOL ||
        atomic_exchange(&started, true))
        return;
    int code = ca_helper_start(run, NULL, STACK_BYTES);
    if (code != 0)
        ca_warn_once("decay: no thread could be made; idle memory stays cached");
    else
        atexit(stop);
}

void ca_decay_reset_after_fork(void)
{
    atomic_store(&started, false);
    atomic_store(&working, false);
}
