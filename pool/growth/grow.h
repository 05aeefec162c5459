/* Getting segments from upstream and giving them back. The arena's lock is held on entry and on
 * return, and dropped around every upstream call. */
#ifndef CA_POOL_GROWTH_GROW_H
#define CA_POOL_GROWTH_GROW_H

#include "pool/blocks/block.h"

/* What the driver said that it has left, in bytes, and how long that answer serves. It serves while
 * it was far more than is wanted, so that what other processes obtain meanwhile changes nothing. On
 * hardware the question takes about as long as an allocation (tests/gpu/results, cuMemGetInfo). All
 * zero: the driver was never asked. */
typedef struct ca_free_estimate {
    size_t found;   /* SIZE_MAX where the driver does not know, 0 where it has refused since */
    size_t held;    /* what the arena had obtained by then */
    uint64_t until; /* ca_clock_ns */
} ca_free_estimate_t;

/* Whether growing now is better than waiting for pending memory. */
bool ca_grow_allowed(const ca_arena_t *arena);

/* Whether the arena grows before it takes the cached blocks of several threads. Not where little is
 * live, beside which a segment is much, and not of host memory. */
bool ca_grow_spares_caches(const ca_arena_t *arena);

/* Whether a thread that has cached few blocks of `bytes`, where other threads have more, gets new
 * memory before it polls for its few again and again. That is so once warm-up is over, as long as
 * the growth does not count (warmup.h). */
bool ca_grow_for_starved(const ca_arena_t *arena, size_t bytes);

/* Whether the limit refuses a segment of `bytes`. */
bool ca_grow_over_limit(const ca_arena_t *arena, size_t bytes);

/* What upstream has left to grow by, as the caller has just found. That may open the caches or lock
 * them out. */
void ca_grow_set_found(ca_arena_t *arena, size_t bytes);

/* For a free that has closed its epoch: where free memory was short by the last estimate, which may
 * be long ago, this asks again. Drops the lock. */
void ca_grow_estimate_again(ca_arena_t *arena);

/* Obtains a segment and takes the request from it. Idle segments go back first where the reserved
 * peak would rise and nothing runs on the device. `headroom` bytes are left to upstream. One thread
 * at a time per arena: the caller holds the turn (`growing`). Returns 0, -ENOMEM when upstream or
 * the limit refuses, -EIO when the arena no longer serves, or another error that giving memory back
 * would not cure. */
int ca_grow(ca_arena_t *arena, size_t bytes, size_t headroom, ca_block_t **block);

/* Once upstream has refused: memory that was kept for other requests, or in pieces by pin mode.
 * NULL where there is none. */
ca_block_t *ca_grow_without(ca_arena_t *arena, size_t bytes);

/* Releases one segment without live blocks. Returns the bytes released. Drops the lock. */
size_t ca_give_segment(ca_arena_t *arena, ca_segment_t *segment, ca_free_t how);

/* Releases segments without live blocks, largest first, and then pages of its range, until `bytes`
 * are released. Of host memory nothing goes while anything runs. Returns the bytes released. */
typedef enum {
    CA_GIVE_IDLE,     /* wholly ready ones */
    CA_GIVE_SEGMENTS, /* so, and no pages of a range */
    CA_GIVE_OLDEST,   /* so, those that were idle longest first */
    CA_GIVE_EXPORTED, /* those of them that another process may see */
    CA_GIVE_PENDING,  /* with pending blocks too: their real free waits as the plain one would have
                       */
    CA_GIVE_PASSED,   /* which nothing but other contexts' work may be at (ca_epoch_wait) */
} ca_give_t;
size_t ca_give_back(ca_arena_t *arena, size_t bytes, ca_give_t which);

/* What was kept for other processes goes with its segment, once nothing lives or is pending there:
 * the driver would have it back. Drops the lock. */
void ca_give_exported(ca_arena_t *arena);

/* What is ready may be in flight (order.h): it is idle once all that was made ready so has passed.
 * Waits where plain CUDA would have. False: it has not passed. Drops the lock; when it returns true
 * nothing is in flight for as long as the lock is held. */
bool ca_nothing_in_flight(ca_arena_t *arena);

/* Merges what pin mode left unmerged, segment by segment, until a request of `bytes` fits: when
 * memory has run out, whether the mode is on or off. Or all of it, with 0, only when it is off. No
 * call upstream. */
ca_block_t *ca_pin_merge(ca_arena_t *arena, size_t bytes);

#endif
