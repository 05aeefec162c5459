/* Whether memory can be read, as the kernel says: for what may lie anywhere. */
#ifndef CA_REGISTRY_STACK_READABLE_H
#define CA_REGISTRY_STACK_READABLE_H

#include <stdint.h>

/* The end of a page up to which all can be read from `address` on: the one in which `bytes` more
 * end, or an earlier one. The address itself where it cannot. A system call for each page; may
 * change errno. */
uintptr_t ca_readable_end(uintptr_t address, uintptr_t bytes);

#endif
