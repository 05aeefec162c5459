#ifndef CA_SHIM_DRIVER_GREEN_H
#define CA_SHIM_DRIVER_GREEN_H

/* In the child of a fork: the lock anew. */
void ca_green_reset_after_fork(void);

#endif
