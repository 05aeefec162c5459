/* See runtime_table.h.
 *
 * A search takes the loader's lock, and a thread that holds that lock may be waiting for this one
 * (a library's constructor that starts a thread and joins it). So nothing is searched where the
 * answer is plain: the runtime that was there when the program started serves every module that
 * does not ask for another one by name. Otherwise there is one search per module, and none on the
 * fast path, which needs no real function. */
#include "shim/hooks/runtime_table.h"
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "base/mem.h"
#include "base/mutation.h"
#include "shim/cuda/real_dlsym.h"

static const char *const names[] = {
#define CA_RUNTIME(symbol) #symbol,
#include "shim/hooks/hooks.def"
};

/* A loaded object. Two that are mapped at the same place, one after the other, differ in `name`. */
typedef __typeof__(*((struct link_map *)0)->l_ld) dynamic_t;
typedef struct ca_object {
    const dynamic_t *dynamic;
    uintptr_t base;
    const char *name; /* the loader's, valid while loaded; empty: the program */
} ca_object_t;

/* The functions that an object's calls reach. Immutable once published. */
typedef struct ca_module {
    ca_object_t object;
    void *real[CA_RUNTIME_COUNT];
} ca_module_t;

#define MODULES 256
static ca_module_t *_Atomic modules[MODULES];

/* The runtime that RTLD_NEXT found when this library was loaded. */
static ca_module_t first;
static const char *first_soname; /* NULL: no runtime but another interposer */

/* --- objects -------------------------------------------------------------------------------------
 * None of this waits for a thread that is in dlopen: dl_iterate_phdr has a lock of its own. */

typedef struct search {
    uintptr_t address;
    ca_object_t found;
} search_t;

static int search_module(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    search_t *search = arg;
    bool is_it = false;
    (void)bytes;
    search->found = (ca_object_t){.base = info->dlpi_addr, .name = info->dlpi_name};
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        is_it |= part->p_type == PT_LOAD && search->address - begin < part->p_memsz;
        if (part->p_type == PT_DYNAMIC)
            search->found.dynamic = (const dynamic_t *)begin;
    }
    return is_it;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE /* glibc 2.35: without any lock */
static __typeof__(_dl_find_object) *find_object;

static bool find_without_lock(void *address, ca_object_t *object)
{
    struct dl_find_object found;
    if (!find_object || find_object(address, &found) != 0)
        return false;
    const struct link_map *map = found.dlfo_link_map;
    *object = (ca_object_t){map->l_ld, map->l_addr, map->l_name};
    return true;
}
#else
static bool find_without_lock(void *address, ca_object_t *object)
{
    (void)address, (void)object;
    return false;
}
#endif

/* All zero where there is no object. */
static ca_object_t object_of(void *address)
{
    search_t search = {.address = (uintptr_t)address};
    if (!address || find_without_lock(address, &search.found) ||
        (dl_iterate_phdr(search_module, &search) != 0 && search.found.dynamic))
        return search.found;
    return (ca_object_t){.dynamic = NULL};
}

static bool is_same(const ca_object_t *one, const ca_object_t *other)
{
    return one->dynamic == other->dynamic && one->name == other->name;
}

static bool is_ours(void *address)
{
    ca_object_t object = object_of(address), ours = object_of((void *)ca_runtime_real);
    return !address || is_same(&object, &ours);
}

/* The text of an object's first dynamic entry with this tag that begins with `prefix`, or NULL. */
static const char *dynamic_text(const ca_object_t *object, int64_t tag, const char *prefix)
{
    const char *texts = NULL;
    if (!object->dynamic)
        return NULL;
    for (const dynamic_t *d = object->dynamic; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB) /* glibc relocates it in place, but for read-only ones */
            texts = (const char *)(d->d_un.d_ptr < object->base ? object->base + d->d_un.d_ptr
                                                                : d->d_un.d_ptr);
    for (const dynamic_t *d = object->dynamic; texts && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag && strncmp(texts + d->d_un.d_val, prefix, strlen(prefix)) == 0)
            return texts + d->d_un.d_val;
    return NULL;
}

static const char *runtime_soname(void *address)
{
    ca_object_t object = object_of(address);
    return dynamic_text(&object, DT_SONAME, "libcudart");
}

/* --- searching -----------------------------------------------------------------------------------
 */

/* Searches the program and all preloaded libraries. RTLD_DEFAULT is this library here. */
static void *first_of_all(const char *name)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    void *found = program ? ca_dlsym_call(program, name) : NULL;
    if (program)
        dlclose(program);
    return found;
}

/* Searches the caller's own library and its dependencies. An interposer before this library,
 * another copy of it among them, asks for the next one, which it is not itself. */
