/* A process with two files of this library, one of the system's and one of the user's, say: each
 * takes the other's call for the runtime's own. */
#ifndef CA_SHIM_HOOKS_OTHER_COPY_H
#define CA_SHIM_HOOKS_OTHER_COPY_H

/* Warns where another libcachealloc.so is loaded behind this one; the one behind says nothing. */
void ca_other_copy_warn(void);

#endif
