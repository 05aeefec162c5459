#include "shim/cuda/context_entries.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "shim/cuda/life_state.h"

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(ca_context_t)};
static ca_context_t *_Atomic all;
static uint16_t last_number;
static _Atomic uint64_t lives;

/* The entries that are not retired. Written under the lock; every epoch that is closed reads them,
 * without it where `version` says that no thread wrote meanwhile. Odd: one does. */
static ca_context_t *_Atomic living[CA_CONTEXTS_MAX];
static _Atomic size_t living_count;
static _Atomic unsigned version;

/* The retired ones, in the order in which they were. */
static ca_context_t *parked, **parked_end = &parked;
static size_t parked_count;

/* Calls under way that may destroy a context, and those that are done. */
static _Atomic unsigned leaving_calls, resumed_calls;

/* Some context has no entry, so that no fence would cover its work. */
static _Atomic bool unlisted;

/* Advanced whenever an entry changes its state: what a thread remembers is then looked up again. */
_Atomic unsigned ca_context_generation;

/* Under the lock. */
static ca_context_t *find(CUcontext handle)
{
    for (size_t i = 0; i < living_count; i++)
        if (living[i]->handle == handle)
            return living[i];
    return NULL;
}

/* Under the lock. */
static void add_living(ca_context_t *context)
{
    atomic_fetch_add(&version, 1);
    living[living_count] = context;
    living_count++;
    atomic_fetch_add(&version, 1);
}

/* The same. The last takes its place. */
static void drop_living(size_t at)
{
    atomic_fetch_add(&version, 1);
    living_count--;
    living[at] = living[living_count];
    atomic_fetch_add(&version, 1);
}

/* A retired entry, or one that no thread ever found, waits for another life. Under the lock. */
static void recycle(ca_context_t *context)
{
    context->later = NULL;
    *parked_end = context;
    parked_end = &context->later;
    parked_count++;
}

/* Takes out the first that may be revived for a context on `device`, or NULL: no thread is in it,
 * no epoch of another context waits for its events, and it has an arena, or none. */
static ca_context_t *unpark(CUdevice device, bool pooled)
{
    ca_context_t **at = &parked;
    for (size_t left = parked_count; left > CA_CONTEXTS_PARKED; left--, at = &(*at)->later) {
        ca_context_t *context = *at;
        if (context->device != device || !context->arena != !pooled || context->leaving ||
            ca_in_flight_any(&context->entered) || ca_context_memory.in_use(context))
            continue;
        *at = context->later;
        if (parked_end == &context->later)
            parked_end = at;
        parked_count--;
        return context;
    }
    return NULL;
}

ca_context_t *ca_entry_find(CUcontext handle)
{
    ca_lock_take(&lock);
    ca_context_t *context = find(handle);
    ca_lock_drop(&lock);
    return context;
}

/* All that is not the arenas' and not the next context's. */
static void wipe(ca_context_t *context)
{
    context->own_stream = NULL;
    atomic_store(&context->shares, NULL);
    atomic_store(&context->last_wait_ns, 0);
    atomic_store(&context->asked, false);
    atomic_store(&context->created, false);
    atomic_store(&context->no_records, false);
    atomic_store(&context->broken, 0);
    for (size_t i = 0; i < CA_CONTEXT_REACHED_MOST; i++)
        atomic_store(&context->reached_by[i], NULL);
    atomic_store(&context->reached_by_all, false);
    atomic_store(&context->open_to_peers, false);
    for (size_t i = 0; i < sizeof(context->open_to) / sizeof(context->open_to[0]); i++)
        atomic_store(&context->open_to[i], 0);
}

ca_context_t *ca_entry_blank(CUcontext handle, unsigned long long id, CUdevice device, bool pooled)
{
    ca_lock_take(&lock);
    ca_context_t *old = unpark(device, pooled);
    ca_lock_drop(&lock);
    bool whole = old && ca_context_memory.revive(old);
    if (whole)
        wipe(old);
    ca_lock_take(&lock);
    if (old && !whole)
        recycle(old); /* a thread is in there after all */
    ca_context_t *fresh = whole ? old : ca_slab_take(&slab);
    ca_lock_drop(&lock);
    if (fresh) {
        fresh->handle = handle;
        fresh->id = id;
        fresh->life = 1 + atomic_fetch_add(&lives, 1);
        if (fresh != old) { /* a walk past the old one reads it */
            fresh->device = (uint8_t)device;
            ca_context_memory.prepare(fresh);
        }
    }
    return fresh;
}

/* One that no living context has. */
static uint16_t next_number(void)
{
    for (bool in_use = true; in_use;) {
        in_use = ++last_number == 0;
        for (size_t i = 0; i < living_count && !in_use; i++)
            in_use = living[i]->number == last_number;
    }
    return last_number;
}

static void warn_unlisted(void)
{
    ca_info("more than %d contexts are alive: freed memory is not used again from now on",
            CA_CONTEXTS_MAX);
}

