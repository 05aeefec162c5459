/* Green contexts, which shim/driver/green.c watches: what the rest of the shim calls of it. */
#ifndef CA_SHIM_DRIVER_GREEN_H
#define CA_SHIM_DRIVER_GREEN_H

/* In the child of a fork: makes the lock anew. */
void ca_green_reset_after_fork(void);

#endif
