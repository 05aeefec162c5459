/* decay:DURATION: cached memory that was idle for that long goes back to the driver, by a helper
 * thread that is there only then. */
#ifndef CA_SHIM_UPSTREAM_DECAY_H
#define CA_SHIM_UPSTREAM_DECAY_H

/* A context came into service: starts the thread, once, if the option asks for it. Under no lock of
 * ours. */
void ca_decay_start(void);

/* The child of a fork has no such thread. */
void ca_decay_reset_after_fork(void);

#endif
