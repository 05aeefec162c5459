/* dlsym, interposed: the way to the driver API's hooks for everything that opens the driver with
 * dlopen, cudart first of all. The exported entry is the stub in dlsym.S. From any thread, as early
 * as the loader runs. */
#ifndef CA_SHIM_HOOKS_DLSYM_H
#define CA_SHIM_HOOKS_DLSYM_H

#include <stdbool.h>

/* The next dlsym after this library's, without the replacement of driver functions; for look-ups
 * that depend on the caller (RTLD_NEXT, RTLD_DEFAULT) the C library's, which then counts from this
 * library. */
void *ca_dlsym_call(void *handle, const char *name);

/* The C library's dlsym itself, even where another interposer hides it. */
void *ca_dlsym_of_c_library(void);

/* The stub calls it. Returns the address to answer with, or NULL to go on into the real dlsym, or
 * CA_DLSYM_NOTHING to answer NULL. */
#define CA_DLSYM_NOTHING ((void *)-1)
void *ca_dlsym_hook(void *handle, const char *name, void *caller);

/* Whether the code at `caller` belongs to UCX's hooks, libucm. Takes the loader's lock. */
bool ca_dlsym_is_ucx(void *caller);

#endif
