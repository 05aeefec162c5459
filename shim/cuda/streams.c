/* See streams.h. A hash of handles; each thread keeps its last answers. */
#include "shim/cuda/streams.h"
#include <pthread.h>
#include <stdatomic.h>
#include "base/inline.h"
#include "base/lock.h"
#include "base/mem.h"
#include "base/mutation.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/real_dlsym.h"

#define BUCKETS 256 /* at first; a power of two, as later */
#define OWN_MOST 4  /* contexts in which one thread uses its default stream */
#define ANSWERS 16u /* answers that a thread keeps */

typedef struct known {
    struct known *next;
    CUstream handle;
    CUcontext owner;       /* a green one, or the context's own handle */
    unsigned long long id; /* where the stream may end unseen, else 0 */
    ca_context_t *context;
    uint64_t life; /* of the context: with another one the stream has ended */
    ca_stream_t *stream;
} known_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(known_t)};
static known_t *first_buckets[BUCKETS], **buckets = first_buckets;
static size_t bucket_count = BUCKETS, known_count;

/* Advanced when a stream goes: what threads remember is looked up again. */
static _Atomic unsigned generation;

typedef struct answer {
    CUstream handle;
    unsigned generation;
    ca_context_t *context;
    uint64_t life;
    ca_stream_t *stream;
} answer_t;

/* The per-thread default stream of one context. */
typedef struct own {
    ca_context_t *context;
    uint64_t life;
    ca_stream_t *stream;
} own_t;

/* What a thread knows of streams; made when it meets the first. Not in the thread's own storage,
 * most of which is other libraries'. */
typedef struct thread_state {
    own_t own[OWN_MOST];
    answer_t answers[ANSWERS];
} thread_state_t;

static _Thread_local thread_state_t *thread_state;
static ca_slab_t state_slab = {.object_bytes = sizeof(thread_state_t)};

static uint64_t hash_of(CUstream handle)
{
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    return bits >> 4 ^ bits >> 12;
}

static known_t **bucket_of(CUstream handle)
{
    return &buckets[hash_of(handle) & (bucket_count - 1)];
}

/* Twice as many buckets, where there is host memory. Under the lock. */
static void grow(void)
{
    known_t **old = buckets;
    size_t count = bucket_count;
    known_t **fresh = ca_mem_map(2 * count * sizeof(known_t *));
    if (!fresh)
        return;
    buckets = fresh;
    bucket_count = 2 * count;
    for (size_t i = 0; i < count; i++)
        for (known_t *known = old[i], *next; known; known = next) {
            known_t **at = bucket_of(known->handle);
            next = known->next;
            known->next = *at;
            *at = known;
        }
    if (old != first_buckets)
        ca_mem_unmap(old, count * sizeof(known_t *));
}

