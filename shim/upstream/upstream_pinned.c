/* See upstream_pinned.h. The driver does not report how much can still be pinned, and its only free
 * of pinned memory waits for all work: so the table has no `available`, and the pool releases
 * pinned segments only while nothing runs. */
#include "shim/upstream/upstream_pinned.h"
#include <sys/sysinfo.h>
#include "base/clock.h"
#include "base/history.h"
#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/fences.h"
#include "shim/upstream/pin_mode.h"
#include "shim/upstream/upstream.h"

#define IDLE_WAIT_NS ((uint64_t)1000 * 1000 * 1000) /* before an out-of-memory */
#define SEGMENT_FIRST ((size_t)2 << 20) /* it is dear: the pages are taken from the machine */

_Static_assert((CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                CU_MEMHOSTALLOC_WRITECOMBINED) == CA_PINNED_KINDS - 1,
               "flags index the arenas");

static int alloc(ca_context_t *context, size_t bytes, unsigned flags, uint64_t *address)
{
    ca_entered_t entered;
    void *pointer = NULL;
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        __typeof__(cuMemHostAlloc) *real = ca_driver()->cuMemHostAlloc;
        do
            code = real ? real(&pointer, bytes, flags) : CUDA_ERROR_NOT_SUPPORTED;
        while (code == CUDA_SUCCESS && !ca_upstream_obtained(context, (uintptr_t)pointer));
        ca_upstream_leave(&entered);
    }
    *address = (uintptr_t)pointer;
    if (code == CUDA_SUCCESS)
        ca_history_note(.event = CA_EVENT_SEGMENT, .address = *address, .bytes = bytes,
                        .device = context->device, .kind = CA_KIND_PINNED);
    return ca_upstream_result(context, code);
}

static int release(void *arg, uint64_t address, size_t bytes, ca_free_t how)
{
    (void)how;
    ca_context_t *context = arg;
    ca_entered_t entered;
    ca_history_note(.event = CA_EVENT_TRIM, .address = address, .bytes = bytes,
                    .device = context->device, .kind = CA_KIND_PINNED);
    CUresult code = ca_upstream_enter(context, &entered);
    if (code == CUDA_SUCCESS) {
        __typeof__(cuMemFreeHost) *real = ca_driver()->cuMemFreeHost;
        code = real((void *)(uintptr_t)address);
        if (code != CUDA_SUCCESS) /* nothing else would ever free it */
            code = real((void *)(uintptr_t)address);
        ca_upstream_leave(&entered);
    }
    return ca_upstream_result(context, code);
}

/* Waits a second at most for all work submitted so far: it may be waiting for this very thread. 1:
 * done, 0: not, or the error of a call that failed. */
static int wait_until_idle(void *arg)
{
    void *fence;
    int rc = ca_fence_record_host(arg, true, &fence);
    if (rc != 0)
        return rc;
    rc = ca_fence_wait(arg, fence, ca_bound(IDLE_WAIT_NS));
    ca_fence_release(arg, fence);
    return rc;
}

/* Releases idle memory of all arenas, the calling one included: work may have used its memory until
 * now. A second time where a call failed. */
static size_t reclaim(void *arg, size_t bytes)
{
    size_t released = 0;
    for (int i = 0; i < 2 && released == 0 && wait_until_idle(arg) != 0; i++)
        released = ca_pinned_trim(bytes);
    return released;
}

#define ALLOC(flags)                                                                               \
    static int alloc_##flags(void *context, size_t bytes, uint64_t *address)                       \
    {                                                                                              \
        return alloc(context, bytes, flags, address);                                              \
    }
ALLOC(0)
ALLOC(1)
ALLOC(2)
ALLOC(3)
ALLOC(4)
ALLOC(5)
ALLOC(6)
ALLOC(7)

#define TABLE(flags)                                                                               \
    [flags] = {.alloc = alloc_##flags,                                                             \
               .free = release,                                                                    \
               .placed = ca_upstream_placed,                                                       \
               .fence_record = ca_fence_record_host,                                               \
               .fence_query = ca_fence_query,                                                      \
               .fence_wait = ca_fence_wait,                                                        \
               .fence_release = ca_fence_release,                                                  \
               .synchronize = ca_fence_synchronize_host,                                           \
               .reclaim = reclaim,                                                                 \
               .forget = ca_registry_forget,                                                       \
               .end = ca_registry_end}
const ca_upstream_t ca_upstream_pinned[CA_PINNED_KINDS] = {
    TABLE(0), TABLE(1), TABLE(2), TABLE(3), TABLE(4), TABLE(5), TABLE(6), TABLE(7),
};

/* --- the arenas ------------------------------------------------------------------------------- */

/* What the machine has; 0 when unknown. */
static size_t host_bytes(void)
{
    struct sysinfo machine;

    return sysinfo(&machine) == 0 ? (size_t)machine.totalram * machine.mem_unit : 0;
}

ca_arena_t *ca_pinned_arena(ca_context_t *context, unsigned flags, bool create)
{
    ca_arena_t *arena = atomic_load_explicit(&context->pinned[flags], memory_order_acquire);
    if (arena || !create)
        return arena;
    ca_arena_params_t params = {
        .max_split = ca_options.max_split,
        .limit = SIZE_MAX,
        .reuse = (ca_reuse_t)ca_options.reuse,
        .reuse_wait_ns = ca_options.reuse_wait,
        .oom_wait_ns = ca_options.oom_wait,
        .thread_cache = ca_options.thread_cache,
        .warmup = ca_options.x_warmup,
        .granule = CA_PAGE, /* direct I/O and network cards want pages */
        .segment_first = SEGMENT_FIRST,
        .host = true,
        .device_bytes = host_bytes(),
    };
    ca_arena_t *fresh = ca_arena_create(&ca_upstream_pinned[flags], context, &params);
    if (!fresh)
        return NULL;
    if (!atomic_compare_exchange_strong(&context->pinned[flags], &arena, fresh)) {
        ca_arena_retire(fresh); /* another thread was first */
        return arena;
    }
    ca_pin_mode_apply(context);
    /* Either we see that the context was destroyed, or the thread that retires its arenas sees this
     * one.
     */
    if (atomic_load(&context->state) == CA_CONTEXT_RETIRED)
        ca_arena_retire(fresh);
    return fresh;
}

/* One that is made between the two retires itself: see ca_pinned_arena. */
void ca_pinned_retire_begin(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++) {
        context->leaving_pinned[i] = atomic_load(&context->pinned[i]);
        if (context->leaving_pinned[i])
            ca_arena_retire_begin(context->leaving_pinned[i]);
    }
}

void ca_pinned_retire_end(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++)
        if (context->leaving_pinned[i])
            ca_arena_retire_end(context->leaving_pinned[i]);
}

bool ca_pinned_revive(ca_context_t *context)
{
    for (unsigned i = 0; i < CA_PINNED_KINDS; i++) {
        ca_arena_t *arena = atomic_load(&context->pinned[i]);
        if (!arena || ca_arena_revive(arena))
            continue;
        while (i-- > 0)
            if ((arena = atomic_load(&context->pinned[i])))
                ca_arena_retire(arena);
        return false;
    }
    return true;
}

size_t ca_pinned_trim(size_t bytes)
{
    size_t released = 0;
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c)) {
        for (unsigned i = 0; i < CA_PINNED_KINDS && released < bytes; i++) {
            ca_arena_t *arena = atomic_load(&c->pinned[i]);
            if (arena && atomic_load(&c->state) == CA_CONTEXT_SERVING)
                released += ca_arena_trim(arena, bytes - released);
        }
    }
    return released;
}
