/* Where code was unloaded.
 *
 * The objects that are loaded are listed before and after a library is closed: what is gone, the
 * library and what it had brought, leaves a range of addresses in which libunwind's own word is not
 * taken any more (ca_unwind). There are a few of them, since libraries come and go at the same
 * places; when there are too many, the last one grows over all that follow.
 *
 * A range is known only when the library is gone, and another thread may already run other code
 * there; so as long as a library is being closed every address counts as one of those, the memo
 * rests, and nothing stays in libunwind's caches. Most closings unload nothing, and cost no more.
 */
#include "registry/unload.h"

#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>

#include "config/lock.h"
#include "config/mem.h"
#include "config/mutation.h"
#include "registry/memo.h"
#include "registry/unwind.h"

#define RANGES 64u
#define SPARE 64u /* objects that other threads may load between counting and listing */

typedef struct object {
    uintptr_t low, high;
    uint64_t name; /* a hash: another one's place may have been taken meanwhile */
} object_t;

/* Mapped. `objects` is NULL where there was no memory. */
typedef struct list {
    object_t *objects;
    size_t count, capacity;
    bool all; /* it has all of them */
} list_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_STACKS);
/* Written under the lock. A range only ever grows: who reads its ends at different times sees at
 * least what it was. */
static struct {
    _Atomic uintptr_t low, high;
} ranges[RANGES];
static _Atomic size_t range_count;
static _Atomic unsigned closing; /* threads in ca_unload */

static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static int count_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)info;
    (void)size;
    (*(size_t *)arg)++;
    return 0;
}

static int list_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    list_t *list = arg;
    object_t object = {.low = UINTPTR_MAX, .name = hash_name(info->dlpi_name)};
    if (list->count == list->capacity) {
        list->all = false;
        return 1;
    }
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t low = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD)
            continue;
        object.low = low < object.low ? low : object.low;
        object.high = low + part->p_memsz > object.high ? low + part->p_memsz : object.high;
    }
    list->objects[list->count++] = object;
    return 0;
}

static void make_list(list_t *list)
{
    size_t count = 0;
    dl_iterate_phdr(count_object, &count);
    *list = (list_t){.capacity = count + SPARE};
    list->objects = ca_mem_map(list->capacity * sizeof *list->objects);
    list->all = list->objects != NULL;
    if (list->objects)
        dl_iterate_phdr(list_object, list);
}

static void free_list(list_t *list)
{
    if (list->objects)
        ca_mem_unmap(list->objects, list->capacity * sizeof *list->objects);
}

static bool listed(const list_t *list, const object_t *object)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->objects[i].low == object->low && list->objects[i].high == object->high &&
            list->objects[i].name == object->name)
            return true;
    return false;
}

/* --- ranges ----------------------------------------------------------------------------------- */

static void widen(size_t index, uintptr_t low, uintptr_t high)
{
    if (low < atomic_load_explicit(&ranges[index].low, memory_order_relaxed))
        atomic_store_explicit(&ranges[index].low, low, memory_order_relaxed);
    if (high > atomic_load_explicit(&ranges[index].high, memory_order_relaxed))
        atomic_store_explicit(&ranges[index].high, high, memory_order_relaxed);
}

/* Under the lock. */
static void add_range(uintptr_t low, uintptr_t high)
{
    size_t count = atomic_load_explicit(&range_count, memory_order_relaxed);
    for (size_t i = 0; i < count; i++) {
        uintptr_t its_low = atomic_load_explicit(&ranges[i].low, memory_order_relaxed);
        uintptr_t its_high = atomic_load_explicit(&ranges[i].high, memory_order_relaxed);
        if (low <= its_high && high >= its_low) {
            widen(i, low, high);
            return;
        }
    }
    if (count == RANGES) {
        widen(RANGES - 1, low, high);
        return;
    }
    atomic_store_explicit(&ranges[count].low, low, memory_order_relaxed);
    atomic_store_explicit(&ranges[count].high, high, memory_order_relaxed);
    atomic_store_explicit(&range_count, count + 1, memory_order_release);
}

/* False where nothing is gone. Without whole lists nobody knows: everything is in doubt. */
static bool note_gone(const list_t *before, const list_t *after)
{
    bool gone = !before->all || !after->all;
    ca_lock_take(&lock);
    if (gone)
        add_range(0, UINTPTR_MAX);
    for (size_t i = 0; i < before->count; i++)
        if (!listed(after, &before->objects[i])) {
            add_range(before->objects[i].low, before->objects[i].high);
            gone = true;
        }
    ca_lock_drop(&lock);
    return gone;
}

int ca_unload(int (*close)(void *handle), void *handle)
{
    list_t before, after;
    if (CA_MUTATED(unload_unseen))
        return close(handle);
    ca_lock_assert_none("closing a library");
    atomic_fetch_add(&closing, 1);
    ca_memo_rest();
    make_list(&before);
    int result = close(handle);
    int saved = errno;
    make_list(&after);
    bool gone = note_gone(&before, &after);
    if (gone)
        ca_unwind_forget();
    ca_memo_go_on(gone);
    atomic_fetch_sub(&closing, 1);
    free_list(&before);
    free_list(&after);
    errno = saved;
    return result;
}

bool ca_unload_concerns(void *const *frames, size_t count)
{
    if (CA_MUTATED(unload_cached))
        return false;
    if (atomic_load_explicit(&closing, memory_order_acquire) != 0) {
        ca_unwind_forget();
        return true;
    }
    size_t known = atomic_load_explicit(&range_count, memory_order_acquire);
    for (size_t i = 0; i < known; i++) {
        uintptr_t low = atomic_load_explicit(&ranges[i].low, memory_order_relaxed);
        uintptr_t high = atomic_load_explicit(&ranges[i].high, memory_order_relaxed);
        for (size_t frame = 0; frame < count; frame++)
            if ((uintptr_t)frames[frame] >= low && (uintptr_t)frames[frame] - 1 < high)
                return true;
    }
    return false;
}

void ca_unload_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_STACKS);
    atomic_store(&closing, 0);
}
