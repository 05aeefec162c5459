/* Memory on its way back upstream, over all arenas: what one thread is giving back another one does
 * not find idle any more, and upstream does not have yet. Any thread may call; no call here takes a
 * lock or reaches upstream. */
#ifndef CA_POOL_GROWTH_GIVING_H
#define CA_POOL_GROWTH_GIVING_H

#include <stdbool.h>

/* Around each piece; it counts as given only where upstream took it. */
void ca_giving_begin(void);
void ca_giving_end(bool released);

/* How many pieces were released so far: to be asked before the request for memory that may fail. */
unsigned ca_giving_done(void);

/* For a request that could not ask before: whether one was given within the last 100 ms. */
bool ca_giving_just_now(void);

/* For a request that failed. Waits while other threads are giving, a second at most, until a piece
 * came that was not there at `*done`; sets that anew. Whether one came: the request is then to be
 * repeated. No lock of ours may be held. */
bool ca_giving_wait(unsigned *done);

void ca_giving_reset_after_fork(void); /* the totals too: see state.h, ca_reserved_raise */

#endif
