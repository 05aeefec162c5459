/* Driver hooks for the order of work: the wrappers made from shim/hooks/submissions.def. A wrapper
 * does not jump to the driver: it looks again before it returns (pool/fence/order.h). */
#include "shim/cuda/submissions.h"
#include <stdatomic.h>
#include "base/lock.h"
#include "base/log.h"
#include "base/mutation.h"
#include "config/options.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/seen.h"
#include "shim/cuda/unseen.h"

/* --- what one call alone does not show ------------------------------------------------------
 */

_Atomic unsigned ca_event_work_now;
_Atomic unsigned ca_graph_work_now;

/* Before the call: another thread may wait for the event at once. */
void ca_event_opened(void)
{
    atomic_store(&ca_event_work_now, CA_WORK_HELD);
}

unsigned ca_node_work(unsigned type)
{
    enum { HOST = 3, WAIT_EVENT = 6, SIGNAL = 8, WAIT = 9, BATCH = 12 };
    if (type == WAIT_EVENT)
        return ca_event_work();
    return type == HOST || type == SIGNAL || type == WAIT || type == BATCH ? CA_WORK_HELD : CA_WORK;
}

unsigned ca_edge_work(const CUgraphEdgeData *edges, size_t count)
{
    for (size_t i = 0; edges && i < count; i++)
        if (edges[i].type) /* 1: CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC */
            return CA_WORK_EARLY;
    return CA_WORK;
}

void ca_graph_work(unsigned work)
{
    if (work & (CA_WORK_HELD | CA_WORK_EARLY))
        atomic_fetch_or(&ca_graph_work_now, work & (CA_WORK_HELD | CA_WORK_EARLY));
}

void ca_work_captured(unsigned work)
{
    if (work && ca_capture_active())
        ca_graph_work(work);
}

/* --- whether the wrappers are wanted ------------------------------------------------------------
 */

typedef enum {
    UNKNOWN,
    ASKING,
    NOT_WANTED,
    WANTED,
} wanted_t;

static _Atomic int wanted; /* wanted_t */

bool ca_submissions_wanted(void)
{
    int now = atomic_load_explicit(&wanted, memory_order_acquire);
    if (now == UNKNOWN && atomic_compare_exchange_strong(&wanted, &now, ASKING)) {
        now = ca_reuse_wants_order(ca_life_peek_reuse()) ? WANTED : NOT_WANTED;
        atomic_store_explicit(&wanted, now, memory_order_release);
    }
    /* Another thread reads the environment: short, and it takes no lock. */
    for (unsigned tries = 0; now == UNKNOWN || now == ASKING; tries++) {
        ca_backoff(tries);
        now = atomic_load_explicit(&wanted, memory_order_acquire);
    }
    return now == WANTED;
}

/* The thread that asked does not exist here. */
void ca_submissions_reset_after_fork(void)
{
    if (atomic_load(&wanted) == ASKING)
        atomic_store(&wanted, UNKNOWN);
}

void ca_submissions_configure(void)
{
    if (ca_reuse_wants_order(ca_options.reuse) && !ca_submissions_wanted())
        ca_warn(
            "reuse: `order` was set after the driver's functions were looked up: it is as auto");
}

/* --- the wrappers -------------------------------------------------------------------------------
 */

#define CURRENT() atomic_load_explicit(&ca_order_current, memory_order_relaxed)

/* The second check of a submission that went on at once: the current stream is another one now. */
static __attribute__((noinline, cold)) CUresult looked_again(CUresult code, uint64_t stream)
{
    if (stream != CA_STREAM_NOT_ASKED && !CA_MUTATED(order_jumps))
        ca_order_after(stream, CA_WORK);
    return code;
}

/* What a wrapper does that has more to do: the same code for all of them. */
static __attribute__((noinline)) uint64_t begins(CUstream stream, int per_thread, unsigned work)
{
    ca_work_captured(work);
    return ca_submission_begins(stream, per_thread, work);
}

static __attribute__((noinline)) CUresult ended(CUresult code, uint64_t id, unsigned work)
{
    return ca_submission_ended(code, id, work);
}

/* Launches are many, and nearly all go to the stream of the one before. So the two checks take few
 * instructions: there is one call, of the driver's function or of the wrapper that does all, and no
 * argument has to be kept beside it. */
#define CA_SUBMISSION(symbol, name, version, per_thread, params, args, on, kind)                   \
    static __attribute__((noinline)) CUresult all_of_##symbol params                               \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        const unsigned work = (kind);                                                              \
        const uint64_t id = begins(on, per_thread, work);                                          \
        return ended(real args, id, work);                                                         \
    }                                                                                              \
    CA_EXPORT CUresult CUDAAPI symbol params                                                       \
    {                                                                                              \
        const ca_driver_t *driver =                                                                \
            atomic_load_explicit(&ca_driver_published, memory_order_acquire);                      \
        __typeof__(symbol) *call = driver ? driver->symbol : NULL;                                 \
        CA_SEEN(#symbol);                                                                          \
        const uint64_t current = CURRENT();                                                        \
        uint64_t seen = ca_stream_id_again(on, per_thread);                                        \
        ca_lock_assert_none("driver call");                                                        \
        if (__builtin_expect(!call, 0))                                                            \
            call = all_of_##symbol;                                                                \
        else if (__builtin_expect(current != seen || (kind), 0)) {                                 \
            if (current == CA_ORDER_OFF)                                                           \
                seen = CA_ORDER_OFF;                                                               \
            else if (!(kind) && seen != CA_STREAM_NOT_ASKED && ca_order_goes_on(current, seen))    \
                seen = CA_ORDER_SEVERAL;                                                           \
            else                                                                                   \
                call = all_of_##symbol;                                                            \
        }                                                                                          \
        CUresult code = call args;                                                                 \
        return __builtin_expect(CURRENT() == seen, 1) ? code : looked_again(code, seen);           \
    }
#define CA_WAIT(symbol, name, version, per_thread, params, args, on)                               \
    CA_EXPORT CUresult CUDAAPI symbol params                                                       \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        const uint64_t id = on == CA_EVERY_STREAM ? 0 : ca_stream_id(on, per_thread);              \
        ca_order_waits_for(id);                                                                    \
        const uint64_t begun = ca_order_wait_begins(id);                                           \
        CUresult code = real args;                                                                 \
        if (code == CUDA_SUCCESS)                                                                  \
            ca_order_wait_ended(begun);                                                            \
        return code;                                                                               \
    }
#define CA_NOTED(symbol, name, version, params, args, statement)                                   \
    CA_EXPORT CUresult CUDAAPI symbol params                                                       \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        statement;                                                                                 \
        return real args;                                                                          \
    }
#include "shim/hooks/submissions.def"
