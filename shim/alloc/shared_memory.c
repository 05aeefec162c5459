/* Aliases: several names for one piece of memory. Its own record, at its base, is the one that the
 * totals and the leak report count; it stays there until the last name is freed, whether its own
 * name is among them or not. An alias has a record that leads to the base. While there are aliases
 * the base's `stream` is a ca_names_t; when only its own name is left it is a plain record again.
 *
 * Memory from elsewhere: the record's `stream` is the deleter and its `owner` the argument.
 *
 * Shared records change under one lock, and only here, except that those of a context that was
 * destroyed are dropped by the registry: then what is looked for is not there, and there is nothing
 * to do. */
#include "shim/alloc/shared_memory.h"
#include <errno.h>
#include "base/counters.h"
#include "base/lock.h"
#include "base/mem.h"
#include "pool/arena.h"
#include "shim/cuda/contexts.h"
#include "shim/alloc/device_memory.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/streams.h"
#include "shim/alloc/track.h"

typedef struct ca_names {
    struct ca_names *prev, *next; /* all of them */
    uint64_t stream;              /* what the base's record had there */
    size_t count;                 /* live names */
    uint16_t context;
} ca_names_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static ca_slab_t slab = {.object_bytes = sizeof(ca_names_t)};
static ca_names_t *all;

/* Which free it is. */
typedef struct ca_call {
    bool host;
    __typeof__(cuMemFreeAsync) *async; /* the real one, or NULL */
    CUstream stream;
    CUresult check; /* what this call answers whatever the pointer is */
} ca_call_t;

/* --- under the lock --------------------------------------------------------------------------- */

static bool has_aliases(const ca_allocation_t *record)
{
    return record->shared == CA_SHARED_OWNER || record->shared == CA_SHARED_NAMELESS;
}

static ca_names_t *names_of(const ca_allocation_t *base)
{
    return (ca_names_t *)(uintptr_t)base->stream;
}

static void forget(ca_names_t *names)
{
    if (names->prev)
        names->prev->next = names->next;
    else
        all = names->next;
    if (names->next)
        names->next->prev = names->prev;
    ca_slab_give(&slab, names);
}

/* Makes a record without aliases one that has them, with one name so far. 0, -ENOMEM, or -ENOENT
 * when it went meanwhile. */
static int make_shared(ca_allocation_t *base, ca_shared_t how)
{
    ca_names_t *names = ca_slab_take(&slab);
    if (!names)
        return -ENOMEM;
    *names = (ca_names_t){
        .next = all, .stream = base->stream, .count = 1, .context = (uint16_t)base->context};
    if (all)
        all->prev = names;
    all = names;
    ca_allocation_t fresh = *base;
    fresh.shared = how;
    fresh.stream = (uint64_t)(uintptr_t)names;
    if (!ca_registry_replace(base, &fresh)) {
        forget(names);
        return -ENOENT;
    }
    *base = fresh;
    return 0;
}

/* The record as it is without aliases. */
static ca_allocation_t as_plain(const ca_allocation_t *record)
{
    ca_allocation_t single = *record;
    if (has_aliases(record)) {
        single.stream = names_of(record)->stream;
        if (single.kind == CA_KIND_ASYNC) /* without the number: names were freed in other orders */
            single.stream &= ((uint64_t)1 << CA_STREAM_BITS) - 1;
        single.shared = record->kind == CA_KIND_EXTERNAL ? CA_SHARED_HANDLED : CA_SHARED_NOT;
    }
    return single;
}

static void make_plain(const ca_allocation_t *base)
{
    ca_allocation_t single = as_plain(base);
    /* Where the record was dropped with its context its names are too, in a moment. */
    if (ca_registry_replace(base, &single))
        forget(names_of(base));
}

/* The record that a live name leads to: its own, or its base's. The sequence number tells it from
 * other memory that the driver gave out at the same address meanwhile. */
static bool find_base(const ca_allocation_t *name, ca_allocation_t *base)
{
    *base = *name;
    return name->kind != CA_KIND_ALIAS ||
           (ca_registry_find((uint64_t)(uintptr_t)name->owner, base) && has_aliases(base) &&
            base->sequence == name->sequence);
}

static int insert_alias(const ca_allocation_t *base, uint64_t address)
{
    ca_allocation_t alias = {
        .address = address,
        .kind = CA_KIND_ALIAS,
        .shared = CA_SHARED_HANDLED,
        .device = base->device,
        .context = base->context,
        .owner = (void *)(uintptr_t)base->address,
        .sequence = base->sequence, /* a name takes no place in the order of allocations */
    };
    int result = ca_registry_insert_new(&alias);
    return result == 0 && ca_track_dropped(ca_context_numbered(alias.context), address) ? -ENOENT
                                                                                        : result;
}

