/* Whether the calling thread is in a signal handler. What it interrupted may hold malloc's locks,
 * or the loader's: who ends the process there writes a report that needs neither. */
#ifndef CA_SHIM_HANDLER_H
#define CA_SHIM_HANDLER_H

#include <stdbool.h>

/* Looks for the return address that the kernel gave a handler, CA_HANDLER_DEPTH bytes up the stack
 * at most: one that was left there by an earlier handler may be taken for it. Some hundred system
 * calls, no lock, no memory; safe in a handler. False where that cannot be told, and on other
 * processors than x86-64. */
#define CA_HANDLER_DEPTH (64u << 10)
bool ca_in_handler(void);

#endif
