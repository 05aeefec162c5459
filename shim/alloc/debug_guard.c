/* The check at exit comes from a handler that is registered with the first guard: the driver's own
 * were before it, so it still works. It waits for work under way for a second in each context, and
 * skips a context that is not idle by then. */
#include "shim/alloc/debug_guard.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "shim/cuda/contexts.h"
#include "shim/alloc/debug_fill.h"
#include "shim/alloc/debug_notice.h"
#include "shim/upstream/fences.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"

#define IDLE_WAIT_NS UINT64_C(1000000000)

typedef unsigned long long number_t;

/* A context is checked when it may be destroyed, and again when it is; so each allocation is
 * reported once. */
static bool is_new(uint64_t sequence)
{
    static _Atomic uint64_t reported[CA_NOTICES];
    static _Atomic unsigned next;
    for (size_t i = 0; i < CA_NOTICES; i++)
        if (atomic_load(&reported[i]) == sequence)
            return false;
    atomic_store(&reported[atomic_fetch_add(&next, 1) % CA_NOTICES], sequence);
    return true;
}

void ca_guard_check(const ca_allocation_t *record, const unsigned char *guard, ca_guard_when_t when)
{
    static const char *const found[] = {
        [CA_GUARD_FREE] = "by its free",
        [CA_GUARD_EXIT] = "at exit",
        [CA_GUARD_CONTEXT] = "when its context was to go",
    };
    ca_notice_t notice = {.count = 0};
    ca_text_t text;
    size_t first = 0, written = 0;
    while (first < CA_DEBUG_GUARD_BYTES && guard[first] == CA_DEBUG_GUARD)
        first++;
    for (size_t i = first; i < CA_DEBUG_GUARD_BYTES; i++)
        written += guard[i] != CA_DEBUG_GUARD;
    if (written == 0 || (when != CA_GUARD_FREE && !is_new(record->sequence)) || !ca_notice_wanted())
        return;
    ca_text_init(&text, notice.text, sizeof notice.text);
    ca_text_printf(&text,
                   "written behind the end of %llu bytes of %s memory on device %u at %#llx: the "
                   "first bad byte is at offset %llu, %zu of the %u behind it differ (found %s)",
                   (number_t)record->bytes, ca_kind_name((ca_kind_t)record->kind),
                   (unsigned)record->device, (number_t)record->address,
                   (number_t)record->bytes + first, written, CA_DEBUG_GUARD_BYTES, found[when]);
    ca_notice_add(&notice, "allocated", record->stack, record->thread);
    if (when == CA_GUARD_FREE)
        ca_notice_add(&notice, "freed", ca_track_stack(), ca_track_thread());
    ca_notice_say(&notice);
}

/* --- at the end ------------------------------------------------------------------------------- */

/* Whether all work on the memory of the context is done. */
static bool wait_until_idle(ca_context_t *context, bool host)
{
    void *fence;
    int rc =
        host ? ca_fence_record_host(context, true, &fence) : ca_fence_record(context, true, &fence);
    if (rc != 0)
        return false;
    rc = ca_fence_wait(context, fence, ca_bound(IDLE_WAIT_NS));
    ca_fence_release(context, fence);
    return rc == 1;
}

/* Through the kernel, which answers where the memory is unmapped: another thread may free it and
 * trim while we copy. By a pipe, since process_vm_readv may be forbidden in a container, and reads
 * no mapping of a device. */
static bool copy_host(const void *from, unsigned char *guard)
{
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0)
        return false;
    bool copied = write(pipe_ends[1], from, CA_DEBUG_GUARD_BYTES) == CA_DEBUG_GUARD_BYTES &&
                  read(pipe_ends[0], guard, CA_DEBUG_GUARD_BYTES) == CA_DEBUG_GUARD_BYTES;
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    return copied;
}

static bool copy_guard(ca_context_t *context, const ca_allocation_t *record, unsigned char *guard)
{
    uint64_t end = record->address + record->bytes;
    if (record->kind == CA_KIND_PINNED)
        return copy_host((const void *)(uintptr_t)end, guard);
    return ca_upstream_read(context, end, guard, CA_DEBUG_GUARD_BYTES) == CUDA_SUCCESS;
}

static void check_one(ca_context_t *context, const ca_allocation_t *record, ca_guard_when_t when)
{
    unsigned char guard[CA_DEBUG_GUARD_BYTES];
    ca_allocation_t now;
    /* Another thread may have freed it meanwhile. */
    if (copy_guard(context, record, guard) && ca_registry_find(record->address, &now) &&
        now.sequence == record->sequence)
        ca_guard_check(record, guard, when);
}

static void check_arena(ca_context_t *context, const ca_allocation_t *records, size_t count,
                        ca_guard_when_t when)
{
    if (atomic_load(&context->state) != CA_CONTEXT_SERVING || !context->arena)
        return;
    if (!wait_until_idle(context, true)) {
        ca_warn("debug:redzone: what is alive on device %u is not checked at %s: it is still at "
                "work, or cannot tell",
                (unsigned)context->device,
                when == CA_GUARD_EXIT ? "exit" : "the end of its context");
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (records[i].context == context->number && records[i].owner && !records[i].shared)
            check_one(context, &records[i], when);
}

/* In every context, or in that of `handle`. */
static void check_contexts(CUcontext handle, ca_guard_when_t when)
{
    ca_allocation_t *records;
    size_t count;
    unsigned busy;
    if (!ca_life_active() || ca_registry_snapshot(&records, &count, &busy) != 0)
        return;
    /* The copy comes first: what fills a guard in it was submitted before the fence. */
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c))
        if (!handle || c->handle == handle)
            check_arena(c, records, count, when);
    ca_registry_snapshot_free(records, count);
}

static void check_all(void)
{
    check_contexts(NULL, CA_GUARD_EXIT);
}

void ca_guard_inspect(CUcontext handle)
{
    if (handle)
        check_contexts(handle, CA_GUARD_CONTEXT);
}

void ca_guard_made(void)
{
    static _Atomic bool registered;
    if (!atomic_load_explicit(&registered, memory_order_relaxed) &&
        !atomic_exchange(&registered, true))
        atexit(check_all);
}
