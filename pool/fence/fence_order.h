/* Which fences a thread may wait for without bound. A plain free waits for all work submitted
 * before it, so a thread that made one has been behind all fences that were recorded before it, and
 * its program can tell no difference where we wait for one of them later. Work behind any other
 * fence may be waiting for this very thread.
 *
 * Fences behind all work are numbered in the order in which they are recorded, in one row for all
 * contexts. Any thread may call; no call here takes a lock or reaches upstream. */
#ifndef CA_POOL_FENCE_FENCE_ORDER_H
#define CA_POOL_FENCE_FENCE_ORDER_H

#include <stdint.h>

#define CA_FENCE_NONE UINT64_MAX /* no fence yet, or not behind all work: for no thread */

/* A fence was recorded: its number. The newest one's. */
uint64_t ca_fence_number(void);
uint64_t ca_fence_newest(void);

/* The calling thread makes a plain free in the context, after the fence with this number. */
void ca_fence_note_free(const void *context, uint64_t number);

/* The last fence that the calling thread may wait for in this context; 0: none. */
uint64_t ca_fence_freed_after(const void *context);

#endif