ca_context_t *ca_entry_publish(ca_context_t *fresh)
{
    bool full = false;
    ca_lock_take(&lock);
    ca_context_t *context = find(fresh->handle);
    if (!context && living_count == CA_CONTEXTS_MAX) {
        full = !atomic_exchange(&unlisted, true);
    } else if (!context) {
        context = fresh;
        context->number = next_number();
        atomic_store(&context->state, CA_CONTEXT_SERVING);
        add_living(fresh);
        if (!context->listed) {
            context->listed = true;
            context->next = atomic_load(&all);
            atomic_store(&all, context);
        }
    }
    ca_lock_drop(&lock);
    if (full)
        warn_unlisted();
    return context;
}

void ca_entry_put_aside(ca_context_t *fresh)
{
    atomic_store(&fresh->state, CA_CONTEXT_RETIRED);
    ca_context_memory.retire_begin(fresh);
    ca_context_memory.retire_end(fresh);
    ca_entry_recycle(fresh);
}

bool ca_entry_fits(void)
{
    ca_lock_take(&lock);
    bool fits = living_count < CA_CONTEXTS_MAX;
    bool full = !fits && !atomic_exchange(&unlisted, true);
    ca_lock_drop(&lock);
    if (full)
        warn_unlisted();
    return fits;
}

bool ca_contexts_all_listed(void)
{
    return !atomic_load_explicit(&unlisted, memory_order_relaxed);
}

static void set_state(ca_context_t *context, ca_context_state_t state)
{
    atomic_store(&context->state, state);
    atomic_fetch_add_explicit(&ca_context_generation, 1, memory_order_release);
    ca_fast_invalidate();
}

ca_context_t *ca_entry_suspend(CUcontext handle)
{
    ca_lock_take(&lock);
    ca_context_t *context = handle ? find(handle) : NULL;
    if (context) {
        context->leaving++;
        atomic_fetch_add(&leaving_calls, 1);
        set_state(context, CA_CONTEXT_SUSPENDED);
    }
    ca_lock_drop(&lock);
    return context;
}

bool ca_entry_resume(ca_context_t *context, bool destroyed)
{
    ca_lock_take(&lock);
    context->leaving--;
    bool retire = destroyed && atomic_load(&context->state) != CA_CONTEXT_RETIRED;
    if (retire) {
        /* The green contexts whose memory it had go with it. */
        for (size_t i = 0; i < living_count; i++)
            if (living[i] == context || living[i]->shares == context) {
                set_state(living[i], CA_CONTEXT_RETIRED);
                if (living[i] != context)
                    recycle(living[i]);
                drop_living(i--);
            }
    } else if (atomic_load(&context->state) == CA_CONTEXT_SUSPENDED && context->leaving == 0) {
        set_state(context, CA_CONTEXT_SERVING);
    }
    atomic_fetch_add(&resumed_calls, 1); /* first: see ca_destroys_wait */
    atomic_fetch_sub(&leaving_calls, 1);
    ca_lock_drop(&lock);
    return retire;
}

void ca_entry_recycle(ca_context_t *context)
{
    ca_lock_take(&lock);
    recycle(context);
    ca_lock_drop(&lock);
}

unsigned ca_contexts_leaving(void)
{
    return atomic_load(&leaving_calls);
}

unsigned ca_contexts_resumed(void)
{
    return atomic_load(&resumed_calls);
}

/* Under the lock, or what comes of it is not believed: entries are never unmapped. */
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
    unsigned before = atomic_load(&version);
    size_t count = list_living(contexts);
    if (before % 2 == 0 && atomic_load(&version) == before)
        return count;
    ca_lock_take(&lock);
    count = list_living(contexts);
    ca_lock_drop(&lock);
    return count;
}

bool ca_contexts_try_living(ca_context_t *contexts[CA_CONTEXTS_MAX], size_t *count)
{
    bool locked = ca_lock_take_timed(&lock);
    *count = locked ? list_living(contexts) : 0;
    if (locked)
        ca_lock_drop(&lock);
    return locked;
}

ca_context_t *ca_context_numbered(uint16_t number)
{
    ca_context_t *found = NULL;
    for (ca_context_t *c = atomic_load(&all); c; c = c->next)
        if (c->number == number && (!found || atomic_load(&c->state) != CA_CONTEXT_RETIRED))
            found = c;
    return found;
}

ca_context_t *ca_context_next(const ca_context_t *context)
{
    return context ? context->next : atomic_load(&all);
}

void ca_entries_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = sizeof(ca_context_t)}; /* the parent's stays mapped */
    atomic_store(&all, NULL);
    parked = NULL;
    parked_end = &parked;
    atomic_store(&version, 0);
    living_count = 0;
    parked_count = 0;
    atomic_store(&leaving_calls, 0);
    atomic_store(&unlisted, false);
    atomic_fetch_add(&ca_context_generation, 1);
}
