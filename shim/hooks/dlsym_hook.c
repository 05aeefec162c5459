/* What the dlsym stub calls: decides whether a look-up is of a driver function that has a wrapper.
 *
 * It may run very early (another allocator initialises), in any program, so it touches nothing but
 * a few variables of its own until a driver function is asked for. */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include "base/mutation.h"
#include "shim/hooks/dlsym.h"
#include "shim/hooks/dlsym_absent.h"
#include "shim/cuda/driver_table.h"

typedef void *(*dlsym_t)(void *, const char *);

static void *no_dlsym(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

/* The next dlsym after this library's, to which the stub jumps; hidden, so that it is reached
 * without the global offset table. It is another interposer's, or the C library's. */
__attribute__((visibility("hidden"))) _Atomic(dlsym_t) ca_dlsym_real;

static _Atomic(dlsym_t) c_library_s;

static dlsym_t find_c_library_s(void)
{
    dlsym_t real = NULL;
    /* Each architecture's first version comes first: newer glibcs have it too, and a missing
     * version would make dlvsym allocate its message, perhaps inside a program's malloc. */
    static const char *const versions[] = {
#if defined(__x86_64__)
        "GLIBC_2.2.5",
#else
        "GLIBC_2.17",
#endif
        "GLIBC_2.34"
    };
    for (size_t i = 0; !real && i < sizeof(versions) / sizeof(versions[0]); i++)
        real = (dlsym_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return real ? real : no_dlsym;
}

/* The dlsym without a version is another interposer's where there is one: a look-up by version
 * would pass over it, and all calls that go through it. */
static dlsym_t real_dlsym(void)
{
    dlsym_t real = atomic_load_explicit(&ca_dlsym_real, memory_order_acquire);
    if (real)
        return real;
    dlsym_t plain = find_c_library_s();
    real = CA_MUTATED(dlsym_next_skipped) ? NULL : (dlsym_t)plain(RTLD_NEXT, "dlsym");
    atomic_store_explicit(&c_library_s, plain, memory_order_relaxed);
    atomic_store_explicit(&ca_dlsym_real, real ? real : plain, memory_order_release);
    return real ? real : plain;
}

/* RTLD_NEXT and RTLD_DEFAULT count from the caller of the C library's dlsym: that must be this
 * library. */
void *ca_dlsym_call(void *handle, const char *name)
{
    dlsym_t next = real_dlsym();
    bool counts = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    return (counts ? atomic_load_explicit(&c_library_s, memory_order_relaxed) : next)(handle, name);
}

void *ca_dlsym_of_c_library(void)
{
    real_dlsym();
    return (void *)atomic_load_explicit(&c_library_s, memory_order_relaxed);
}

bool ca_dlsym_is_ucx(void *caller)
{
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname)
        return false;
    const char *base = strrchr(info.dli_fname, '/');
    return strncmp(base ? base + 1 : info.dli_fname, "libucm", strlen("libucm")) == 0 &&
           !CA_MUTATED(ucx_swapped);
}

void *ca_dlsym_hook(void *handle, const char *name, void *caller)
{
    dlsym_t real = real_dlsym();
    if (CA_MUTATED(dlsym_called)) {
        void *found = real(handle, name);
        return found ? found : CA_DLSYM_NOTHING;
    }
    if (!name || name[0] != 'c' || name[1] != 'u')
        return NULL;
    if (!CA_MUTATED(absent_found) && ca_dlsym_absent(handle, name, caller))
        return CA_DLSYM_NOTHING;
    /* UCX patches the first bytes of the functions that it finds; in this library's, it would hook
     * itself. RTLD_DEFAULT and RTLD_NEXT are not replaced: two interposers would loop. The driver's
     * functions are `cu` and a capital; the runtime's and the libraries' are `cuda`, `cublas`, ...
     */
    if (handle == RTLD_DEFAULT || (handle == RTLD_NEXT && !CA_MUTATED(swap_for_rtld_next)) ||
        name[2] < 'A' || name[2] > 'Z' || !ca_driver_wraps(name) || ca_dlsym_is_ucx(caller))
        return NULL;
    ca_mutation_read(); /* the first sign of CUDA in many a process */
    if (CA_MUTATED(dlsym_blind))
        return NULL;
    /* Resolving looks up names that may not exist; the caller's own look-up comes last, so that
     * dlerror is about that one. NULL repeats it, by a jump, where there is nothing to replace. */
    ca_driver_resolve(handle);
    void *address = real(handle, name);
    return address ? ca_driver_swap(address) : NULL;
}
