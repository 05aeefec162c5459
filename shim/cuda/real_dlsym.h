/* The dlsym behind ours (shim/hooks/dlsym_hook.c), by which the driver's functions are looked up.
 */
#ifndef CA_SHIM_CUDA_REAL_DLSYM_H
#define CA_SHIM_CUDA_REAL_DLSYM_H

#include <stdbool.h>

typedef void *(*ca_dlsym_t)(void *, const char *);

/* The next dlsym after ours: another interposer's, or the C library's. */
ca_dlsym_t ca_dlsym_next(void);

/* The next dlsym after ours, without our swap; for what depends on the caller (RTLD_NEXT,
 * RTLD_DEFAULT) the C library's, which then looks for this library. */
void *ca_dlsym_call(void *handle, const char *name);

/* That dlsym itself, by whatever else it is hidden. */
void *ca_dlsym_of_c_library(void);

/* Whether the program's calls come by this library: it was there when the program started, by
 * LD_PRELOAD or linked. Where it was opened later the program has the C library's dlsym, and none
 * of its calls is seen but those of the library's own interface. */
bool ca_hooks_in_place(void);

/* Whether the code at `caller` is of UCX's hooks, libucm. Takes the loader's lock. */
bool ca_dlsym_is_ucx(void *caller);

#endif
