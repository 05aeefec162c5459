/* An arena's own state. Its lock guards every field that changes, and all blocks, segments and
 * epochs that hang on it. */
#ifndef CA_POOL_STATE_H
#define CA_POOL_STATE_H

#include <pthread.h>
#include "config/lock.h"
#include "config/mem.h"
#include "pool/bin.h"
#include "pool/epoch.h"

struct ca_arena {
    ca_lock_t lock;
    const ca_upstream_t *upstream;
    void *context;
    ca_arena_params_t params;

    bool stopped; /* the context is broken: serves nothing, keeps its books */
    bool retired; /* the context is gone: nothing here may reach upstream any more */
    bool no_fences;

    uint64_t operations; /* allocations and frees: the clock of the back-offs */
    uint64_t frees;
    uint64_t query_after; /* operations */
    uint64_t close_after; /* operations */

    ca_bins_t bins[2]; /* ready blocks: [0] to be split, [1] oversize */
    ca_segment_t *segments;
    size_t segment_count;
    ca_epoch_t *open;
    ca_epoch_list_t closing, closed;

    bool growing; /* a thread is obtaining a segment; the others search again when it is done */
    pthread_cond_t grown;
    size_t slack; /* added to segments once upstream returned a badly aligned address */

    size_t room; /* bytes left to grow by, as of the last growth: upstream's, or the limit's */
    size_t reserved, reserved_peak;
    size_t leaving; /* part of reserved: detached, upstream's free under way */
    size_t live, live_peak;
    size_t pending, ready;

    ca_slab_t blocks, segment_slab, epochs;
};

static inline bool ca_arena_serving(const ca_arena_t *arena)
{
    return !arena->stopped && !arena->retired;
}

/* Every invariant, with the lock held; see ca_arena_check. */
const char *ca_check_locked(const ca_arena_t *arena);

#endif
