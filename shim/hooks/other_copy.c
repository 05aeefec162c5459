#include "shim/hooks/other_copy.h"
#include <link.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "base/log.h"

#define NAME "/libcachealloc.so"

typedef struct search {
    bool passed_us;
    char other[PATH_MAX]; /* its path, a copy, since the library may be closed */
} search_t;

static bool is_ours(const struct dl_phdr_info *module)
{
    uintptr_t at = (uintptr_t)is_ours;
    for (int i = 0; i < module->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &module->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && at - (module->dlpi_addr + part->p_vaddr) < part->p_memsz)
            return true;
    }
    return false;
}

static int find_other(struct dl_phdr_info *module, size_t bytes, void *arg)
{
    search_t *search = arg;
    const char *name = module->dlpi_name ? strrchr(module->dlpi_name, '/') : NULL;
    (void)bytes;
    if (is_ours(module))
        search->passed_us = true;
    else if (search->passed_us && name && strcmp(name, NAME) == 0)
        snprintf(search->other, sizeof search->other, "%s", module->dlpi_name);
    return search->other[0] != '\0';
}

void ca_other_copy_warn(void)
{
    static search_t search; /* static, since the first allocating thread may have a small stack */
    if (dl_iterate_phdr(find_other, &search) != 0)
        ca_warn("%s is loaded too: with two copies of the library calls of the runtime are served "
                "and tracked by neither; leave one in LD_PRELOAD",
                search.other);
}
