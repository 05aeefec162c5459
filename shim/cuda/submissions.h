/* What the wrappers of shim/hooks/submissions.def read, and the two checks of a submission, also
 * for wrappers that exist for other reasons. */
#ifndef CA_SHIM_CUDA_SUBMISSIONS_H
#define CA_SHIM_CUDA_SUBMISSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/mutation.h"
#include "pool/fence/order.h"
#include "shim/cuda/cuda_decls.h"
#include "shim/cuda/stream_id.h"

/* Whether look-ups are answered with the wrappers of shim/hooks/submissions.def: the program's
 * configuration, asked for once without waking the library (shim/cuda/life_state.h). */
bool ca_submissions_wanted(void);

void ca_submissions_reset_after_fork(void);

/* The configuration was read: it may be another one than what the look-ups were answered by. */
void ca_submissions_configure(void);

/* For a wait. */
#define CA_EVERY_STREAM ((CUstream) ~(uintptr_t)0)

/* The two checks of a submission. The pool gets a handle that means the same stream to the driver's
 * functions that are no per-thread twins. The second check comes before the wrapper returns,
 * whatever the answer: a call that failed may have submitted a part. */
CA_INLINE uint64_t ca_submission_begins(CUstream named, int per_thread, unsigned work)
{
    const CUstream stream = per_thread && !named ? CU_STREAM_PER_THREAD : named;
    const uint64_t id = ca_stream_id(stream, 0);
    if (!CA_MUTATED(order_once))
        ca_order_before(id, (void *)stream, work);
    return id;
}

CA_INLINE CUresult ca_submission_ended(CUresult code, uint64_t id, unsigned work)
{
    if (!CA_MUTATED(order_jumps))
        ca_order_after(id, work);
    return code;
}

/* `call` between them. */
#define CA_SUBMIT(on, per_thread, kind, call)                                                      \
    ({                                                                                             \
        const unsigned work_ = (kind);                                                             \
        const uint64_t id_ = ca_submission_begins(on, per_thread, work_);                          \
        ca_submission_ended(call, id_, work_);                                                     \
    })

/* A copy between device memory and arrays is asynchronous with the host. */
#define CA_ON_DEVICE(type) ((type) == CU_MEMORYTYPE_DEVICE || (type) == CU_MEMORYTYPE_ARRAY)
#define CA_WORK_OF_COPY(copy)                                                                      \
    ((copy) && CA_ON_DEVICE((copy)->srcMemoryType) && CA_ON_DEVICE((copy)->dstMemoryType)          \
         ? CA_WORK                                                                                 \
         : CA_WORK_COPY)

/* Of launches with attributes: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_*, of CUDA 11.8. */
static inline bool ca_attribute_overlaps(unsigned attribute)
{
    enum { SERIALIZATION = 6 };
    return attribute == SERIALIZATION;
}

static inline unsigned ca_attribute_work(unsigned attribute)
{
    enum { EVENT = 7 };
    return ca_attribute_overlaps(attribute) || attribute == EVENT ? CA_WORK_EARLY : CA_WORK;
}

static inline CUstream ca_launch_stream(const CUlaunchConfig *config)
{
    return config ? config->hStream : NULL;
}

static inline unsigned ca_launch_work(const CUlaunchConfig *config)
{
    unsigned work = CA_WORK;
    for (unsigned i = 0; config && config->attrs && i < config->numAttrs; i++)
        work |= ca_attribute_work((unsigned)config->attrs[i].id);
    return work;
}

/* What is captured will be a graph's. */
void ca_work_captured(unsigned work);

/* Of events: CA_WORK_HELD once the program has one that another process records. */
extern __attribute__((visibility("hidden"))) _Atomic unsigned ca_event_work_now;
static inline unsigned ca_event_work(void)
{
    return atomic_load_explicit(&ca_event_work_now, memory_order_relaxed);
}
void ca_event_opened(void);

/* Of a graph's node, by its CUgraphNodeType. */
unsigned ca_node_work(unsigned type);

/* Of a graph's edges, an array or NULL. */
unsigned ca_edge_work(const CUgraphEdgeData *edges, size_t count);

/* A graph may do such work when it is launched, and ca_graph_launch_work says so of all. */
void ca_graph_work(unsigned work);
extern __attribute__((visibility("hidden"))) _Atomic unsigned ca_graph_work_now;
static inline unsigned ca_graph_launch_work(void)
{
    return atomic_load_explicit(&ca_graph_work_now, memory_order_relaxed);
}

#endif
