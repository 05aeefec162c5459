/* Room for what the driver serves: memory that the pool keeps and nobody uses goes back to it. */
#ifndef CA_SHIM_UPSTREAM_RECLAIM_H
#define CA_SHIM_UPSTREAM_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>
#include "pool/growth/giving.h"
#include "shim/cuda/contexts.h"

/* Each gives back all that lies idle, or where there is nothing what work in flight lets go of: on
 * the device of `context` (NULL: nothing), on a device, on that of the current context, on every
 * device; or pinned memory. Returns whether there was any. The calling thread's captures and
 * context are as before.
 */
bool ca_reclaim(const ca_context_t *context);
bool ca_reclaim_on(CUdevice device);
bool ca_reclaim_here(void);
bool ca_reclaim_everywhere(void);
bool ca_reclaim_pinned(void);
/* Here and pinned. */
bool ca_reclaim_any(void);

/* Of calls that may end a context: those that a request has seen, and how long it still waits. */
typedef struct ca_ends {
    unsigned seen;
    uint64_t until_ns; /* 0 before it waits */
} ca_ends_t;

/* While such a call is under way nothing goes back from its context: what we keep there is the
 * driver's again when the call is done, or ours to give. Waits for that. Whether one was done since
 * the last time: the request is then to be repeated. False where none is under way, or all of the
 * request's waits take too long: the call may be waiting for work that waits for this thread. */
bool ca_ends_wait(ca_ends_t *ends);

#define CA_RECLAIM_ROUNDS 8

/* What a request had seen given back before it asked the driver. */
typedef struct ca_asked {
    ca_ends_t ends;
    unsigned given; /* pool/growth/giving.h */
    unsigned rounds;
} ca_asked_t;

ca_asked_t ca_asked(void);

/* The driver's call, and again while it runs out of memory and we have some to give: what is idle,
 * then what work in flight has to let go of, what another thread gave meanwhile or is giving, then
 * what contexts have that are about to end. `room` is one of the above, evaluated only then: with
 * nothing to give the driver's own code is the answer. It gives all there is, so that a few rounds
 * are enough: to a request that is too large other threads may go on freeing for ever. */
#define CA_WITH_ROOM(room, call)                                                                   \
    ({                                                                                             \
        ca_asked_t asked_ = ca_asked();                                                            \
        CUresult first_ = (call);                                                                  \
        if (first_ == CUDA_ERROR_OUT_OF_MEMORY)                                                    \
            first_ = CA_ONCE_MORE(&asked_, room, call);                                            \
        first_;                                                                                    \
    })

/* The part of it that comes when the call is out of memory; `asked`: ca_asked() before that call.
 */
#define CA_ONCE_MORE(asked, room, call)                                                            \
    ({                                                                                             \
        ca_asked_t *before_ = (asked);                                                             \
        CUresult code_ = CUDA_ERROR_OUT_OF_MEMORY;                                                 \
        while (code_ == CUDA_ERROR_OUT_OF_MEMORY &&                                                \
               ((before_->rounds++ < CA_RECLAIM_ROUNDS &&                                          \
                 ((room) || ca_giving_wait(&before_->given))) ||                                   \
                ca_ends_wait(&before_->ends)))                                                     \
            code_ = (call);                                                                        \
        code_;                                                                                     \
    })

/* The same for memory that no function above makes room for. */
#define CA_WITH_ENDS(call) CA_WITH_ROOM(false, call)

#endif
