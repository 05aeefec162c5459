#include "shim/contexts.h"
#include "config/lock.h"
#include "config/log.h"
#include "config/mem.h"
#include "config/mutation.h"
#include "config/options.h"
#include "registry/registry.h"
#include "shim/driver_table.h"
#include "shim/life.h"
#include "shim/upstream.h"

#define PEERS_MAX 1024 /* pairs: eight devices, all with all, are 56 */

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(ca_context_t)};
static ca_context_t *_Atomic all;
static uint16_t numbers;

static struct {
    ca_context_t *accessor;
    CUcontext owner;
} peers[PEERS_MAX];
static size_t peer_count;

/* Advanced whenever an entry changes its state: what a thread remembers is then looked up again. */
static _Atomic unsigned generation;

static _Thread_local struct {
    CUcontext handle;
    ca_context_t *context;
    unsigned generation;
} memo;

static ca_context_t *find(CUcontext handle)
{
    for (ca_context_t *c = atomic_load(&all); c; c = c->next)
        if (c->handle == handle && atomic_load(&c->state) != CA_CONTEXT_RETIRED)
            return c;
    return NULL;
}

_Static_assert((int)CA_POOL_REUSE_AUTO == (int)CA_REUSE_AUTO &&
                   (int)CA_POOL_REUSE_GROW == (int)CA_REUSE_GROW &&
                   (int)CA_POOL_REUSE_WAIT == (int)CA_REUSE_WAIT,
               "the pool knows the option by its own names");

static unsigned long long id_of(CUcontext handle)
{
    unsigned long long id;
    __typeof__(cuCtxGetId) *get = ca_driver()->cuCtxGetId;
    return get && get(handle, &id) == CUDA_SUCCESS ? id : 0;
}

/* A new entry that nobody can find yet, or NULL. */
static ca_context_t *blank(CUcontext handle, CUdevice device)
{
    ca_lock_take(&lock);
    ca_context_t *fresh = ca_slab_take(&slab);
    ca_lock_drop(&lock);
    if (fresh) {
        fresh->handle = handle;
        fresh->id = id_of(handle);
        fresh->device = (uint8_t)device;
    }
    return fresh;
}

/* Puts `fresh` in front of all, unless there is an entry for its handle. Returns the handle's
 * entry, or NULL when there are no numbers left. */
static ca_context_t *publish(ca_context_t *fresh)
{
    ca_lock_take(&lock);
    ca_context_t *context = find(fresh->handle);
    if (!context && numbers < UINT16_MAX) {
        context = fresh;
        context->number = ++numbers;
        context->next = atomic_load(&all);
        atomic_store(&all, context);
    }
    ca_lock_drop(&lock);
    return context;
}

static ca_context_t *make_for(CUcontext handle, CUdevice device)
{
    ca_context_t *fresh = blank(handle, device);
    if (!fresh)
        return NULL;
    if (ca_options.backend == CA_BACKEND_POOL) {
        ca_arena_params_t params = {
            .max_split = ca_options.max_split,
            .limit = ca_options.limit,
            .headroom = ca_options.headroom,
            .reuse = (ca_reuse_t)ca_options.reuse,
            .reuse_wait_ns = ca_options.reuse_wait,
        };
        fresh->arena = ca_arena_create(&ca_upstream_cuda, fresh, &params);
    }

    ca_context_t *context = publish(fresh);
    if (context != fresh && fresh->arena)
        ca_arena_retire(fresh->arena); /* another thread was first */
    ca_life_context_in_use();
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
    unsigned now = atomic_load_explicit(&generation, memory_order_acquire);
    if (memo.handle == current && memo.generation == now && memo.context)
        return memo.context;

    ca_lock_take(&lock);
    ca_context_t *context = find(current);
    ca_lock_drop(&lock);
    /* Destroyed behind our back, and the handle given to another context. */
    if (context && context->id != id_of(current) && ca_context_suspend(current) == context) {
        ca_context_retire(context);
        context = NULL;
    }
    if (!context && create)
        context = make(current);
    if (context && context->shares)
        context = atomic_load(&context->state) == CA_CONTEXT_SERVING ? context->shares : NULL;
    if (!context || atomic_load(&context->state) != CA_CONTEXT_SERVING)
        return NULL;
    memo.handle = current;
    memo.context = context;
    memo.generation = now;
    return context;
}

