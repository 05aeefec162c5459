/* Reclaim for the driver: when one of the program's calls runs out of memory in the driver, the
 * pool releases idle segments and pinned memory to it, and the call is made again. From any thread,
 * with no lock held; the calling thread's captures and current context stay as they are. */
#ifndef CA_SHIM_UPSTREAM_RECLAIM_H
#define CA_SHIM_UPSTREAM_RECLAIM_H

#include <stdbool.h>
#include <stdint.h>
#include "pool/growth/giving.h"
#include "shim/cuda/contexts.h"

/* Each releases all idle segments, or where there are none waits for fences and releases what they
 * free: on the device of `context` (NULL: nothing), on a device, on that of the current context, on
 * every device; or pinned memory. Returns whether anything was released. */
bool ca_reclaim(const ca_context_t *context);
bool ca_reclaim_on(CUdevice device);
bool ca_reclaim_here(void);
bool ca_reclaim_everywhere(void);
bool ca_reclaim_pinned(void);
/* ca_reclaim_here and ca_reclaim_pinned. */
bool ca_reclaim_any(void);

/* The calls in flight that may destroy a context: how many a request has seen end, and until when
 * it waits for the next. */
typedef struct ca_destroys {
    unsigned seen;
    uint64_t until_ns; /* 0 until it waits */
} ca_destroys_t;

/* While such a call is in flight no memory of its context is released: afterwards it is the
 * driver's, or the pool can release it. Waits for the call. True where one has ended since the last
 * time: the request is then repeated. False where none is in flight, or the request's waits
 * together take too long: the call may be waiting for work that waits for this thread. */
bool ca_destroys_wait(ca_destroys_t *destroys);

#define CA_RECLAIM_ROUNDS 8

/* What a request had seen before it called the driver. */
typedef struct ca_retry {
    ca_destroys_t destroys;
    unsigned released; /* pool/growth/giving.h */
    unsigned rounds;
} ca_retry_t;

ca_retry_t ca_retry_begin(void);

/* The driver's call, and again while it runs out of memory and the pool can release some: idle
 * segments, then what fences free, then what another thread released meanwhile or is releasing,
 * then what contexts hold that are about to be destroyed. `reclaim` is one of the functions above,
 * evaluated only then: with nothing to release the driver's own error is the answer. It releases
 * all there is, so that a few rounds are enough: for a request that is too large other threads may
 * go on freeing for ever. */
#define CA_WITH_RECLAIM(reclaim, call)                                                             \
    ({                                                                                             \
        ca_retry_t retry_ = ca_retry_begin();                                                      \
        CUresult first_ = (call);                                                                  \
        if (first_ == CUDA_ERROR_OUT_OF_MEMORY)                                                    \
            first_ = CA_RECLAIM_AND_RETRY(&retry_, reclaim, call);                                 \
        first_;                                                                                    \
    })

/* The part of it for a call that is out of memory; `retry`: ca_retry_begin() before that call. */
#define CA_RECLAIM_AND_RETRY(retry, reclaim, call)                                                 \
    ({                                                                                             \
        ca_retry_t *before_ = (retry);                                                             \
        CUresult code_ = CUDA_ERROR_OUT_OF_MEMORY;                                                 \
        while (code_ == CUDA_ERROR_OUT_OF_MEMORY &&                                                \
               ((before_->rounds++ < CA_RECLAIM_ROUNDS &&                                          \
                 ((reclaim) || ca_giving_wait(&before_->released))) ||                             \
                ca_destroys_wait(&before_->destroys)))                                             \
            code_ = (call);                                                                        \
        code_;                                                                                     \
    })

#endif
