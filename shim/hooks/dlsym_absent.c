#include "shim/hooks/dlsym_absent.h"
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include "shim/hooks/dlsym.h"

static struct link_map *map_of(void *address)
{
    Dl_info info;
    struct link_map *map = NULL;
    return address && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) ? map : NULL;
}

/* The first of all: the program itself. */
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

/* Not along the link maps: another thread may be closing one of them. */
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
    /* By the program's handle: RTLD_DEFAULT of ours begins with us, whoever comes first. */
    if (map_of(ca_dlsym_call(program, name)) != own)
        return false; /* the answer is not ours */
    /* Only the program's own look-ups end with what everybody sees. A library that was opened for
     * itself may see more, and what that is cannot be asked on its behalf: where there is a CUDA it
     * gets our function, which finds the right one when it is called. */
    if (whole && map_of(caller) != program && cuda_is_loaded())
        return false;
    return !ca_dlsym_call(RTLD_NEXT, name); /* last, for dlerror */
}
