/* Our exports are there in every process, CUDA or not. A program that asks whether anybody has
 * `cudaMalloc` must hear no where nobody but us has it. */
#ifndef CA_SHIM_HOOKS_DLSYM_ABSENT_H
#define CA_SHIM_HOOKS_DLSYM_ABSENT_H

#include <stdbool.h>

/* Whether a look-up of `name` through the whole program (RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL))
 * from `caller` would fail if we were not there. If so, dlerror says it. */
bool ca_dlsym_absent(void *handle, const char *name, void *caller);

#endif