static void set_state(ca_context_t *context, ca_context_state_t state)
{
    atomic_store(&context->state, state);
    atomic_fetch_add_explicit(&generation, 1, memory_order_release);
}

ca_context_t *ca_context_suspend(CUcontext handle)
{
    ca_lock_take(&lock);
    ca_context_t *context = handle ? find(handle) : NULL;
    if (context && atomic_load(&context->state) == CA_CONTEXT_SERVING)
        set_state(context, CA_CONTEXT_SUSPENDED);
    else
        context = NULL; /* another thread is destroying it */
    ca_lock_drop(&lock);
    return context;
}

void ca_context_resume(ca_context_t *context)
{
    set_state(context, CA_CONTEXT_SERVING);
}

void ca_context_retire(ca_context_t *context)
{
    if (CA_MUTATED(reuse_across_reset)) {
        ca_context_resume(context);
        return;
    }
    ca_lock_take(&lock);
    set_state(context, CA_CONTEXT_RETIRED);
    size_t kept = 0;
    for (size_t i = 0; i < peer_count; i++)
        if (peers[i].accessor != context && peers[i].owner != context->handle)
            peers[kept++] = peers[i];
    peer_count = kept;
    ca_lock_drop(&lock);

    /* The arena first: a free that has its record already finds it retired and is ignored. */
    if (context->arena)
        ca_arena_retire(context->arena);
    ca_registry_total_t lost = ca_registry_drop_context(context->number);
    if (lost.count)
        ca_info("device %u: context destroyed with %llu bytes in %llu allocations alive",
                context->device, (unsigned long long)lost.bytes, (unsigned long long)lost.count);
}

void ca_context_share(CUcontext green, CUcontext primary, CUdevice device)
{
    ca_lock_take(&lock);
    ca_context_t *owner = find(primary);
    ca_lock_drop(&lock);
    if (!owner)
        owner = make_for(primary, device);
    ca_context_t *fresh = owner ? blank(green, device) : NULL;
    if (!fresh)
        return;
    fresh->shares = owner;
    if (publish(fresh) == fresh)
        ca_context_note_peer(fresh, primary);
}

void ca_context_note_peer(ca_context_t *accessor, CUcontext owner)
{
    bool full = false;
    ca_lock_take(&lock);
    if (peer_count < PEERS_MAX) {
        peers[peer_count].accessor = accessor;
        peers[peer_count].owner = owner;
        peer_count++;
    } else {
        full = true;
        /* A fence that forgets a peer would hand memory out too early: stop pooling instead. */
        for (ca_context_t *c = atomic_load(&all); c; c = c->next)
            if (c->handle == owner && atomic_load(&c->state) == CA_CONTEXT_SERVING)
                set_state(c, CA_CONTEXT_SUSPENDED);
    }
    ca_lock_drop(&lock);
    if (full)
        ca_warn_once("more than %d peer accesses: memory of the later ones is not pooled",
                     PEERS_MAX);
}

ca_context_t *ca_context_peer(const ca_context_t *owner, size_t index)
{
    ca_context_t *found = NULL;
    ca_lock_take(&lock);
    for (size_t i = 0; i < peer_count && !found; i++)
        if (peers[i].owner == owner->handle && index-- == 0)
            found = peers[i].accessor;
    ca_lock_drop(&lock);
    return found;
}

ca_context_t *ca_context_next(const ca_context_t *context)
{
    return context ? context->next : atomic_load(&all);
}

void ca_contexts_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    atomic_store(&all, NULL);
    peer_count = 0;
    atomic_fetch_add(&generation, 1);
    ca_upstream_reset_after_fork();
}