static int add_alias(uint64_t owner, uint64_t alias)
{
    ca_allocation_t name, base, there;
    if (!ca_registry_find(owner, &name) || name.shared == CA_SHARED_NAMELESS ||
        !find_base(&name, &base))
        return -ENOENT;
    if (ca_registry_find(alias, &there)) {
        if (there.shared != CA_SHARED_NAMELESS || alias != base.address)
            return -EEXIST;
        /* Its own name, once freed, becomes live again. */
        there.shared = CA_SHARED_OWNER;
        if (!ca_registry_replace(&base, &there))
            return -ENOENT;
        names_of(&base)->count++;
        return 0;
    }
    int result = has_aliases(&base) ? 0 : make_shared(&base, CA_SHARED_OWNER);
    if (result != 0)
        return result;
    result = insert_alias(&base, alias);
    if (result == 0)
        names_of(&base)->count++;
    else if (names_of(&base)->count == 1 && base.shared == CA_SHARED_OWNER)
        make_plain(&base);
    return result;
}

/* Whether `call` frees memory of this kind; the error that it answers otherwise. */
static CUresult serves(const ca_call_t *call, const ca_allocation_t *base)
{
    if (base->kind == CA_KIND_EXTERNAL)
        return CUDA_SUCCESS;
    if (call->host != (base->kind == CA_KIND_PINNED))
        return CUDA_ERROR_INVALID_VALUE;
    return call->check;
}

typedef enum {
    ANSWERED,     /* `*code` is the answer */
    INVALID_FREE, /* the name is not live */
    FREE_PLAIN,   /* it has no aliases: an allocation like others */
    FREE_LAST,    /* it was the last: the base is an allocation like others */
    DELETE,       /* memory from elsewhere, taken out */
} ca_drop_t;

/* Takes a live name out. */
static ca_drop_t drop_name(uint64_t address, const ca_call_t *call, ca_allocation_t *name,
                           CUresult *code)
{
    ca_allocation_t base;
    *code = CUDA_SUCCESS;
    if (!ca_registry_find(address, name) || name->shared == CA_SHARED_NAMELESS)
        return INVALID_FREE;
    if (name->shared == CA_SHARED_NOT)
        return FREE_PLAIN;
    if (name->kind == CA_KIND_EXTERNAL && name->shared == CA_SHARED_HANDLED)
        return ca_registry_take(address, name) ? DELETE : INVALID_FREE;
    if (!find_base(name, &base)) {
        ca_registry_take_of(address, name->context); /* the memory went with its context */
        return ANSWERED;
    }
    *code = serves(call, &base);
    if (*code != CUDA_SUCCESS)
        return ANSWERED;

    size_t left = --names_of(&base)->count;
    if (name->kind != CA_KIND_ALIAS && left == 0) { /* its aliases were freed on streams */
        make_plain(&base);
        return FREE_PLAIN;
    }
    if (name->kind != CA_KIND_ALIAS) {
        ca_allocation_t nameless = base;
        nameless.shared = CA_SHARED_NAMELESS;
        ca_registry_replace(&base, &nameless);
        return ANSWERED;
    }
    ca_registry_take(address, name);
    /* Work on another stream may be at what was freed in its order: the last free covers that, so
     * the memory is no plain one before. */
    if (left == (base.shared == CA_SHARED_OWNER) && !(left && call->async))
        make_plain(&base);
    return left == 0 ? FREE_LAST : ANSWERED;
}

/* --- frees ------------------------------------------------------------------------------------ */

static CUresult delete_external(const ca_allocation_t *record, const ca_call_t *call)
{
    ca_deleter_t *deleter = (ca_deleter_t *)(uintptr_t)record->stream;
    void *address = (void *)(uintptr_t)record->address;
    ca_lock_assert_none("deleter");
    if (deleter) {
        deleter(address, record->bytes, record->owner);
        return CUDA_SUCCESS;
    }
    CUresult code;
    if (ca_pool_owns(record->address)) /* a segment's base would be freed with all that is in it */
        code = ca_track_invalid_free(record->address);
    else if (call->host)
        code = ca_driver()->cuMemFreeHost(address);
    else if (call->async)
        code = call->async(record->address, call->stream);
    else
        code = ca_driver()->cuMemFree_v2(record->address);
    if (code != CUDA_SUCCESS)
        ca_track_restore(record);
    return code;
}

/* Whose stream a name is freed on. From now on fences of the memory cover its work. */
static const ca_context_t *user_of(const ca_allocation_t *name, const ca_call_t *call)
{
    ca_context_t *user = NULL, *owner = name->context ? ca_context_numbered(name->context) : NULL;
    ca_stream_t *order;
    if (call->async)
        (void)ca_streams_find(call->stream, true, &user, &order);
    if (user && owner)
        ca_context_reached_by(owner, user);
    return user;
}

