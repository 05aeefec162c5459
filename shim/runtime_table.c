/* See runtime_table.h. The search takes the loader's lock, so it runs once per call site, and never
 * on a hit, which needs no real function. */
#include "shim/runtime_table.h"
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "shim/dlsym.h"

static const char *const names[] = {
#define CA_RUNTIME(symbol) #symbol,
#include "shim/hooks.def"
};

/* Immutable once published. A site that is displaced from its slot is found again by a search. */
typedef struct ca_site {
    void *caller;
    ca_runtime_function_t function;
    void *real;
} ca_site_t;

#define SITES 1024
static ca_site_t sites[SITES];
static _Atomic int site_state[SITES]; /* 0 empty, 1 being written, 2 there */

static struct link_map *map_of(void *address)
{
    Dl_info info;
    struct link_map *map = NULL;
    return dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

static bool is_ours(void *address)
{
    return !address || map_of(address) == map_of((void *)ca_runtime_real);
}

/* What the caller's own library and its dependencies have. */
static void *from_caller(void *caller, const char *name)
{
    struct link_map *map = map_of(caller);
    if (!map || !map->l_name || !map->l_name[0])
        return NULL; /* the main program: its search order is ours */
    void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *real = handle ? ca_dlsym_call(handle, name) : NULL;
    if (handle)
        dlclose(handle);
    return is_ours(real) ? NULL : real;
}

static bool in_runtime(void *address)
{
    struct link_map *map = map_of(address);
    const char *base = map ? strrchr(map->l_name, '/') : NULL;
    const char *name = base ? base + 1 : map ? map->l_name : "";
    return strncmp(name, "libcudart", strlen("libcudart")) == 0;
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

static void *search(const char *name, void *caller)
{
    void *next = ca_dlsym_call(RTLD_NEXT, name);
    void *own = from_caller(caller, name);
    if (is_ours(next))
        next = NULL;
    /* Somebody else's interposer comes before the runtime; another runtime than the caller's does
     * not. */
    void *real = next && (!own || !in_runtime(next)) ? next : own;
    if (!real)
        real = from_any_runtime(name);
    /* Keep its library: the pointer is remembered. */
    struct link_map *map = real ? map_of(real) : NULL;
    if (map && map->l_name[0])
        dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    return real;
}

void *ca_runtime_real(ca_runtime_function_t function, void *caller)
{
    size_t slot = (((uintptr_t)caller >> 2) * 31 + (size_t)function) % SITES;
    ca_site_t *site = &sites[slot];
    if (atomic_load_explicit(&site_state[slot], memory_order_acquire) == 2 &&
        site->caller == caller && site->function == function)
        return site->real;

    void *real = search(names[function], caller);
    int empty = 0;
    if (real && atomic_compare_exchange_strong(&site_state[slot], &empty, 1)) {
        site->caller = caller;
        site->function = function;
        site->real = real;
        atomic_store_explicit(&site_state[slot], 2, memory_order_release);
    }
    return real;
}
