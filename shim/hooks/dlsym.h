/* Our dlsym: api D's door for everything that opens the driver with dlopen, cudart first of all.
 * The exported entry is the stub in dlsym.S. */
#ifndef CA_SHIM_HOOKS_DLSYM_H
#define CA_SHIM_HOOKS_DLSYM_H

#include <stdbool.h>

/* The next dlsym after ours, without our swap; for what depends on the caller (RTLD_NEXT,
 * RTLD_DEFAULT) the C library's, which then looks for this library. */
void *ca_dlsym_call(void *handle, const char *name);

/* That dlsym itself, by whatever else it is hidden. */
void *ca_dlsym_of_c_library(void);

/* Called by the stub: the address to return, or NULL to go on into the real dlsym, or
 * CA_DLSYM_NOTHING to return NULL. */
#define CA_DLSYM_NOTHING ((void *)-1)
void *ca_dlsym_hook(void *handle, const char *name, void *caller);

/* Whether the code at `caller` is of UCX's hooks, libucm. Takes the loader's lock. */
bool ca_dlsym_is_ucx(void *caller);

#endif
