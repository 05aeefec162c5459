/* A process with two files of this library, one of the system's and one of the user's for example:
 * each takes the other's function for the runtime's own. Called once, at the first use of CUDA. */
#ifndef CA_SHIM_HOOKS_OTHER_COPY_H
#define CA_SHIM_HOOKS_OTHER_COPY_H

/* Warns where another libcachealloc.so is loaded behind this one; the one behind is silent. */
void ca_other_copy_warn(void);

#endif
