/* The public functions of include/cachealloc.h that concern single allocations. */
#include "include/cachealloc.h"
#include <errno.h>
#include "pool/arena.h"
#include "registry/python/python.h"
#include "registry/table/registry.h"
#include "registry/stack/stack.h"
#include "shim/hooks/api_struct.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/shared_memory.h"

#define BYTES_MOST ((size_t)1 << 47) /* the limit of a record's field and of an address space */

static uint64_t address_of(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

static int kind_of(const ca_allocation_t *record)
{
    switch ((ca_kind_t)record->kind) {
    case CA_KIND_DEVICE:
        return CACHEALLOC_KIND_DEVICE;
    case CA_KIND_PITCHED:
        return CACHEALLOC_KIND_PITCHED;
    case CA_KIND_ASYNC:
        return CACHEALLOC_KIND_ASYNC;
    case CA_KIND_MANAGED:
        return CACHEALLOC_KIND_MANAGED;
    case CA_KIND_PINNED:
        return CACHEALLOC_KIND_PINNED;
    case CA_KIND_EXTERNAL:
        return CACHEALLOC_KIND_EXTERNAL;
    default:
        return CACHEALLOC_KIND_OTHER;
    }
}

static size_t copy_stack(uint32_t stack, void **to, size_t capacity)
{
    uintptr_t frames[CA_STACK_MAX];
    if (!to || capacity == 0)
        return 0;
    size_t all = ca_stack_frames(stack, frames, CA_STACK_MAX), count = 0;
    for (size_t i = 0; i < all && count < capacity; i++)
        if (!ca_python_is_word(frames[i])) /* no address */
            to[count++] = (void *)frames[i];
    return count;
}

/* Fills `record` with that of the allocation that `address` lies in. */
static bool find_record(uint64_t address, ca_allocation_t *record, size_t *names)
{
    if (ca_shared_read(address, record, names))
        return true;
    uint64_t block = ca_pool_block_at(address);
    return block && ca_shared_read(block, record, names);
}

CA_PUBLIC int cachealloc_info(const void *ptr, cachealloc_info_t *info)
{
    ca_allocation_t record;
    size_t names;
    if (!info || info->size < sizeof(*info))
        return EINVAL;
    if (!ptr || !find_record(address_of(ptr), &record, &names))
        return ENOENT;
    bool external = record.kind == CA_KIND_EXTERNAL;
    uint64_t latest = ca_registry_sequence();
    const cachealloc_info_t now = {
        .size = info->size,
        .version = CACHEALLOC_INFO_VERSION,
        .kind = kind_of(&record),
        .kind_name = ca_kind_name((ca_kind_t)record.kind),
        .base = (void *)(uintptr_t)record.address,
        .bytes = record.bytes,
        .block_bytes = !external && record.owner ? ca_block_bytes(record.owner) : 0,
        .names = names,
        .device = (int)record.device,
        .thread = record.thread,
        .stream = (void *)(uintptr_t)ca_registry_stream(&record),
        .age = latest > record.sequence ? latest - record.sequence : 0,
        .stack = info->stack,
        .stack_capacity = info->stack_capacity,
        .stack_count = copy_stack(record.stack, info->stack, info->stack_capacity),
    };
    ca_api_fill(info, info->size, &now, sizeof(now));
    return 0;
}

CA_PUBLIC int cachealloc_alias(void *owner, void *alias)
{
    if (!owner || !alias)
        return EINVAL;
    if (!ca_life_active())
        return ENOTSUP;
    return -ca_shared_alias(address_of(owner), address_of(alias));
}

CA_PUBLIC int cachealloc_register(void *ptr, size_t bytes, cachealloc_deleter_t deleter, void *arg)
{
    if (!ptr || bytes == 0 || bytes > BYTES_MOST)
        return EINVAL;
    if (!ca_life_active())
        return ENOTSUP;
    return -ca_shared_register(address_of(ptr), bytes, deleter, arg);
}

CA_PUBLIC int cachealloc_unregister(void *ptr)
{
    if (!ca_life_active())
        return ENOTSUP;
    return ptr ? -ca_shared_unregister(address_of(ptr)) : ENOENT;
}

CA_PUBLIC int cachealloc_is_registered(const void *ptr)
{
    ca_allocation_t record;
    return ca_registry_find(address_of(ptr), &record) && record.kind == CA_KIND_EXTERNAL &&
           record.shared != CA_SHARED_NAMELESS;
}