static void *from_caller(const ca_object_t *caller, const char *name)
{
    if (!caller->dynamic || !caller->name[0])
        return NULL; /* the main program: the search order here is its own */
    void *handle = dlopen(caller->name, RTLD_LAZY | RTLD_NOLOAD);
    void *real = handle ? ca_dlsym_call(handle, name) : NULL;
    if (handle)
        dlclose(handle);
    ca_object_t home = object_of(real);
    bool before_us = real && is_same(&home, caller) && real == first_of_all(name);
    return is_ours(real) || before_us ? NULL : real;
}

typedef struct runtimes {
    size_t left; /* to pass over */
    char name[1024];
} runtimes_t;

/* The name is copied: the object may be closed once this has returned. */
static int find_runtime(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    runtimes_t *runtimes = arg;
    (void)bytes;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "libcudart") ||
        strlen(info->dlpi_name) >= sizeof runtimes->name || runtimes->left-- > 0)
        return 0;
    strcpy(runtimes->name, info->dlpi_name);
    return 1;
}

/* The last resort: a runtime that is loaded somewhere (the caller got the wrapper's address from
 * another module). */
static void *from_any_runtime(const char *name)
{
    for (size_t passed = 0;; passed++) {
        runtimes_t runtimes = {.left = passed};
        if (dl_iterate_phdr(find_runtime, &runtimes) == 0)
            return NULL;
        void *handle = dlopen(runtimes.name, RTLD_LAZY | RTLD_NOLOAD);
        void *real = handle ? ca_dlsym_call(handle, name) : NULL;
        if (!is_ours(real))
            return real;
    }
}

static void *search(const ca_object_t *caller, const char *name)
{
    void *next = ca_dlsym_call(RTLD_NEXT, name);
    void *own = CA_MUTATED(runtime_next) ? NULL : from_caller(caller, name);
    if (is_ours(next))
        next = NULL;
    if (CA_MUTATED(runtime_next_only))
        return next;
    /* Another interposer comes before the runtime; another runtime than the caller's does not. */
    void *real = next && (!own || !runtime_soname(next)) ? next : own;
    if (!real)
        real = from_any_runtime(name);
    /* Its library is kept open, since the pointer is remembered. */
    ca_object_t home = object_of(real);
    if (home.dynamic && home.name[0])
        dlopen(home.name, RTLD_LAZY | RTLD_NOLOAD);
    return real;
}

static size_t place_of(const ca_object_t *object)
{
    return ((uintptr_t)object->dynamic >> 4) % MODULES;
}

static void publish(const ca_module_t *found)
{
    ca_module_t *module = ca_mem_map(sizeof(*module));
    if (!module)
        return;
    *module = *found;
    for (size_t i = 0; i < MODULES; i++) {
        ca_module_t *empty = NULL;
        if (atomic_compare_exchange_strong(&modules[(place_of(&found->object) + i) % MODULES],
                                           &empty, module))
            return;
    }
    ca_mem_unmap(module, sizeof(*module)); /* full: searched each time */
}

static const ca_module_t *known(const ca_object_t *object)
{
    for (size_t i = 0; i < MODULES; i++) {
        const ca_module_t *module =
            atomic_load_explicit(&modules[(place_of(object) + i) % MODULES], memory_order_acquire);
        if (!module)
            return NULL;
        if (is_same(&module->object, object))
            return module;
    }
    return NULL;
}

/* Whether the runtime of the program's start is also what this object would have called. */
static bool first_serves(const ca_object_t *object)
{
    if (!first.object.dynamic || !object->dynamic)
        return false;
    const char *needed = dynamic_text(object, DT_NEEDED, "libcudart");
    return CA_MUTATED(runtime_first) || !first_soname || !needed ||
           strcmp(needed, first_soname) == 0;
}

void *ca_runtime_real(ca_runtime_function_t function, void *caller)
{
    ca_module_t found = {.object = object_of(caller)};
    const ca_module_t *module = found.object.dynamic ? known(&found.object) : NULL;
    if (module)
        return module->real[function];
    if (first_serves(&found.object) && first.real[function])
        return first.real[function];

    for (int i = 0; i < CA_RUNTIME_COUNT; i++)
        found.real[i] = search(&found.object, names[i]);
    if (found.object.dynamic && found.real[function])
        publish(&found);
    return found.real[function];
}

/* While the loader runs constructors no other thread can be waited for. One look-up where there is
 * no runtime. */
__attribute__((constructor)) static void find_the_first_runtime(void)
{
#ifdef DLFO_STRUCT_HAS_EH_DBASE
    find_object = (__typeof__(find_object))ca_dlsym_call(RTLD_DEFAULT, "_dl_find_object");
#endif
    first.real[0] = ca_dlsym_call(RTLD_NEXT, names[0]);
    if (!is_ours(first.real[0])) {
        for (int i = 1; i < CA_RUNTIME_COUNT; i++)
            first.real[i] = ca_dlsym_call(RTLD_NEXT, names[i]);
        first_soname = runtime_soname(first.real[0]);
        first.object = object_of(first.real[0]);
    }
    dlerror(); /* a look-up that failed is not the program's */
}
