/* See runtime_table.h.
 *
 * A search takes the loader's lock, and a thread that holds that lock may be waiting for this one
 * (a library's constructor that starts a thread and joins it). So nothing is searched where the
 * answer is plain: the runtime that was there when the program started serves every module that
 * does not ask for another one by name. Otherwise there is one search per module, and none on a
 * hit, which needs no real function. */
#include "shim/runtime_table.h"
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "config/mem.h"
#include "config/mutation.h"
#include "shim/dlsym.h"

static const char *const names[] = {
#define CA_RUNTIME(symbol) #symbol,
#include "shim/hooks.def"
};

/* What a module's calls go to. Immutable once published. */
typedef struct ca_module {
    const struct link_map *map;
    const void
        *dynamic; /* with the map's address it tells a module that was closed from its heir */
    void *real[CA_RUNTIME_COUNT];
} ca_module_t;

#define MODULES 256
static ca_module_t *_Atomic modules[MODULES];

/* The runtime that RTLD_NEXT found when we were loaded. */
static ca_module_t first;
static const char *first_soname; /* NULL where it is no runtime but somebody's interposer */

/* --- modules -------------------------------------------------------------------------------------
 */

#ifdef DLFO_STRUCT_HAS_EH_DBASE /* glibc 2.35: the map of an address without the loader's lock */
static __typeof__(_dl_find_object) *find_object;

static struct link_map *map_without_lock(void *address)
{
    struct dl_find_object found;
    return find_object && find_object(address, &found) == 0 ? found.dlfo_link_map : NULL;
}
#else
static struct link_map *map_without_lock(void *address)
{
    (void)address;
    return NULL;
}
#endif

static struct link_map *map_of(void *address)
{
    Dl_info info;
    struct link_map *map = address ? map_without_lock(address) : NULL;
    if (map || !address)
        return map;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

static bool is_ours(void *address)
{
    return !address || map_of(address) == map_of((void *)ca_runtime_real);
}

typedef __typeof__(*((struct link_map *)0)->l_ld) dynamic_t;

/* The text of a module's first dynamic entry with this tag that begins with `prefix`, or NULL. */
static const char *dynamic_text(const struct link_map *map, int64_t tag, const char *prefix)
{
    const char *texts = NULL;
    for (const dynamic_t *d = map->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB) /* glibc relocates it in place, but for read-only ones */
            texts = (const char *)(d->d_un.d_ptr < map->l_addr ? map->l_addr + d->d_un.d_ptr
                                                               : d->d_un.d_ptr);
    for (const dynamic_t *d = map->l_ld; texts && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag && strncmp(texts + d->d_un.d_val, prefix, strlen(prefix)) == 0)
            return texts + d->d_un.d_val;
    return NULL;
}

static const char *runtime_soname(void *address)
{
    struct link_map *map = map_of(address);
    return map ? dynamic_text(map, DT_SONAME, "libcudart") : NULL;
}

/* --- searching -----------------------------------------------------------------------------------
 */

/* What the program and all that is preloaded have. RTLD_DEFAULT is this library here. */
static void *first_of_all(const char *name)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    void *found = program ? ca_dlsym_call(program, name) : NULL;
    if (program)
        dlclose(program);
    return found;
}

/* What the caller's own library and its dependencies have. An interposer before us, another copy of
 * this library among them, asks for the next one, which it is not itself. */
static void *from_caller(const struct link_map *map, const char *name)
{
    if (!map || !map->l_name || !map->l_name[0])
        return NULL; /* the main program: its search order is ours */
    void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *real = handle ? ca_dlsym_call(handle, name) : NULL;
    if (handle)
        dlclose(handle);
    bool before_us = real && map_of(real) == map && real == first_of_all(name);
    return is_ours(real) || before_us ? NULL : real;
}

/* Last resort: a runtime that is loaded somewhere (the caller got our address from another
 * module). */
