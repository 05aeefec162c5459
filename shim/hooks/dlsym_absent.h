/* The library's exports are there in every process, with CUDA or without. A program that asks
 * whether `cudaMalloc` exists must get no for an answer where no other library has it. */
#ifndef CA_SHIM_HOOKS_DLSYM_ABSENT_H
#define CA_SHIM_HOOKS_DLSYM_ABSENT_H

#include <stdbool.h>

/* Whether a look-up of `name` through the whole program (RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL))
 * from `caller` would fail without this library. If so, dlerror says it. */
bool ca_dlsym_absent(void *handle, const char *name, void *caller);

#endif
