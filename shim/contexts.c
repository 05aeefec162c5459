#include "shim/contexts.h"
#include <time.h>
#include "config/cancel.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/mem.h"
#include "config/mutation.h"
#include "config/options.h"
#include "config/patience.h"
#include "pool/export.h"
#include "registry/registry.h"
#include "shim/backend_async.h"
#include "shim/decay.h"
#include "shim/dump_signal.h"
#include "shim/keep_journal.h"
#include "shim/driver_table.h"
#include "shim/fences.h"
#include "shim/heaps.h"
#include "shim/hit.h"
#include "shim/life.h"
#include "shim/pinned_memory.h"
#include "shim/pin_mode.h"
#include "shim/publish.h"
#include "shim/shared_memory.h"
#include "shim/upstream.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(ca_context_t)};
static ca_context_t *_Atomic all;
static uint16_t last_number;
static _Atomic uint64_t lives;

/* The entries that are not retired. */
static ca_context_t *living[CA_CONTEXTS_MAX];
static size_t living_count;

/* The retired ones, in the order in which they were. */
static ca_context_t *resting, **resting_end = &resting;
static size_t resting_count;

/* Calls under way that may destroy a context, and those that are done. */
static _Atomic unsigned leaving_calls, settled_calls;

/* Some context has no entry, so that no fence would cover its work. */
static _Atomic bool unlisted;

/* Advanced whenever an entry changes its state: what a thread remembers is then looked up again. */
_Atomic unsigned ca_context_generation;
_Thread_local ca_context_memo_t ca_context_memo;

static ca_context_t *find(CUcontext handle)
{
    for (size_t i = 0; i < living_count; i++)
        if (living[i]->handle == handle)
            return living[i];
    return NULL;
}

static unsigned long long id_of(CUcontext handle)
{
    unsigned long long id;
    __typeof__(cuCtxGetId) *get = ca_driver()->cuCtxGetId;
    return get && get(handle, &id) == CUDA_SUCCESS ? id : 0;
}

/* Whether the handle stands for another context by now. */
static bool other_id(const ca_context_t *context)
{
    unsigned long long id = id_of(context->handle);
    return id && context->id && id != context->id && !CA_MUTATED(context_handles_trusted);
}

bool ca_context_lost_id(const ca_context_t *context)
{
    return context->id && id_of(context->handle) != context->id;
}

bool ca_context_lost_address(const ca_context_t *context, CUdeviceptr address)
{
    if (!context || atomic_load(&context->state) == CA_CONTEXT_SERVING ||
        CA_MUTATED(lost_addresses_kept))
        return false;
    CUcontext now = NULL;
    __typeof__(cuPointerGetAttribute) *ask = ca_driver()->cuPointerGetAttribute;
    CUresult code = ask ? ask(&now, CU_POINTER_ATTRIBUTE_CONTEXT, address) : CUDA_ERROR_NOT_FOUND;
    /* Any other error says nothing of the address. */
    return code == CUDA_ERROR_INVALID_VALUE ||
           (code == CUDA_SUCCESS && (now != context->handle || other_id(context)));
}

/* A retired entry, or one that nobody ever found, waits for another life. */
static void rest(ca_context_t *context)
{
    context->later = NULL;
    *resting_end = context;
    resting_end = &context->later;
    resting_count++;
}

/* Takes out the first that may be revived for a context on `device`, or NULL: nobody is in it, no
 * epoch of another context waits for its events, and it has an arena, or none. */
static ca_context_t *rested(CUdevice device, bool pooled)
{
    ca_context_t **at = &resting;
    for (size_t left = resting_count; left > CA_CONTEXTS_RESTING; left--, at = &(*at)->later) {
        ca_context_t *context = *at;
        if (context->device != device || !context->arena != !pooled || context->leaving ||
            atomic_load(&context->entered) || atomic_load(&context->fences))
            continue;
        *at = context->later;
        if (resting_end == &context->later)
            resting_end = at;
        resting_count--;
        return context;
    }
    return NULL;
}

/* All that is not the arenas' and not the next context's. */
static void wipe(ca_context_t *context)
{
    context->own_stream = NULL;
    atomic_store(&context->shares, NULL);
    atomic_store(&context->last_wait_ns, 0);
    atomic_store(&context->asked, false);
    atomic_store(&context->broken, 0);
    atomic_store(&context->open_to_peers, false);
    ca_pin_mode_forget(context);
}