/* The same call, by `user`, for memory that has no aliases any more. */
static CUresult free_plain(uint64_t address, const ca_call_t *call, const ca_context_t *user)
{
    ca_allocation_t record;
    if (!call->async) {
        ca_count_add(free_calls, -1); /* which is counted again */
        return call->host ? cuMemFreeHost((void *)(uintptr_t)address) : cuMemFree_v2(address);
    }
    if (!ca_track_erase(address, &record))
        return ca_track_invalid_free(address);
    if (record.shared)
        return ca_shared_free_async(&record, call->async, call->stream);
    /* Other names may have been used on other streams, so pooled memory goes back as with a plain
     * free, which covers them all. */
    CUresult code = record.owner && !ca_device_lost(&record)
                        ? ca_device_free_on(&record, NULL, user)
                        : call->async(address, call->stream);
    if (code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}

/* The driver refused to free the memory: its last name is live again. */
static void restore_last(const ca_allocation_t *alias)
{
    ca_allocation_t base;
    ca_lock_take(&lock);
    if (ca_registry_find((uint64_t)(uintptr_t)alias->owner, &base) && !has_aliases(&base) &&
        make_shared(&base, CA_SHARED_NAMELESS) == 0 && insert_alias(&base, alias->address) != 0)
        make_plain(&base);
    ca_lock_drop(&lock);
}

static CUresult free_name(const ca_allocation_t *record, const ca_call_t *call)
{
    ca_allocation_t name;
    CUresult code;
    const ca_context_t *user = user_of(record, call); /* also of a name that is not the last */
    ca_lock_take(&lock);
    ca_drop_t drop = drop_name(record->address, call, &name, &code);
    ca_lock_drop(&lock);
    switch (drop) {
    case INVALID_FREE:
        return ca_track_invalid_free(record->address);
    case FREE_PLAIN:
        return free_plain(record->address, call, user);
    case FREE_LAST:
        code = free_plain((uint64_t)(uintptr_t)name.owner, call, user);
        if (code != CUDA_SUCCESS)
            restore_last(&name);
        return code;
    case DELETE:
        return delete_external(&name, call);
    case ANSWERED:
        break;
    }
    return code;
}

CUresult ca_shared_free(const ca_allocation_t *name)
{
    return free_name(name, &(ca_call_t){.check = ca_context_check()});
}

CUresult ca_shared_free_host(const ca_allocation_t *name)
{
    return free_name(name, &(ca_call_t){.host = true});
}

CUresult ca_shared_free_async(const ca_allocation_t *name, __typeof__(cuMemFreeAsync) *real,
                              CUstream stream)
{
    bool of_thread = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
    CUresult check = of_thread ? ca_context_check_current() : ca_context_check();
    return free_name(name, &(ca_call_t){.async = real, .stream = stream, .check = check});
}

/* --- the program's calls ---------------------------------------------------------------------- */

int ca_shared_alias(uint64_t owner, uint64_t alias)
{
    ca_lock_take(&lock);
    int result = add_alias(owner, alias);
    ca_lock_drop(&lock);
    return result;
}

int ca_shared_register(uint64_t address, size_t bytes, ca_deleter_t *deleter, void *argument)
{
    if (!deleter && ca_pool_owns(address))
        return -EINVAL;
    ca_allocation_t record = {
        .address = address,
        .bytes = bytes,
        .kind = CA_KIND_EXTERNAL,
        .shared = CA_SHARED_HANDLED,
        .stream = (uint64_t)(uintptr_t)deleter,
        .owner = argument,
        .stack = ca_track_stack_of(bytes),
        .thread = ca_track_thread(),
    };
    return ca_registry_insert_new(&record);
}

int ca_shared_unregister(uint64_t address)
{
    ca_allocation_t record;
    int result = -ENOENT;
    ca_peak_before_free();
    ca_lock_take(&lock);
    if (ca_registry_find(address, &record) && record.kind == CA_KIND_EXTERNAL) {
        if (record.shared == CA_SHARED_HANDLED)
            result = ca_registry_take(address, &record) ? 0 : -ENOENT;
        else if (record.shared == CA_SHARED_OWNER)
            result = -EBUSY;
    }
    ca_lock_drop(&lock);
    return result;
}

bool ca_shared_read(uint64_t address, ca_allocation_t *record, size_t *names)
{
    ca_allocation_t name;
    *names = 1;
    if (!ca_registry_find(address, record))
        return false;
    if (!record->shared)
        return true;
    ca_lock_take(&lock);
    bool found = ca_registry_find(address, &name) && find_base(&name, record);
    if (found && has_aliases(record)) {
        *names = names_of(record)->count;
        *record = as_plain(record);
    }
    ca_lock_drop(&lock);
    return found;
}

void ca_shared_drop_context(const ca_context_t *context)
{
    uint16_t number = atomic_load(&context->number);
    ca_lock_take(&lock);
    for (ca_names_t *names = all, *next; names; names = next) {
        next = names->next;
        if (names->context == number)
            forget(names);
    }
    ca_lock_drop(&lock);
}

void ca_shared_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    slab = (ca_slab_t){.object_bytes = sizeof(ca_names_t)}; /* the parent's stays mapped */
    all = NULL;
}
