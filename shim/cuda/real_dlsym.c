/* See real_dlsym.h. May run very early (another allocator initialises), in any program. */
#include "shim/cuda/real_dlsym.h"
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include "base/mutation.h"

static void *no_dlsym(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

/* The next one after ours, jumped through by the stub; hidden, so that it is reached without the
 * global offset table. Another interposer's, or the C library's. */
__attribute__((visibility("hidden"))) _Atomic(ca_dlsym_t) ca_dlsym_real;

static _Atomic(ca_dlsym_t) c_library_s;

static ca_dlsym_t find_c_library_s(void)
{
    ca_dlsym_t real = NULL;
    /* Each architecture's first version comes first: newer glibcs have it too, and a version that
     * is missing would make dlvsym allocate its message, inside a malloc perhaps. */
    static const char *const versions[] = {
#if defined(__x86_64__)
        "GLIBC_2.2.5",
#else
        "GLIBC_2.17",
#endif
        "GLIBC_2.34"
    };
    for (size_t i = 0; !real && i < sizeof(versions) / sizeof(versions[0]); i++)
        real = (ca_dlsym_t)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return real ? real : no_dlsym;
}

/* The one without a version is another interposer's where there is one: by the version
 * it would be passed over, and all that goes through it with it. */
ca_dlsym_t ca_dlsym_next(void)
{
    ca_dlsym_t real = atomic_load_explicit(&ca_dlsym_real, memory_order_acquire);
    if (real)
        return real;
    ca_dlsym_t plain = find_c_library_s();
    real = CA_MUTATED(dlsym_next_skipped) ? NULL : (ca_dlsym_t)plain(RTLD_NEXT, "dlsym");
    atomic_store_explicit(&c_library_s, plain, memory_order_relaxed);
    atomic_store_explicit(&ca_dlsym_real, real ? real : plain, memory_order_release);
    return real ? real : plain;
}

/* RTLD_NEXT and RTLD_DEFAULT count from the caller of the C library's: that must be us. */
void *ca_dlsym_call(void *handle, const char *name)
{
    ca_dlsym_t next = ca_dlsym_next();
    bool counts = handle == RTLD_NEXT || handle == RTLD_DEFAULT;
    return (counts ? atomic_load_explicit(&c_library_s, memory_order_relaxed) : next)(handle, name);
}

void *ca_dlsym_of_c_library(void)
{
    ca_dlsym_next();
    return (void *)atomic_load_explicit(&c_library_s, memory_order_relaxed);
}

static bool hooks_in_place = true;

bool ca_hooks_in_place(void)
{
    return hooks_in_place;
}

static bool holds(const struct dl_phdr_info *info, const void *address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD &&
            (uintptr_t)address - (info->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return true;
    }
    return false;
}

/* The loader lists objects as it loaded them. 1: this library comes first, 2: the C library. */
static int which_is_first(struct dl_phdr_info *info, size_t bytes, void *c_library)
{
    (void)bytes;
    return holds(info, &hooks_in_place) ? 1 : holds(info, c_library) ? 2 : 0;
}

__attribute__((constructor)) static void check_hooks(void)
{
    void *c_library = ca_dlsym_of_c_library();
    if (c_library != (void *)no_dlsym)
        hooks_in_place = dl_iterate_phdr(which_is_first, c_library) != 2;
    dlerror(); /* a look-up that failed is not the program's */
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