/* An entry that nobody can find yet, with arenas if it is `pooled` and not new; or NULL. */
static ca_context_t *blank(CUcontext handle, CUdevice device, bool pooled)
{
    ca_lock_take(&lock);
    ca_context_t *old = rested(device, pooled);
    ca_lock_drop(&lock);
    bool revived = old && ca_heaps_revive(old);
    bool whole = revived && ca_pinned_revive(old);
    if (revived && !whole)
        ca_heaps_retire(old);
    if (whole)
        wipe(old);
    ca_lock_take(&lock);
    if (old && !whole)
        rest(old); /* a thread is in there after all */
    ca_context_t *fresh = whole ? old : ca_slab_take(&slab);
    ca_lock_drop(&lock);
    if (fresh) {
        fresh->handle = handle;
        fresh->id = id_of(handle);
        fresh->life = 1 + atomic_fetch_add(&lives, 1);
        if (fresh != old) /* whoever walks past the old one reads it */
            fresh->device = (uint8_t)device;
    }
    return fresh;
}

/* One that no living context has. */
static uint16_t next_number(void)
{
    for (bool taken = true; taken;) {
        taken = ++last_number == 0;
        for (size_t i = 0; i < living_count && !taken; i++)
            taken = living[i]->number == last_number;
    }
    return last_number;
}

/* Puts `fresh` in front of all, unless there is an entry for its handle. Returns the handle's
 * entry, or NULL when there is no room: the driver then serves the context. */
static ca_context_t *publish(ca_context_t *fresh)
{
    ca_lock_take(&lock);
    ca_context_t *context = find(fresh->handle);
    if (!context && living_count == CA_CONTEXTS_MAX) {
        atomic_store(&unlisted, true);
    } else if (!context) {
        context = fresh;
        context->number = next_number();
        atomic_store(&context->state, CA_CONTEXT_SERVING);
        living[living_count++] = fresh;
        if (!context->listed) {
            context->listed = true;
            context->next = atomic_load(&all);
            atomic_store(&all, context);
        }
    }
    ca_lock_drop(&lock);
    return context;
}

/* It was not published. */
static void put_aside(ca_context_t *fresh)
{
    atomic_store(&fresh->state, CA_CONTEXT_RETIRED);
    ca_heaps_retire(fresh);
    ca_pinned_retire_begin(fresh);
    ca_pinned_retire_end(fresh);
    ca_lock_take(&lock);
    rest(fresh);
    ca_lock_drop(&lock);
}

/* Bytes that the device has, or 0 when that cannot be told. */
static size_t ca_context_total_bytes(CUdevice device)
{
    size_t bytes = 0;
    __typeof__(cuDeviceTotalMem_v2) *get = ca_driver()->cuDeviceTotalMem_v2;
    return get && get(&bytes, device) == CUDA_SUCCESS ? bytes : 0;
}

/* What `limit` means on this device, in bytes. */
static size_t limit_on(CUdevice device)
{
    if (!ca_options.limit.percent)
        return ca_options.limit.bytes;
    size_t total = ca_context_total_bytes(device);
    if (total)
        return total / 100 * ca_options.limit.percent +
               total % 100 * ca_options.limit.percent / 100;
    ca_warn_once("limit: how much memory device %d has cannot be told, so there is no limit",
                 device);
    return SIZE_MAX;
}

/* Whether one more can be listed. */
static bool room_for_one(void)
{
    ca_lock_take(&lock);
    bool room = living_count < CA_CONTEXTS_MAX;
    if (!room)
        atomic_store(&unlisted, true);
    ca_lock_drop(&lock);
    return room;
}

static ca_context_t *make_for(CUcontext handle, CUdevice device)
{
    if (!ca_life_active() || !room_for_one()) /* reads the options that an arena is made with */
        return NULL;
    bool pooled = ca_options.backend == CA_BACKEND_POOL;
    ca_context_t *fresh = blank(handle, device, pooled);
    if (!fresh)
        return NULL;
    if (pooled && !fresh->arena) {
        fresh->limit = limit_on(device);
        ca_arena_params_t params = {
            .max_split = ca_options.max_split,
            .limit = fresh->limit,
            .headroom = ca_options.headroom,
            .reuse = (ca_reuse_t)ca_options.reuse,
            .reuse_wait_ns = ca_options.reuse_wait,
            .join = (ca_join_t)ca_options.async_reuse,
            .thread_cache = ca_options.thread_cache,
            .settle = ca_options.settle,
            .size_classes = ca_options.size_classes.bytes,
            .size_class_count = ca_options.size_classes.count,
            .small = ca_options.small,
            .roundup = CA_ROUNDUP_STEPS(ca_options.roundup),
            .gc_threshold = ca_options.gc_threshold,
            .device_bytes = ca_options.gc_threshold ? ca_context_total_bytes(device) : 0,
        };
        if (ca_options.ipc == CA_IPC_DEDICATED)
            ca_pool_dedicate(true);
        ca_heaps_make(fresh, &params, ca_options.shards);
    }

    ca_keep_journal_start(); /* before anything is allocated in it */
    ca_context_t *context = publish(fresh);
    if (context != fresh)
        put_aside(fresh); /* another thread was first */
    else
        ca_pin_mode_apply(context);
    ca_life_context_in_use();
    ca_decay_start();
    ca_dump_signal_start();
    ca_publish_start();
    return context;
}

