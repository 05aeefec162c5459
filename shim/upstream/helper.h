/* Threads of our own. */
#ifndef CA_SHIM_UPSTREAM_HELPER_H
#define CA_SHIM_UPSTREAM_HELPER_H

#include <stddef.h>

/* Starts a detached thread that has all signals blocked, so that none of the program's is handled
 * on it. `stack_bytes` are what it needs; where thread-local variables of the program leave no room
 * on such a stack it gets the usual one. Under no lock of ours. 0 or an errno value. */
int ca_helper_start(void *(*run)(void *), void *arg, size_t stack_bytes);

#endif
