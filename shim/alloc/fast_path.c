#include "shim/alloc/fast_path.h"
#include <errno.h>
#include <stdatomic.h>
#include "base/history.h"
#include "base/mutation.h"
#include "pool/range/export.h"
#include "registry/table/freed.h"
#include "registry/journal/journal.h"
#include "registry/table/peak.h"
#include "shim/upstream/attributes.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/recorder.h"

static const char none;                                    /* no context has this handle */
static ca_cache_t closed = {.entry = CA_CACHE_LOCKED_OUT}; /* for threads that have none */

static bool allowed(const ca_life_page_t *page)
{
    int state = atomic_load(&ca_life_state);
    return (state == CA_LIFE_STARTING || state == CA_LIFE_ACTIVE) &&
           atomic_load(&page->same_process) && !ca_capture_active() && !ca_options.free_sync &&
           !(ca_options.debug & CA_DEBUG_ANY) && !ca_attributes_any() &&
           !atomic_load(&ca_peak_due) && !atomic_load(&ca_recorder_on) &&
           !atomic_load(&ca_history_on) && !atomic_load(&ca_journal_on) &&
           !CA_MUTATED(reuse_pending) && !CA_MUTATED(pinned_reuse);
}

/* The thread that comes second asks again: the last generation says what held after the last
 * change. */
void ca_fast_invalidate(void)
{
    ca_life_page_t *page = &ca_life_page;
    uint64_t old = atomic_load(&page->generation), generation;
    do
        generation = (old | 1) + 1 + allowed(page);
    while (!atomic_compare_exchange_weak(&page->generation, &old, generation));
}

/* The current context, if it may serve on the fast path. */
static ca_context_t *current(void)
{
    ca_context_t *context = ca_context_again(ca_context_last.handle);
    if (!context)
        context = ca_context_current(false, NULL);
    return context && context->arena && !atomic_load(&context->broken) ? context : NULL;
}

/* The thread's cache in front of an arena, or the closed one. */
static ca_cache_t *cache_before(const ca_arena_t *arena)
{
    ca_cache_t *cache = ca_cache_recent(arena);
    return cache && cache->simple ? cache : &closed;
}

/* The generation is read before all that it vouches for. Without a cache in front of the context's
 * arena the fast path serves pinned memory, and frees to other arenas. */
void ca_fast_remember(ca_api_t api)
{
    uint64_t generation = atomic_load_explicit(&ca_life_page.generation, memory_order_acquire);
    if (!(generation & 1))
        return;
    if (ca_thread.generations[api] == generation && ca_thread.handle == ca_context_last.handle &&
        ca_thread.cache == cache_before(ca_thread.context->arena)) {
        ca_thread.cache_most = ca_cache_get(&ca_thread.cache->most); /* follows what is live */
        ca_thread.arena = ca_thread.context->arena;
        return;
    }
    ca_thread_forget();
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    ca_context_t *context = current();
    if (!get || !ca_thread_counts)
        return;
    ca_thread.get_current = (void (*)(void))get;
    ca_thread.counts = ca_thread_counts;
    ca_thread.cache = &closed;
    ca_thread.handle = &none;
    ca_thread.pinned_arena = NULL;
    ca_thread.cache_most = 0;
    if (context) {
        ca_thread.arena = context->arena;
        ca_thread.cache = cache_before(ca_thread.arena);
        ca_thread.cache_most = ca_cache_get(&ca_thread.cache->most);
        ca_thread.handle = ca_context_last.handle;
        ca_thread.context = context;
        ca_thread.origin = ca_record_origin(context->device, context->number, ca_track_thread());
    }
    ca_thread.generations[CA_API_DRIVER] = generation;
    if (api == CA_API_RUNTIME && ca_options.x_runtime_hooks)
        ca_thread.generations[CA_API_RUNTIME] = generation;
}

void ca_fast_finish_free(ca_thread_counts_t *counts, uint64_t credit, ca_cache_t *due)
{
    ca_live_leave_credit(counts, credit);
    if (due)
        ca_cache_close_epoch(due, CA_BY_FREE);
}

