/* What the calling thread keeps at hand for its hits (shim/alloc/hit.h): one object, since each
 * thread-local one costs a look-up of its address.
 *
 * It is filled in after a call that was no hit, and good for as long as the process's ticket
 * (shim/life/life.h) is the one that it was filled in under: whatever makes any of it untrue for
 * all threads changes that. What is the thread's own and leaves it (its tally, its cache) is
 * forgotten by who takes it away. */
#ifndef CA_CONFIG_MINE_H
#define CA_CONFIG_MINE_H

#include <stddef.h>
#include <stdint.h>
#include "base/slot.h"

#define CA_MINE_NO_TICKET UINT64_MAX /* is never the process's */

typedef enum {
    CA_LANE_DRIVER,
    CA_LANE_RUNTIME,
    CA_LANES,
} ca_lane_t;

typedef struct ca_mine {
    uint64_t tickets[CA_LANES]; /* of each lane: it may be that only one has hits */
    void (*get_current)(void);  /* the driver's cuCtxGetCurrent */
    const void *handle;         /* what it says while the rest holds */
    struct ca_tally *tally;     /* as ca_tally_mine */
    struct ca_cache *cache;     /* of the thread's, in front of that context's heap */
    struct ca_arena *heap;      /* that one */
    size_t cache_most;          /* bytes of the largest request that it may serve */
    const void *pinned_arena;   /* the same of pinned memory, as asked for last, or NULL */
    struct ca_cache *pinned_cache;
    unsigned pinned_flags;
    ca_slot_origin_t origin; /* of its memory in that context */
    struct ca_context *context;
    int64_t
        sample_left; /* bytes to the thread's next sample (registry/table/sample.h); below 0: ask */
    unsigned holds;  /* of cancellation: see base/cancel.h */
    unsigned number; /* ca_mine_number; 0 before it was asked for */
} ca_mine_t;

extern _Thread_local ca_mine_t ca_mine;

/* The calling thread's, from 1, in the order in which threads were first asked about: for what is
 * dealt out among threads. */
unsigned ca_mine_ask_number(void);
static inline unsigned ca_mine_number(void)
{
    unsigned known = ca_mine.number;
    return __builtin_expect(known != 0, 1) ? known : ca_mine_ask_number();
}

/* No hits until it is filled in again. */
static inline void ca_mine_forget(void)
{
    for (unsigned i = 0; i < CA_LANES; i++)
        ca_mine.tickets[i] = CA_MINE_NO_TICKET;
}

#endif
