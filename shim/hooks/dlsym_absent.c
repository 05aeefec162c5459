#include "shim/hooks/dlsym_absent.h"
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include "shim/cuda/real_dlsym.h"

static struct link_map *map_of(void *address)
{
    Dl_info info;
    struct link_map *map = NULL;
    return address && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

/* The first link map: the program itself. */
static struct link_map *program_of(struct link_map *any)
{
    while (any && any->l_prev)
        any = any->l_prev;
    return any;
}

static int is_cuda(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    return info->dlpi_name &&
           (strstr(info->dlpi_name, "libcudart") || strstr(info->dlpi_name, "libcuda.so"));
}

/* Iterates over the loaded objects: another thread may be closing one of the link maps. */
static bool cuda_is_loaded(void)
{
    return dl_iterate_phdr(is_cuda, NULL) != 0;
}

bool ca_dlsym_absent(void *handle, const char *name, void *caller)
{
    struct link_map *own = map_of((void *)ca_dlsym_absent);
    struct link_map *program = program_of(own);
    bool whole = handle == RTLD_DEFAULT || handle == RTLD_NEXT;
    if (!own || (!whole && handle != program)) /* glibc's handles are link maps */
        return false;
    /* By the program's handle: RTLD_DEFAULT called here begins with this library, even where
     * another one comes first. */
    if (map_of(ca_dlsym_call(program, name)) != own)
        return false; /* another library answers */
    /* Only the program's own look-ups see the global scope alone. A library that was opened with a
     * scope of its own may see more, and that scope cannot be asked on its behalf: where there is a
     * CUDA library it gets this library's function, which finds the right one when it is called. */
    if (whole && map_of(caller) != program && cuda_is_loaded())
        return false;
    return !ca_dlsym_call(RTLD_NEXT, name); /* last, for dlerror */
}
