#include "shim/cuda/contexts.h"
#include "base/inline.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mutation.h"
#include "config/options.h"
#include "pool/fence/order.h"
#include "pool/range/range.h"
#include "registry/table/peak.h"
#include "registry/table/registry.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/context_entries.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/unseen.h"

_Thread_local ca_context_last_t ca_context_last;

unsigned long long ca_context_id(CUcontext handle)
{
    unsigned long long id;
    __typeof__(cuCtxGetId) *get = ca_driver()->cuCtxGetId;
    return get && get(handle, &id) == CUDA_SUCCESS ? id : 0;
}

/* Whether the handle stands for another context by now. */
static bool other_id(const ca_context_t *context)
{
    unsigned long long id = ca_context_id(context->handle);
    return id && context->id && id != context->id && !CA_MUTATED(context_handles_trusted);
}

bool ca_context_lost_id(const ca_context_t *context)
{
    return context->id && ca_context_id(context->handle) != context->id;
}

bool ca_context_lost_address(const ca_context_t *context, CUdeviceptr address)
{
    /* Addresses of ranges are released by us, and the driver names no context for them. */
    if (!context || atomic_load(&context->state) == CA_CONTEXT_SERVING || ca_range_holds(address) ||
        CA_MUTATED(lost_addresses_kept))
        return false;
    CUcontext now = NULL;
    __typeof__(cuPointerGetAttribute) *ask = ca_driver()->cuPointerGetAttribute;
    CUresult code = ask ? ask(&now, CU_POINTER_ATTRIBUTE_CONTEXT, address) : CUDA_ERROR_NOT_FOUND;
    /* Any other error says nothing of the address. */
    return code == CUDA_ERROR_INVALID_VALUE ||
           (code == CUDA_SUCCESS && (now != context->handle || other_id(context)));
}

static ca_context_t *make_for(CUcontext handle, CUdevice device, bool created)
{
    if (!ca_life_active() || !ca_entry_fits()) /* reads the options that an arena is made with */
        return NULL;
    bool pooled = ca_options.backend == CA_BACKEND_POOL;
    ca_context_t *fresh = ca_entry_blank(handle, ca_context_id(handle), device, pooled);
    if (!fresh)
        return NULL;
    fresh->created = created;
    if (pooled)
        ca_context_memory.make(fresh);
    ca_unseen_context(handle);
    ca_unseen_device(device);
    ca_unseen_scan();
    ca_modules_context_made();
    ca_context_t *context = ca_entry_publish(fresh);
    if (context != fresh)
        ca_entry_put_aside(fresh); /* another thread was first */
    ca_context_memory.published(context, context == fresh);
    ca_modules_context_first();
    return context;
}

/* For the current context. */
static ca_context_t *make(CUcontext handle)
{
    CUdevice device = 0;
    __typeof__(cuCtxGetDevice) *get = ca_driver()->cuCtxGetDevice;
    if (!get || get(&device) != CUDA_SUCCESS)
        return NULL;
    return make_for(handle, device, false);
}

/* NULL also for one that was destroyed behind our back, its handle used for another context. */
static ca_context_t *entry_of(CUcontext handle)
{
    ca_context_t *context = ca_context_again(handle);
    if (!context || context->handle != handle) /* a green one shares what was found */
        context = ca_entry_find(handle);
    if (!context || !other_id(context))
        return context;
    /* Another thread may have seen it too, and listed the new one. */
    ca_context_t *now = ca_context_suspend(handle);
    if (now)
        ca_context_resume(now, now == context);
    return now == context ? NULL : now;
}

void ca_context_made(CUcontext handle, CUdevice device, bool created)
{
    if (!ca_life_active() || !handle)
        return;
    ca_context_t *context = entry_of(handle);
    if (!context)
        make_for(handle, device, created);
    else if (created) /* a tool's callback within the driver's call asked for memory already */
        atomic_store(&context->created, true);
}

void ca_context_note_asked(ca_context_t *context)
{
    if (context && !atomic_load_explicit(&context->asked, memory_order_relaxed))
        atomic_store(&context->asked, true);
}

ca_context_t *ca_context_on(unsigned device)
{
    ca_context_t *living[CA_CONTEXTS_MAX], *found = NULL;
    size_t count = ca_contexts_living(living);
    for (size_t i = 0; i < count; i++)
        if (living[i]->device == device && (!found || !atomic_load(&living[i]->created)))
            found = living[i];
    return found;
}

static _Atomic bool some_open_to_peers, any_reached_by_all;

void ca_context_let_peer_in(ca_context_t *context)
{
    atomic_store(context ? &context->open_to_peers : &some_open_to_peers, true);
}

bool ca_context_has_peers(const ca_context_t *context)
{
    return atomic_load(&context->open_to_peers) || atomic_load(&some_open_to_peers);
}

