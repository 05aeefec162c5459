/* The process's life under the shim: asleep until CUDA memory is first asked for, then active;
 * after a fork from a process that used CUDA the child is passive, every call goes through. */
#ifndef CA_SHIM_LIFE_H
#define CA_SHIM_LIFE_H

#include <stdbool.h>

/* Whether calls are to be served and tracked. Reads the configuration at the first call. */
bool ca_life_active(void);

/* A context is in use: from now on CUDA does not survive a fork. */
void ca_life_context_in_use(void);

#endif
