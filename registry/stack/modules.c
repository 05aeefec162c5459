/* One list, the newest first, to which the first thread adds under a flag: a thread that finds it
 * raised, or a signal handler above the very frame, goes on without. The loader counts what it has
 * opened and closed, so nothing is compared while both counts stay, and then with what is there:
 * many may have been closed, and the loader waits. */
#include "registry/stack/modules.h"

#include <errno.h>
#include <link.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/clock.h"
#include "base/lock.h"
#include "registry/python/python.h"

#define WAIT_NS UINT64_C(10000000000) /* for a dlopen under way */
#define PUT_MOST 65536u               /* of a journal, which may be any file */

static ca_bump_t memory; /* of the thread that raised the flag */
static atomic_flag noting = ATOMIC_FLAG_INIT;
static ca_module_t *there; /* those that are, as far as was noted; under the flag */
static ca_module_t *_Atomic newest;
static _Atomic uint32_t latest; /* epoch */
static unsigned long long opened, closed;
static const ca_modules_listener_t *_Atomic listener;
static bool foreign;
static size_t put, put_unloaded; /* how many, where that is so */

typedef struct visit {
    bool is_first;
    uint32_t epoch; /* that begins, 0 where nothing has changed */
} visit_t;

static void read_notes(const char *notes, size_t bytes, size_t align, ca_module_t *module)
{
    size_t at = 0;
    while (at + sizeof(ElfW(Nhdr)) <= bytes) {
        ElfW(Nhdr) head;
        memcpy(&head, notes + at, sizeof head);
        size_t name = at + sizeof head;
        size_t desc = name + ((head.n_namesz + align - 1) & ~(align - 1));
        size_t next = desc + ((head.n_descsz + align - 1) & ~(align - 1));
        if (next <= at || desc + head.n_descsz > bytes)
            return;
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
            memcmp(notes + name, "GNU", 4) == 0 && head.n_descsz <= CA_BUILD_ID_MAX) {
            memcpy(module->build_id, notes + desc, head.n_descsz);
            module->build_id_bytes = head.n_descsz;
            return;
        }
        at = next;
    }
}

/* Only what is loaded can be read, wherever a header says that it lies. */
static bool is_loaded(const struct dl_phdr_info *info, const ElfW(Phdr) * part)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && part->p_vaddr >= segment->p_vaddr &&
            part->p_vaddr - segment->p_vaddr <= segment->p_memsz &&
            part->p_memsz <= segment->p_memsz - (part->p_vaddr - segment->p_vaddr))
            return true;
    }
    return false;
}

static void read_headers(const struct dl_phdr_info *info, ca_module_t *module)
{
    module->bias = (uintptr_t)info->dlpi_addr;
    module->low = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = (uintptr_t)(info->dlpi_addr + segment->p_vaddr);
        if (segment->p_type == PT_NOTE && module->build_id_bytes == 0 && is_loaded(info, segment))
            read_notes((const char *)start, segment->p_memsz, segment->p_align == 8 ? 8 : 4,
                       module);
        if (segment->p_type != PT_LOAD)
            continue;
        if (start < module->low)
            module->low = start;
        if (start + segment->p_memsz > module->high)
            module->high = start + segment->p_memsz;
    }
}

static bool is_there(const ca_module_t *module)
{
    return atomic_load_explicit(&module->until, memory_order_relaxed) == 0;
}

/* The module that is noted as loaded so, or NULL. */
static ca_module_t *known(const struct dl_phdr_info *info, const char *path)
{
    for (ca_module_t *module = there; module; module = module->next_there)
        if (module->bias == (uintptr_t)info->dlpi_addr && strcmp(module->path, path) == 0)
            return module;
    return NULL;
}

static ca_module_t *make(const char *path)
{
    ca_module_t *module = ca_bump_take(&memory, sizeof *module);
    const char *copy = module ? ca_bump_text(&memory, path, strlen(path)) : NULL;
    if (!copy)
        return NULL;
    module->path = copy;
    return module;
}

static void enter(ca_module_t *module)
{
    module->next = atomic_load_explicit(&newest, memory_order_relaxed);
    atomic_store_explicit(&newest, module, memory_order_release);
}

static void notify_loaded(const ca_module_t *module)
{
    const ca_modules_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (called)
        called->loaded(module);
}

static void notify_closed(const ca_module_t *module)
{
    const ca_modules_listener_t *called = atomic_load_explicit(&listener, memory_order_relaxed);
    if (called)
        called->closed(module);
}

