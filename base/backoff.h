/* Waiting for other threads. No cancellation point: a thread may not end in a call where it would
 * not without us, with what the call was for half done. Leaves errno alone. */
#ifndef CA_BASE_BACKOFF_H
#define CA_BASE_BACKOFF_H

#include <stdint.h>

/* Sleeps for so long, or until a signal handler has run. */
void ca_sleep(uint64_t nanoseconds);

/* For the nth look at what another thread is changing: it needs the processor, then, as it may be
 * of lower priority, some time. */
void ca_backoff(unsigned tries);

#endif