/* For the current context. */
static ca_context_t *make(CUcontext handle)
{
    CUdevice device = 0;
    __typeof__(cuCtxGetDevice) *get = ca_driver()->cuCtxGetDevice;
    if (!get || get(&device) != CUDA_SUCCESS)
        return NULL;
    return make_for(handle, device);
}

/* NULL also for one that was destroyed behind our back, its handle given to another context. */
static ca_context_t *entry_of(CUcontext handle)
{
    ca_lock_take(&lock);
    ca_context_t *context = find(handle);
    ca_lock_drop(&lock);
    if (!context || !other_id(context))
        return context;
    /* Another thread may have seen it too, and listed the new one. */
    ca_context_t *now = ca_context_suspend(handle);
    if (now)
        ca_context_settle(now, now == context);
    return now == context ? NULL : now;
}

void ca_context_made(CUcontext handle, CUdevice device)
{
    if (ca_life_active() && handle && !entry_of(handle))
        make_for(handle, device);
}

bool ca_contexts_all_listed(void)
{
    return !atomic_load_explicit(&unlisted, memory_order_relaxed);
}

static ca_context_t *note_asked(ca_context_t *context, bool create)
{
    if (create && !atomic_load_explicit(&context->asked, memory_order_relaxed))
        atomic_store(&context->asked, true);
    return context;
}

ca_context_t *ca_context_current(bool create, CUcontext *handle)
{
    CUcontext current = NULL;
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    if (!get || get(&current) != CUDA_SUCCESS)
        current = NULL;
    if (handle)
        *handle = current;
    if (!current)
        return NULL;
    unsigned now = atomic_load_explicit(&ca_context_generation, memory_order_acquire);
    ca_context_t *context = ca_context_again(current);
    if (context)
        return note_asked(context, create);

    context = entry_of(current);
    if (!context && create)
        context = make(current);
    if (context && context->shares)
        context = atomic_load(&context->state) == CA_CONTEXT_SERVING ? context->shares : NULL;
    if (!context || atomic_load(&context->state) != CA_CONTEXT_SERVING)
        return NULL;
    ca_context_memo = (ca_context_memo_t){current, context, now};
    return note_asked(context, create);
}

CUresult ca_context_check(void)
{
    CUcontext current = NULL;
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    CUresult code = get ? get(&current) : CUDA_ERROR_NOT_INITIALIZED;
    return code == CUDA_SUCCESS && !current ? CUDA_ERROR_INVALID_CONTEXT : code;
}

static void set_state(ca_context_t *context, ca_context_state_t state)
{
    atomic_store(&context->state, state);
    atomic_fetch_add_explicit(&ca_context_generation, 1, memory_order_release);
    ca_hit_settle();
}

ca_context_t *ca_context_suspend(CUcontext handle)
{
    ca_lock_take(&lock);
    ca_context_t *context = handle ? find(handle) : NULL;
    if (context) {
        context->leaving++;
        atomic_fetch_add(&leaving_calls, 1);
        set_state(context, CA_CONTEXT_SUSPENDED);
    }
    ca_lock_drop(&lock);
    const struct timespec pause = {.tv_nsec = 50000};
    int cancel = ca_cancel_hold(); /* it would stay suspended for good */
    for (int tries = 0; context && atomic_load(&context->entered) > 0 && tries < 10000; tries++)
        nanosleep(&pause, NULL);
    ca_cancel_resume(cancel);
    return context;
}