void ca_modules_listen(const ca_modules_listener_t *called)
{
    atomic_store(&listener, called);
}

static void add(const struct dl_phdr_info *info, const char *path, uint32_t epoch)
{
    ca_module_t *module = make(path);
    if (!module)
        return;
    read_headers(info, module);
    module->from = epoch;
    module->seen = true;
    enter(module);
    module->next_there = there;
    there = module;
    notify_loaded(module);
    ca_python_meet(info);
}

static int visit_module(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    visit_t *visit = arg;
    const char *path = info->dlpi_name ? info->dlpi_name : "";
    uint32_t epoch = atomic_load_explicit(&latest, memory_order_relaxed);
    if (visit->is_first) {
        bool counts = bytes >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs;
        if (counts && epoch != 0 && info->dlpi_adds == opened && info->dlpi_subs == closed)
            return 1;
        visit->is_first = false;
        visit->epoch = epoch + 1;
        opened = counts ? info->dlpi_adds : 0;
        closed = counts ? info->dlpi_subs : 0;
        /* Closed, unless it is seen below. */
        for (ca_module_t *one = there; one; one = one->next_there)
            one->seen = false;
    }
    ca_module_t *module = known(info, path);
    if (module)
        module->seen = true;
    else
        add(info, path, visit->epoch);
    return 0;
}

void ca_modules_note(void)
{
    visit_t visit = {.is_first = true};
    int saved = errno;
    ca_lock_assert_none("a look at the loader's list");
    if (foreign || atomic_flag_test_and_set_explicit(&noting, memory_order_acquire))
        return;
    dl_iterate_phdr(visit_module, &visit);
    if (visit.epoch != 0) {
        for (ca_module_t **link = &there; *link;) {
            ca_module_t *module = *link;
            if (module->seen) {
                link = &module->next_there;
                continue;
            }
            atomic_store_explicit(&module->until, visit.epoch, memory_order_relaxed);
            notify_closed(module);
            ca_python_closed(module->low);
            *link = module->next_there;
        }
        atomic_store_explicit(&latest, visit.epoch, memory_order_release);
    }
    atomic_flag_clear_explicit(&noting, memory_order_release);
    errno = saved;
}

uint32_t ca_modules_epoch(void)
{
    return atomic_load_explicit(&latest, memory_order_acquire);
}

const ca_module_t *ca_modules_find(uintptr_t address, uint32_t epoch)
{
    const ca_module_t *module = atomic_load_explicit(&newest, memory_order_acquire);
    for (; module; module = module->next) {
        uint32_t until = atomic_load_explicit(&module->until, memory_order_relaxed);
        if (address - module->low < module->high - module->low && module->from <= epoch &&
            (until == 0 || epoch < until))
            return module;
    }
    return NULL;
}

void ca_modules_notify_all(void)
{
    /* A thread that is noting announces what is new, but nothing of what was known. */
    for (uint64_t begin = ca_clock_ns();
         atomic_flag_test_and_set_explicit(&noting, memory_order_acquire);) {
        if (ca_clock_ns() - begin > ca_bound(WAIT_NS))
            return;
        sched_yield();
    }
    ca_module_t *module = atomic_load_explicit(&newest, memory_order_relaxed);
    for (; module; module = module->next) {
        notify_loaded(module);
        if (!is_there(module))
            notify_closed(module);
    }
    atomic_flag_clear_explicit(&noting, memory_order_release);
}

void ca_modules_put_begin(void)
{
    foreign = true;
    atomic_store(&newest, NULL);
}

void ca_modules_put(const ca_module_t *module)
{
    ca_module_t *copy = put < PUT_MOST ? make(module->path) : NULL;
    if (!copy)
        return;
    put++;
    const char *path = copy->path;
    memcpy(copy, module, sizeof *copy);
    copy->path = path;
    enter(copy);
}

void ca_modules_put_unloaded(uintptr_t bias, uint32_t from, uint32_t until)
{
    if (put_unloaded == put) /* each goes once: more would only take time */
        return;
    put_unloaded++;
    for (ca_module_t *module = atomic_load(&newest); module; module = module->next)
        if (module->bias == bias && module->from == from)
            atomic_store(&module->until, until);
}

bool ca_modules_are_foreign(void)
{
    return foreign;
}

void ca_modules_reset_after_fork(void)
{
    atomic_flag_clear(&noting);
}
