/* decay:DURATION: segments that were idle for that long are released to the driver, by a helper
 * thread that runs only with the option. From any thread, with no lock held. */
#ifndef CA_SHIM_LIFE_DECAY_H
#define CA_SHIM_LIFE_DECAY_H

/* A context came into service: starts the thread, once, if the option asks for it. */
void ca_decay_start(void);

/* The child of a fork has no such thread. */
void ca_decay_reset_after_fork(void);

#endif