void ca_context_settle(ca_context_t *context, bool gone)
{
    /* Two threads release it, a third retains it again: it is there, and it is another one. */
    gone = (gone || other_id(context)) && !CA_MUTATED(reuse_across_reset);
    ca_lock_take(&lock);
    context->leaving--;
    bool retire = gone && atomic_load(&context->state) != CA_CONTEXT_RETIRED;
    if (retire) {
        /* The green contexts whose memory it had go with it. */
        for (size_t i = 0; i < living_count; i++)
            if (living[i] == context || living[i]->shares == context) {
                set_state(living[i], CA_CONTEXT_RETIRED);
                if (living[i] != context)
                    rest(living[i]);
                living[i--] = living[--living_count];
            }
    } else if (atomic_load(&context->state) == CA_CONTEXT_SUSPENDED && context->leaving == 0) {
        set_state(context, CA_CONTEXT_SERVING);
    }
    atomic_fetch_add(&settled_calls, 1); /* first: see ca_ends_wait */
    atomic_fetch_sub(&leaving_calls, 1);
    ca_lock_drop(&lock);
    if (!retire)
        return;

    unsigned device = context->device;
    /* The arenas first: a free that has its record already finds its own retired and is ignored. */
    ca_heaps_retire_begin(context);
    ca_pinned_retire_begin(context);
    ca_backend_async_gone(context);
    ca_registry_total_t lost = ca_registry_drop_context(context->number);
    ca_heaps_retire_end(context);
    ca_pinned_retire_end(context);
    ca_shared_drop_context(context->number);
    ca_fences_forget(context);
    ca_lock_take(&lock);
    rest(context);
    ca_lock_drop(&lock);
    if (lost.count)
        ca_info("device %u: context destroyed with %llu bytes in %llu allocations alive", device,
                (unsigned long long)lost.bytes, (unsigned long long)lost.count);
}

unsigned ca_contexts_leaving(void)
{
    return atomic_load(&leaving_calls);
}

unsigned ca_contexts_settled(void)
{
    return atomic_load(&settled_calls);
}

void ca_context_share(CUcontext green, CUcontext primary, CUdevice device)
{
    if (!ca_life_active())
        return;
    ca_lock_take(&lock);
    ca_context_t *owner = primary ? find(primary) : NULL;
    ca_lock_drop(&lock);
    if (!owner && primary)
        owner = make_for(primary, device);
    ca_context_t *fresh = blank(green, device, false);
    if (!fresh)
        return;
    fresh->shares = owner; /* without one it has no arena: the driver serves it */
    if (publish(fresh) != fresh)
        put_aside(fresh);
}

/* Under the lock. */
static size_t list_living(ca_context_t *contexts[CA_CONTEXTS_MAX])
{
    size_t count = 0;
    for (size_t i = 0; i < living_count; i++)
        if (!living[i]->shares)
            contexts[count++] = living[i];
    return count;
}

size_t ca_contexts_living(ca_context_t *contexts[CA_CONTEXTS_MAX])
{
    ca_lock_take(&lock);
    size_t count = list_living(contexts);
    ca_lock_drop(&lock);
    return count;
}

bool ca_contexts_try_living(ca_context_t *contexts[CA_CONTEXTS_MAX], size_t *count)
{
    bool taken = ca_patience_take(&lock);
    *count = taken ? list_living(contexts) : 0;
    if (taken)
        ca_lock_drop(&lock);
    return taken;
}

ca_context_t *ca_context_numbered(uint16_t number)
{
    ca_context_t *found = NULL;
    for (ca_context_t *c = atomic_load(&all); c; c = c->next)
        if (c->number == number && (!found || atomic_load(&c->state) != CA_CONTEXT_RETIRED))
            found = c;
    return found;
}

ca_context_t *ca_context_known(void)
{
    CUcontext handle;
    ca_context_t *context = ca_context_current(true, &handle);
    if (context || !handle)
        return context;
    ca_lock_take(&lock);
    context = find(handle);
    ca_lock_drop(&lock);
    return context && context->shares ? context->shares : context;
}

ca_context_t *ca_context_of(CUcontext handle)
{
    ca_lock_take(&lock);
    ca_context_t *context = find(handle);
    ca_lock_drop(&lock);
    return context && context->shares ? context->shares : context;
}

ca_context_t *ca_context_next(const ca_context_t *context)
{
    return context ? context->next : atomic_load(&all);
}

void ca_contexts_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = sizeof(ca_context_t)}; /* the parent's stays mapped */
    atomic_store(&all, NULL);
    resting = NULL;
    resting_end = &resting;
    living_count = resting_count = 0;
    atomic_store(&leaving_calls, 0);
    atomic_store(&unlisted, false);
    atomic_fetch_add(&ca_context_generation, 1);
    ca_upstream_reset_after_fork();
    ca_pin_mode_reset_after_fork();
}
