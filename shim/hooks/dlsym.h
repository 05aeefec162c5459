/* dlsym, interposed: the way to the driver API's hooks for everything that opens the driver with
 * dlopen, cudart first of all. The exported entry is the stub in dlsym.S. From any thread, as early
 * as the loader runs. */
#ifndef CA_SHIM_HOOKS_DLSYM_H
#define CA_SHIM_HOOKS_DLSYM_H

/* Called by the stub: the address to return, or NULL to go on into the real dlsym, or
 * CA_DLSYM_NOTHING to return NULL. */
#define CA_DLSYM_NOTHING ((void *)-1)
void *ca_dlsym_hook(void *handle, const char *name, void *caller);

#endif