static bool is_default(CUstream handle)
{
    return !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

static bool serving(const ca_context_t *context)
{
    return atomic_load_explicit(&context->state, memory_order_relaxed) == CA_CONTEXT_SERVING;
}

/* Whether this is still the context that it was, and not retired. */
static bool lives(const ca_context_t *context, uint64_t life)
{
    return context->life == life && atomic_load(&context->state) != CA_CONTEXT_RETIRED;
}

/* Under the lock. */
static known_t *find(CUstream handle)
{
    for (known_t *known = *bucket_of(handle); known; known = known->next)
        if (known->handle == handle && lives(known->context, known->life))
            return known;
    return NULL;
}

/* Takes those with `handle`, or of `owner`, out of a bucket into a list. Under the lock. */
static void take_out(known_t **bucket, CUstream handle, CUcontext owner, known_t **out)
{
    for (known_t **at = bucket, *known; (known = *at);) {
        if (known->handle == handle || known->owner == owner) {
            *at = known->next;
            known->next = *out;
            *out = known;
            known_count--;
        } else {
            at = &known->next;
        }
    }
}

static void retire_all(known_t *list)
{
    for (known_t *known = list; known; known = known->next)
        if (lives(known->context, known->life))
            ca_stream_retire(known->stream);
    ca_lock_take(&lock);
    for (known_t *next; list; list = next) {
        next = list->next;
        ca_slab_give(&slab, list);
    }
    ca_lock_drop(&lock);
}

void ca_streams_destroyed(CUstream stream)
{
    if (CA_MUTATED(stream_handles_trusted))
        return;
    known_t *known = NULL;
    ca_lock_take(&lock);
    if (stream)
        take_out(bucket_of(stream), stream, NULL, &known);
    ca_lock_drop(&lock);
    if (known) {
        atomic_fetch_add(&generation, 1);
        retire_all(known);
    }
}

void ca_streams_forget(CUcontext owner)
{
    known_t *list = NULL;
    ca_lock_take(&lock);
    for (size_t i = 0; owner && i < bucket_count; i++)
        take_out(&buckets[i], NULL, owner, &list);
    ca_lock_drop(&lock);
    if (list) {
        atomic_fetch_add(&generation, 1);
        retire_all(list);
    }
}

/* --- what is a thread's own ------------------------------------------------------------------- */

static pthread_key_t at_thread_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

/* The thread ends, and no fence can be recorded on its default stream any more. */
static void leave(void *unused)
{
    thread_state_t *left = thread_state;
    (void)unused;
    thread_state = NULL;
    if (!left)
        return;
    for (size_t i = 0; i < OWN_MOST; i++)
        if (left->own[i].stream && lives(left->own[i].context, left->own[i].life))
            ca_stream_retire(left->own[i].stream);
    ca_lock_take(&lock);
    ca_slab_give(&state_slab, left);
    ca_lock_drop(&lock);
}

static void make_key(void)
{
    have_key = pthread_key_create(&at_thread_exit, leave) == 0;
}

/* NULL without memory, and where the thread's end would go unnoticed. */
static thread_state_t *make_thread_state(void)
{
    if (thread_state)
        return thread_state;
    pthread_once(&once, make_key);
    if (!have_key || pthread_setspecific(at_thread_exit, &state_slab) != 0) /* any value but NULL */
        return NULL;
    ca_lock_take(&lock);
    thread_state = ca_slab_take(&state_slab);
    ca_lock_drop(&lock);
    return thread_state;
}

static ca_stream_t *own_stream(ca_context_t *context, bool ask)
{
    own_t *free = NULL;
    for (size_t i = 0; thread_state && i < OWN_MOST; i++) {
        own_t *one = &thread_state->own[i];
        if (!one->stream || !lives(one->context, one->life))
            free = one;
        else if (one->context == context)
            return one->stream;
    }
    if (!ask || (thread_state && !free) || !make_thread_state())
        return NULL;
    if (!free)
        free = &thread_state->own[0];
    uint64_t life = context->life;
    free->stream = ca_arena_stream(context->arena, CU_STREAM_PER_THREAD, true);
    free->context = context;
    free->life = life;
    return free->stream;
}

/* --- all others ------------------------------------------------------------------------------- */

/* A context that ended took its streams along, without a call: those beside the handle's
 * place go. Under the lock. */
static void sweep(CUstream handle)
{
    for (known_t **at = bucket_of(handle), *known; (known = *at);) {
        if (lives(known->context, known->life)) {
            at = &known->next;
        } else {
            *at = known->next;
            ca_slab_give(&slab, known);
            known_count--;
        }
    }
}

/* The driver's id of the stream, which no other one ever has; 0 before CUDA 12. */
static unsigned long long id_of(CUstream handle)
{
    unsigned long long id;
    __typeof__(cuStreamGetId) *get = ca_driver()->cuStreamGetId;
    return get && get(handle, &id) == CUDA_SUCCESS ? id : 0;
}

/* Where no hook sees the end of streams: one that had this handle before is forgotten. Whether the
 * handle can be trusted at all. */
static bool is_same_stream(CUstream handle)
{
    unsigned long long id = id_of(handle);
    ca_lock_take(&lock);
    const known_t *known = find(handle);
    bool other = known && known->id != id;
    ca_lock_drop(&lock);
    if (other)
        ca_streams_destroyed(handle);
    return id != 0;
}

/* Another thread may have been first: then its entry counts. */
static ca_stream_t *publish(CUstream handle, CUcontext owner, ca_context_t *context)
{
    uint64_t life = context->life;
    unsigned long long id = ca_hooks_in_place() ? 0 : id_of(handle);
    ca_stream_t *made = ca_arena_stream(context->arena, handle, false);
    if (!made)
        return NULL;
    ca_lock_take(&lock);
    sweep(handle);
    known_t *known = find(handle);
    known_t *fresh = known ? NULL : ca_slab_take(&slab);
    if (fresh) {
        *fresh = (known_t){*bucket_of(handle), handle, owner, id, context, life, made};
        *bucket_of(handle) = fresh;
        if (++known_count > bucket_count)
            grow();
    }
    ca_stream_t *stream = known ? known->stream : fresh ? made : NULL;
    ca_lock_drop(&lock);
    if (stream != made)
        ca_stream_retire(made);
    return stream;
}

/* Whose stream it is. NULL with success: of none that we serve. */
static CUresult owner_of(CUstream handle, CUcontext *owner, ca_context_t **context)
{
    __typeof__(cuStreamGetCtx) *ask = ca_driver()->cuStreamGetCtx;
    *owner = NULL;
    *context = NULL;
    if (!ask)
        return CUDA_SUCCESS;
    CUresult code = ask(handle, owner);
    if (code == CUDA_SUCCESS)
        *context = ca_context_of(*owner);
    return code;
}

ca_context_t *ca_streams_context(CUstream handle)
{
    CUcontext owner;
    ca_context_t *context = NULL;
    if (!is_default(handle) && owner_of(handle, &owner, &context) == CUDA_SUCCESS && context)
        return context;
    return ca_context_known();
}

/* Each green context has a default stream of its own; we could record on its primary's alone. It
 * may have none for each thread: then the driver refuses the handle. */
CA_INLINE CUresult find_default(CUcontext current, CUstream handle, bool ask,
                                ca_context_t **context, ca_stream_t **found)
{
    CUcontext owner;
    ca_context_t *of;
    *found = NULL;
    ca_context_note_asked(*context);
    if (!current && ca_context_check_current() == CUDA_ERROR_INVALID_CONTEXT)
        return CUDA_ERROR_INVALID_CONTEXT; /* no thread has these streams without one */
    if (*context && !(*context)->arena)
        *context = NULL;
    if (!*context)
        return CUDA_SUCCESS;
    if (handle == CU_STREAM_LEGACY) {
        if (current == (*context)->handle)
            *found = ca_arena_legacy_stream((*context)->arena, CU_STREAM_LEGACY);
        return CUDA_SUCCESS;
    }
    if (current != (*context)->handle) {
        CUresult code = ask ? owner_of(handle, &owner, &of) : CUDA_SUCCESS;
        if (!ask || code != CUDA_SUCCESS)
            *context = NULL; /* the driver hooks ask */
        return code;
    }
    *found = own_stream(*context, ask);
    if (!*found && !ask)
        *context = NULL; /* the driver hooks make it */
    return CUDA_SUCCESS;
}

/* Whether the handle is of a stream that depends on the current context. */
static bool in_current(CUstream handle)
{
    return handle == CU_STREAM_LEGACY ||
           (handle == CU_STREAM_PER_THREAD && !CA_MUTATED(own_stream_shared));
}

CA_INLINE CUresult find_created(CUstream handle, bool ask, ca_context_t **context,
                                ca_stream_t **found)
{
    *context = NULL;
    *found = NULL;
    if (!ca_hooks_in_place() && !is_same_stream(handle))
        return CUDA_SUCCESS; /* the driver has to serve it */
    unsigned now = atomic_load_explicit(&generation, memory_order_acquire);
    answer_t *answer = thread_state ? &thread_state->answers[hash_of(handle) % ANSWERS] : NULL;
    if (answer && answer->handle == handle && answer->generation == now &&
        serving(answer->context) && answer->life == answer->context->life) {
        *context = answer->context;
        *found = answer->stream;
        return CUDA_SUCCESS;
    }
    ca_lock_take(&lock);
    const known_t *known = find(handle);
    *context = known ? known->context : NULL;
    *found = known ? known->stream : NULL;
    uint64_t life = known ? known->life : 0;
    ca_lock_drop(&lock);
    ca_context_note_asked(*context);
    if (!*found && ask) {
        CUcontext owner;
        CUresult code = owner_of(handle, &owner, context);
        ca_context_note_asked(*context);
        if (code != CUDA_SUCCESS || !*context || !(*context)->arena)
            return code;
        life = (*context)->life;
        *found = publish(handle, owner, *context);
    }
    if (!*found || !serving(*context)) {
        *context = NULL;
        *found = NULL;
        return CUDA_SUCCESS;
    }
    if (make_thread_state())
        thread_state->answers[hash_of(handle) % ANSWERS] =
            (answer_t){handle, now, *context, life, *found};
    return CUDA_SUCCESS;
}

CUresult ca_streams_find_in(CUcontext current, CUstream handle, ca_context_t **context,
                            ca_stream_t **found)
{
    if (!handle)
        handle = CU_STREAM_LEGACY;
    return in_current(handle) ? find_default(current, handle, true, context, found)
                              : find_created(handle, true, context, found);
}

CUresult ca_streams_find(CUstream handle, bool ask, ca_context_t **context, ca_stream_t **found)
{
    CUcontext current;
    if (!handle)
        handle = CU_STREAM_LEGACY;
    if (!in_current(handle))
        return find_created(handle, ask, context, found);
    *context = ca_context_current(ask, &current);
    return find_default(current, handle, ask, context, found);
}

/* Of the default streams those of `context`, NULL for none; of the threads' own this one's. */
static ca_stream_t *known_in(ca_context_t *context, CUstream handle)
{
    if (is_default(handle) && !(context && context->arena))
        return NULL;
    if (handle == CU_STREAM_PER_THREAD)
        return own_stream(context, false);
    if (is_default(handle))
        return ca_arena_legacy_stream(context->arena, CU_STREAM_LEGACY);
    ca_lock_take(&lock);
    const known_t *known = find(handle);
    ca_stream_t *found = known ? known->stream : NULL;
    ca_lock_drop(&lock);
    return found;
}

ca_stream_t *ca_streams_known(CUstream handle)
{
    CUcontext current = NULL;
    ca_context_t *context = is_default(handle) ? ca_context_current(false, &current) : NULL;
    if (!context && current)
        context = ca_context_of(current);
    /* A green context has default streams of its own. */
    return known_in(context && context->handle == current ? context : NULL, handle);
}

ca_stream_t *ca_streams_of(const ca_allocation_t *record, ca_context_t *context)
{
    CUstream handle = (CUstream)(uintptr_t)ca_registry_stream(record);
    uint16_t number = ca_registry_stream_number(record);
    if (!number || !context->arena)
        return NULL;
    ca_stream_t *found = known_in(context, handle);
    return found && ca_stream_number(found) == number ? found : NULL;
}

static _Atomic bool any_reused;

void ca_streams_reused(ca_stream_t *stream)
{
    if (!atomic_load_explicit(&any_reused, memory_order_relaxed))
        atomic_store(&any_reused, true);
    ca_stream_handed(stream);
}

bool ca_streams_any_reused(void)
{
    return atomic_load_explicit(&any_reused, memory_order_relaxed);
}

void ca_known_streams_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    /* The parent's stay mapped. */
    slab = (ca_slab_t){.object_bytes = sizeof(known_t)};
    state_slab = (ca_slab_t){.object_bytes = sizeof(thread_state_t)};
    thread_state = NULL;
    buckets = first_buckets;
    bucket_count = BUCKETS;
    known_count = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        buckets[i] = NULL;
    atomic_fetch_add(&generation, 1);
}
