/* Memory that was idle for long goes back upstream. Time is counted in ticks, which somebody else
 * gives: the pool reads no clock. Thread-safe; takes the arena's lock itself. */
#ifndef CA_POOL_GROWTH_DECAY_H
#define CA_POOL_GROWTH_DECAY_H

#include "pool/arena.h"

/* A tick: what was freed by now becomes ready if its work is done, as in a trim, but for what lies
 * in the caches of threads that used them since the last tick. A program that is idle makes no call
 * that would do so. */
void ca_arena_tick(ca_arena_t *arena);

/* Gives one wholly ready segment back whose last live block was freed more than `ticks` ticks ago:
 * `ticks` whole intervals lie between; or, where there is none, as many pages of a range as were
 * wholly ready at each of these. `waits`: upstream's free waits for the context, so nothing
 * is given while that works. Returns the bytes given, 0 when there is no such segment. */
size_t ca_arena_decay(ca_arena_t *arena, uint32_t ticks, bool waits);

#endif