void ca_context_reached_by(ca_context_t *owner, ca_context_t *user)
{
    for (size_t i = 0; owner && user && i < CA_CONTEXT_REACHED_MOST; i++) {
        ca_context_t *known = NULL;
        if (owner == user || atomic_load(&owner->reached_by[i]) == user ||
            atomic_compare_exchange_strong(&owner->reached_by[i], &known, user) || known == user)
            return;
    }
    atomic_store(owner ? &owner->reached_by_all : &any_reached_by_all, true);
}

bool ca_context_is_reached_by(const ca_context_t *owner, const ca_context_t *user)
{
    for (size_t i = 0; i < CA_CONTEXT_REACHED_MOST; i++)
        if (atomic_load(&owner->reached_by[i]) == user)
            return true;
    return atomic_load(&owner->reached_by_all) || atomic_load(&any_reached_by_all);
}

static ca_context_t *note_asked(ca_context_t *context, bool create)
{
    if (create)
        ca_context_note_asked(context);
    return context;
}

CA_INLINE ca_context_t *find_current(CUcontext current, bool create)
{
    if (!current)
        return NULL;
    unsigned now = atomic_load_explicit(&ca_context_generation, memory_order_acquire);
    /* Where no hook sees the end of contexts each call asks for the id (entry_of). */
    ca_context_t *context = ca_hooks_in_place() ? ca_context_again(current) : NULL;
    if (context)
        return note_asked(context, create);

    context = entry_of(current);
    if (!context && create)
        context = make(current);
    if (context && context->shares)
        context = atomic_load(&context->state) == CA_CONTEXT_SERVING ? context->shares : NULL;
    if (!context || atomic_load(&context->state) != CA_CONTEXT_SERVING)
        return NULL;
    ca_context_last = (ca_context_last_t){current, context, now};
    return note_asked(context, create);
}

ca_context_t *ca_context_current(bool create, CUcontext *handle)
{
    CUcontext current = NULL;
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    if (!get || get(&current) != CUDA_SUCCESS)
        current = NULL;
    if (handle)
        *handle = current;
    return find_current(current, create);
}

ca_context_t *ca_context_current_is(CUcontext current, bool create)
{
    return find_current(current, create);
}

static CUresult ask_current(CUcontext *current)
{
    __typeof__(cuCtxGetCurrent) *get = ca_driver()->cuCtxGetCurrent;
    *current = NULL;
    return get ? get(current) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult ca_context_check(void)
{
    CUcontext current;
    return ask_current(&current);
}

CUresult ca_context_check_current(void)
{
    CUcontext current;
    CUresult code = ask_current(&current);
    return code == CUDA_SUCCESS && !current ? CUDA_ERROR_INVALID_CONTEXT : code;
}

ca_context_t *ca_context_suspend(CUcontext handle)
{
    ca_context_t *context = ca_entry_suspend(handle);
    for (int tries = 0; context && ca_in_flight_any(&context->entered) && tries < 10000; tries++)
        ca_sleep(50000);
    return context;
}

void ca_context_resume(ca_context_t *context, bool destroyed)
{
    /* Two threads release it, a third retains it again: it is there, and it is another one. */
    destroyed = (destroyed || other_id(context)) && !CA_MUTATED(reuse_across_reset);
    if (!ca_entry_resume(context, destroyed))
        return;

    unsigned device = context->device;
    ca_capture_context_destroyed(context->handle, context->id);
    /* The arenas first: a free that has its record already finds its own retired and is ignored. */
    ca_order_forget(context);
    ca_context_memory.retire_begin(context);
    ca_peak_before_free();
    ca_registry_total_t lost = ca_registry_drop_context(context->number);
    ca_context_memory.retire_end(context);
    ca_graph_memory_drop_context(context->number);
    ca_modules_context_retired(context);
    ca_entry_recycle(context);
    if (lost.count)
        ca_info("device %u: context destroyed with %llu bytes in %llu allocations alive", device,
                (unsigned long long)lost.bytes, (unsigned long long)lost.count);
}

void ca_context_share(CUcontext green, CUcontext primary, CUdevice device)
{
    if (!ca_life_active() || entry_of(green))
        return;
    ca_context_t *owner = primary ? ca_entry_find(primary) : NULL;
    if (!owner && primary)
        owner = make_for(primary, device, false);
    ca_context_t *fresh = ca_entry_blank(green, ca_context_id(green), device, false);
    if (!fresh)
        return;
    fresh->shares = owner; /* without one it has no arena: the driver serves it */
    if (ca_entry_publish(fresh) != fresh)
        ca_entry_put_aside(fresh);
}

ca_context_t *ca_context_known(void)
{
    CUcontext handle;
    ca_context_t *context = ca_context_current(true, &handle);
    if (context || !handle)
        return context;
    context = ca_entry_find(handle);
    return context && context->shares ? context->shares : context;
}

ca_context_t *ca_context_of(CUcontext handle)
{
    ca_context_t *context = ca_hooks_in_place() ? ca_entry_find(handle) : entry_of(handle);
    return context && context->shares ? context->shares : context;
}
