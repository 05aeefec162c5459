/* The look at exit comes from a handler that is registered with the first guard: the driver's own
 * were before it, so it still works. It waits for work under way for a second in each context;
 * what has not come to rest by then is not looked at. */
#include "shim/debug_guard.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "config/log.h"
#include "config/text.h"
#include "pool/arena.h"
#include "shim/contexts.h"
#include "shim/debug_fill.h"
#include "shim/debug_notice.h"
#include "shim/fences.h"
#include "shim/life.h"
#include "shim/track.h"
#include "shim/upstream.h"

#define REST_NS UINT64_C(1000000000)

typedef unsigned long long number_t;

void ca_guard_check(const ca_record_t *record, const unsigned char *guard, bool by_free)
{
    ca_notice_t notice = {.count = 0};
    ca_text_t text;
    size_t first = 0, written = 0;
    while (first < CA_DEBUG_GUARD_BYTES && guard[first] == CA_DEBUG_GUARD)
        first++;
    for (size_t i = first; i < CA_DEBUG_GUARD_BYTES; i++)
        written += guard[i] != CA_DEBUG_GUARD;
    if (written == 0 || !ca_notice_wanted())
        return;
    ca_text_init(&text, notice.text, sizeof notice.text);
    ca_text_printf(&text,
                   "written behind the end of %llu bytes of %s memory on device %u at %#llx: the "
                   "first bad byte is at offset %llu, %zu of the %u behind it differ (found %s)",
                   (number_t)record->bytes, ca_kind_name((ca_kind_t)record->kind),
                   (unsigned)record->device, (number_t)record->address,
                   (number_t)record->bytes + first, written, CA_DEBUG_GUARD_BYTES,
                   by_free ? "by its free" : "at exit");
    ca_notice_add(&notice, "allocated", record->stack, record->thread);
    if (by_free)
        ca_notice_add(&notice, "freed", ca_track_stack(), ca_track_thread());
    ca_notice_say(&notice);
}

/* --- at exit ---------------------------------------------------------------------------------- */

/* Whether all work on the memory of the context is done. */
static bool at_rest(ca_context_t *context, bool host)
{
    void *fence;
    int rc = host ? ca_fence_record_host(context, &fence) : ca_fence_record(context, &fence);
    if (rc != 0)
        return false;
    rc = ca_fence_wait(context, fence, REST_NS);
    ca_fence_release(context, fence);
    return rc == 1;
}

static bool copy_guard(ca_context_t *context, const ca_record_t *record, unsigned char *guard)
{
    uint64_t end = record->address + record->bytes;
    if (record->kind == CA_KIND_PINNED)
        memcpy(guard, (const void *)(uintptr_t)end, CA_DEBUG_GUARD_BYTES);
    else if (ca_upstream_read(context, end, guard, CA_DEBUG_GUARD_BYTES) != CUDA_SUCCESS)
        return false;
    return true;
}

static void look_at(ca_context_t *context, const ca_record_t *record)
{
    unsigned char guard[CA_DEBUG_GUARD_BYTES];
    ca_record_t now;
    /* Another thread may have freed it while we looked. */
    if (copy_guard(context, record, guard) && ca_registry_find(record->address, &now) &&
        now.sequence == record->sequence)
        ca_guard_check(record, guard, false);
}

static void look_at_all(void)
{
    ca_record_t *records;
    size_t count;
    unsigned busy;
    if (!ca_life_active() || ca_registry_snapshot(&records, &count, &busy) != 0)
        return;
    /* The copy comes first: what fills a guard in it was submitted before the fence. */
    for (ca_context_t *c = ca_context_next(NULL); c; c = ca_context_next(c)) {
        if (atomic_load(&c->state) != CA_CONTEXT_SERVING || !c->arena)
            continue;
        if (!at_rest(c, true)) {
            ca_warn("debug:redzone: what is alive on device %u is not checked at exit: it is still "
                    "at work, or cannot tell",
                    (unsigned)c->device);
            continue;
        }
        for (size_t i = 0; i < count; i++)
            if (records[i].context == c->number && records[i].owner && !records[i].shared)
                look_at(c, &records[i]);
    }
    ca_registry_snapshot_free(records, count);
}

void ca_guard_made(void)
{
    static _Atomic bool registered;
    if (!atomic_load_explicit(&registered, memory_order_relaxed) &&
        !atomic_exchange(&registered, true))
        atexit(look_at_all);
}
