/* Libraries that are unloaded: the code at an address becomes another one's.
 *
 * What is known of code by its address goes stale then: libunwind's caches, one of which is each
 * thread's own and cannot be emptied, and the cache of stacks. The loader tells no other code, and
 * to ask it takes its lock; so libraries are closed through here. */
#ifndef CA_REGISTRY_STACK_UNLOAD_H
#define CA_REGISTRY_STACK_UNLOAD_H

#include <stdint.h>

#define CA_UNLOAD_UNDER_WAY 0
#define CA_UNLOAD_NONE 1 /* the epoch before anything was unloaded */

/* Calls `close` with `handle`, as dlclose, and returns what that returns. Meanwhile and afterwards
 * captures give what a fresh unwinding would, on every thread. Takes the loader's lock, so never
 * under one of ours; errno is left as `close` left it. */
int ca_unload(int (*close)(void *handle), void *handle);

/* Another number since code was unloaded. CA_UNLOAD_UNDER_WAY as long as it may be unloaded just
 * now. Takes no lock. */
uint64_t ca_unload_epoch(void);

/* In the child of a fork. */
void ca_unload_reset_after_fork(void);

#endif