static void *from_any_runtime(const char *name)
{
    struct link_map *map = map_of((void *)ca_runtime_real);
    while (map && map->l_prev)
        map = map->l_prev;
    for (; map; map = map->l_next) {
        void *handle =
            strstr(map->l_name, "libcudart") ? dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        void *real = handle ? ca_dlsym_call(handle, name) : NULL;
        if (!is_ours(real))
            return real;
    }
    return NULL;
}

static void *search(const struct link_map *map, const char *name)
{
    void *next = ca_dlsym_call(RTLD_NEXT, name);
    void *own = CA_MUTATED(runtime_next) ? NULL : from_caller(map, name);
    if (is_ours(next))
        next = NULL;
    if (CA_MUTATED(runtime_next_only))
        return next;
    /* Somebody else's interposer comes before the runtime; another runtime than the caller's does
     * not. */
    void *real = next && (!own || !runtime_soname(next)) ? next : own;
    if (!real)
        real = from_any_runtime(name);
    /* Keep its library: the pointer is remembered. */
    struct link_map *home = map_of(real);
    if (home && home->l_name[0])
        dlopen(home->l_name, RTLD_LAZY | RTLD_NOLOAD);
    return real;
}

static void publish(const ca_module_t *found)
{
    ca_module_t *module = ca_mem_map(sizeof(*module));
    if (!module)
        return;
    *module = *found;
    size_t slot = ((uintptr_t)found->map >> 4) % MODULES;
    for (size_t i = 0; i < MODULES; i++) {
        ca_module_t *empty = NULL;
        if (atomic_compare_exchange_strong(&modules[(slot + i) % MODULES], &empty, module))
            return;
    }
    ca_mem_unmap(module, sizeof(*module)); /* full: searched each time */
}

static const ca_module_t *known(const struct link_map *map)
{
    size_t slot = ((uintptr_t)map >> 4) % MODULES;
    for (size_t i = 0; i < MODULES; i++) {
        const ca_module_t *module =
            atomic_load_explicit(&modules[(slot + i) % MODULES], memory_order_acquire);
        if (!module)
            return NULL;
        if (module->map == map && module->dynamic == map->l_ld)
            return module;
    }
    return NULL;
}

/* Whether the runtime of the program's start is also what this module would have called. */
static bool first_serves(const struct link_map *map)
{
    if (!first.map || !map)
        return false;
    const char *needed = dynamic_text(map, DT_NEEDED, "libcudart");
    return CA_MUTATED(runtime_first) || !first_soname || !needed ||
           strcmp(needed, first_soname) == 0;
}

void *ca_runtime_real(ca_runtime_function_t function, void *caller)
{
    const struct link_map *map = map_of(caller);
    const ca_module_t *module = map ? known(map) : NULL;
    if (module)
        return module->real[function];
    if (first_serves(map) && first.real[function])
        return first.real[function];

    ca_module_t found = {.map = map, .dynamic = map ? map->l_ld : NULL};
    for (int i = 0; i < CA_RUNTIME_COUNT; i++)
        found.real[i] = search(map, names[i]);
    if (map && found.real[function])
        publish(&found);
    return found.real[function];
}

/* While the loader runs constructors nobody else is there to wait for. One look-up where there is
 * no runtime. */
__attribute__((constructor)) static void look_for_the_first_runtime(void)
{
#ifdef DLFO_STRUCT_HAS_EH_DBASE
    find_object = (__typeof__(find_object))ca_dlsym_call(RTLD_DEFAULT, "_dl_find_object");
#endif
    first.real[0] = ca_dlsym_call(RTLD_NEXT, names[0]);
    if (!is_ours(first.real[0])) {
        for (int i = 1; i < CA_RUNTIME_COUNT; i++)
            first.real[i] = ca_dlsym_call(RTLD_NEXT, names[i]);
        first_soname = runtime_soname(first.real[0]);
        first.map = map_of(first.real[0]);
    }
    dlerror(); /* a look-up that failed is not the program's */
}
