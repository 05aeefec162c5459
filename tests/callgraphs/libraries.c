/* Frames of libraries that take each other's place. */
#include "tests/callgraphs/callgraphs.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include "registry/stack/unload.h"

#define MODULES 2

static const char *const *modules;
static __thread struct {
    void *address;
    uint64_t which;
} latest;

void libraries_start(const char *const *paths)
{
    modules = paths;
}

typedef void enter_t(form_t *next, uint64_t way, unsigned levels);

static NOINLINE void from_there(uint64_t way, unsigned levels)
{
    go_on(way, levels);
    sink++;
}

NOINLINE void in_library(uint64_t way, unsigned levels)
{
    uint64_t which = way % MODULES;
    void *module = dlopen(modules[which], RTLD_NOW | RTLD_LOCAL);
    if (!module)
        fail(dlerror());
    full_unwind_forget();
    enter_t *enter = (enter_t *)dlsym(module, "enter");
    count(LIBRARIES);
    if ((void *)enter == latest.address && which != latest.which)
        count(LIBRARY_SAME_PLACE);
    latest.address = (void *)enter;
    latest.which = which;
    enter(from_there, way, levels);
    if (ca_unload(dlclose, module) != 0)
        fail("a library cannot be closed");
    full_unwind_forget();
    sink++;
}
