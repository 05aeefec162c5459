/* What the dlsym stub calls: decides whether a look-up is of a driver function that has a wrapper.
 *
 * It may run very early (another allocator initialises), in any program, so it touches nothing but
 * a few variables of its own until a driver function is asked for. */
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include "base/mutation.h"
#include "shim/hooks/dlsym.h"
#include "shim/hooks/dlsym_absent.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/real_dlsym.h"

void *ca_dlsym_hook(void *handle, const char *name, void *caller)
{
    ca_dlsym_t real = ca_dlsym_next();
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
