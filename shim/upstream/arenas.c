#include "shim/upstream/arenas.h"
#include "base/log.h"
#include "config/options.h"
#include "pool/cache/cache.h"
#include "pool/fence/order.h"
#include "pool/range/export.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/backend_async.h"
#include "shim/upstream/expandable.h"
#include "shim/upstream/fences.h"
#include "shim/upstream/pin_mode.h"
#include "shim/upstream/upstream.h"
#include "shim/upstream/upstream_pinned.h"

size_t ca_context_reserved(const ca_context_t *context, size_t *idle)
{
    ca_arena_stats_t stats = {0};
    if (context->arena)
        ca_arena_stats(context->arena, &stats);
    *idle = stats.idle_bytes;
    return stats.reserved_bytes;
}

/* --- the memory of a context ------------------------------------------------------------------ */

/* Bytes that the device has, or 0 when that is not known. */
static size_t device_bytes(CUdevice device)
{
    size_t bytes = 0;
    __typeof__(cuDeviceTotalMem_v2) *get = ca_driver()->cuDeviceTotalMem_v2;
    return get && get(&bytes, device) == CUDA_SUCCESS ? bytes : 0;
}

/* What `limit` means on this device, in bytes. */
static size_t limit_on(CUdevice device)
{
    const ca_share_t *share = &ca_options.limit;
    if (!share->of)
        return share->bytes;
    size_t total = device_bytes(device);
    if (total)
        return total / share->of * share->part + total % share->of * share->part / share->of;
    ca_warn_once("limit: how much memory device %d has cannot be told, so there is no limit",
                 device);
    return SIZE_MAX;
}

static void make(ca_context_t *context)
{
    if (context->arena) /* the entry is revived, with its arena */
        return;
    context->limit = limit_on(context->device);
    ca_arena_params_t params = {
        .max_split = ca_options.max_split,
        .limit = context->limit,
        .headroom = ca_options.headroom,
        .reuse = (ca_reuse_t)ca_options.reuse,
        .reuse_wait_ns = ca_options.reuse_wait,
        .oom_wait_ns = ca_options.oom_wait,
        .thread_cache = ca_options.thread_cache,
        .warmup = ca_options.x_warmup,
        .size_classes = ca_options.size_classes.bytes,
        .size_class_count = ca_options.size_classes.count,
        .small = ca_options.x_small,
        .roundup = CA_ROUNDUP_STEPS(ca_options.roundup),
        .gc_threshold = ca_options.gc_threshold,
        .expandable = ca_expandable_wanted(),
        .unseen_ends = !ca_hooks_in_place(),
        .device_bytes = device_bytes(context->device),
    };
    if (ca_options.ipc == CA_IPC_DEDICATED)
        ca_pool_dedicate(true);
    context->arena = ca_arena_create(&ca_upstream_cuda, context, &params);
}

/* Memory is filled and checked on streams of this library's, and waited for: `order` cannot serve
 * it. */
static bool may_begin(void)
{
    return ca_reuse_wants_order(ca_options.reuse) && ca_options.backend == CA_BACKEND_POOL &&
           !ca_options.free_sync && !(ca_options.debug & CA_DEBUG_ANY);
}

/* Without context-wide events no fence covers all work of a context. */
static bool has_fences(void)
{
    const ca_driver_t *driver = ca_driver();

    return driver->cuCtxRecordEvent && driver->cuStreamWaitEvent && driver->cuEventQuery;
}

/* Reuse in order (pool/fence/order.h) begins in the first context, and ends where there is another
 * one. */
static void consider_order(ca_context_t *context)
{
    ca_context_t *living[CA_CONTEXTS_MAX];

    if (!may_begin() || !has_fences())
        return;
    if (ca_contexts_living(living) > 1)
        ca_order_end("there is a second context");
    else
        ca_order_start(&ca_upstream_cuda, context, ca_options.reuse_wait);
}

static void published(ca_context_t *context, bool fresh)
{
    if (fresh)
        ca_pin_mode_apply(context);
    consider_order(context);
}

static void retire_begin(ca_context_t *context)
{
    if (context->arena)
        ca_arena_retire_begin(context->arena);
    ca_pinned_retire_begin(context);
    ca_backend_async_destroyed(context);
}

static void retire_end(ca_context_t *context)
{
    if (context->arena)
        ca_arena_retire_end(context->arena);
    ca_pinned_retire_end(context);
    ca_fences_forget(context);
}

static bool revive(ca_context_t *context)
{
    if (context->arena && !ca_arena_revive(context->arena))
        return false;
    if (ca_pinned_revive(context)) {
        ca_pin_mode_forget(context);
        return true;
    }
    if (context->arena)
        ca_arena_retire(context->arena);
    return false;
}

const ca_context_memory_t ca_context_memory = {
    .prepare = ca_fences_prepare,
    .make = make,
    .published = published,
    .retire_begin = retire_begin,
    .retire_end = retire_end,
    .in_use = ca_fences_held,
    .revive = revive,
};
