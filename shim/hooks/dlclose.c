/* dlclose, interposed: code is known by its address, and that must be forgotten when the code is
 * unloaded (registry/stack/unload.h). Nothing else about the call changes, and nothing at all where
 * CUDA is not used. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include "config/options.h"
#include "registry/stack/unload.h"
#include "shim/cuda/cuda_decls.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/life_state.h"

typedef int ca_dlclose_t(void *handle);

static ca_dlclose_t *real_dlclose(void)
{
    static _Atomic(ca_dlclose_t *) found;
    ca_dlclose_t *real = atomic_load_explicit(&found, memory_order_relaxed);
    if (!real) {
        real = (ca_dlclose_t *)ca_dlsym_call(RTLD_NEXT, "dlclose");
        atomic_store_explicit(&found, real, memory_order_relaxed);
    }
    return real;
}

/* Whether any stack is known. */
static bool has_stacks(void)
{
    return atomic_load(&ca_life_state) == CA_LIFE_ACTIVE &&
           atomic_load(&ca_life_page.same_process) && ca_options.stacks.which != CA_STACKS_OFF;
}

CA_EXPORT int dlclose(void *handle)
{
    ca_dlclose_t *real = real_dlclose();
    if (!real)
        return -1;
    return has_stacks() ? ca_unload(real, handle) : real(handle);
}