/* A cache may keep it once more is live: the other way finds out. */
static bool is_large(size_t bytes)
{
    return bytes > CA_CACHE_ALWAYS && bytes > ca_cache_get(&ca_thread.cache->most);
}

/* Of memory that is out of the arena already. A call that may destroy the context waits. */
static bool note_large(ca_block_t *block, uint64_t bytes, uint32_t stack)
{
    ca_context_t *context = ca_thread.context;
    unsigned part = ca_in_flight_enter(&context->entered);
    bool noted = atomic_load(&context->state) == CA_CONTEXT_SERVING &&
                 ca_registry_insert_again(&block->record, &ca_thread.origin, CA_KIND_DEVICE, bytes,
                                          block, stack, ca_thread.counts);
    ca_in_flight_leave_part(&context->entered, part);
    if (noted && atomic_load(&context->state) == CA_CONTEXT_RETIRED)
        ca_track_dropped(context, block->address);
    return noted;
}

int ca_fast_alloc_large(ca_api_t api, size_t bytes, uint64_t *address)
{
    CUcontext handle;
    ca_block_t *block;
    if (!ca_fast_ready(api) || !is_large(bytes) || !ca_fast_context(&handle) ||
        handle != ca_thread.handle)
        return -ENOENT;
    uint32_t stack = ca_track_stack_of(bytes);
    if (ca_arena_alloc_passed(ca_thread.arena, bytes, &block, address) != 0)
        return -EAGAIN;
    ca_pool_note_request(bytes);
    ca_live_ready(ca_thread.counts, bytes); /* behind all that may call out */
    bool noted = note_large(block, bytes, stack);
    ca_thread_counts_add(&ca_thread.counts->fast_allocs[api], 1);
    if (noted || ca_fast_note_first(api, block, bytes, CA_KIND_DEVICE, stack))
        return 0;
    return -ENOENT;
}

bool ca_fast_free_large(ca_api_t api, ca_record_t *record, uint64_t state, ca_kind_t kind)
{
    ca_block_t *block = (ca_block_t *)(void *)record; /* it begins with it */
    ca_thread_counts_t *counts = ca_thread.counts;
    const ca_arena_t *arena = __atomic_load_n(&block->arena, __ATOMIC_ACQUIRE);
    const ca_context_t *context =
        arena == ca_thread.arena ? ca_thread.context : ca_arena_context(arena);
    CUcontext handle;
    ca_allocation_t allocation;
    bool plain = kind == CA_KIND_DEVICE && ca_record_plain(record, kind) && context &&
                 ca_cache_mark_of(block) == CA_CACHE_NO_CLASS && !atomic_load(&context->broken);
    ca_registry_release_held(record, state); /* over the driver's call */
    /* In the driver's api that was asked. It may have ended: then the answer is its own. */
    if (!plain || (api == CA_API_RUNTIME && (!ca_fast_context(&handle) || !handle)) ||
        !ca_record_lock(record, state))
        return false;
    ca_record_copy(record, ca_record_address(record), state, &allocation);
    ca_registry_erase_held(record, state);
    ca_thread_counts_add(&counts->fast_frees[api], 1);
    ca_live_leave_own(counts, allocation.bytes);
    ca_freed_note(&allocation, 0, 0); /* with debug:frees the slow path serves all */
    ca_pool_note_free(allocation.bytes);
    if (!ca_graph_memory_keep(&allocation))
        ca_arena_free(block);
    return true;
}

bool ca_fast_note_first(ca_api_t api, ca_block_t *block, uint64_t bytes, ca_kind_t kind,
                        uint32_t stack)
{
    ca_context_t *context = ca_thread.context;
    ca_allocation_t record = {
        .address = block->address,
        .bytes = bytes,
        .kind = kind,
        .device = context->device,
        .context = context->number,
        .owner = block,
        .stack = stack,
        .thread = ca_track_thread(),
    };
    if (ca_track_insert(context, &record) != 0) {
        ca_cached_free(block);
        ca_thread_counts_take(&ca_thread.counts->fast_allocs[api], 1);
        return false;
    }
    ca_thread_counts_take(&ca_thread.counts->live, 1); /* the fast path counts it */
    return true;
}
