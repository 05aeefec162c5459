/* Memory that other processes see.
 *
 * The driver exports whole allocations, with us whole segments: a handle, wherever in the segment
 * it was asked for, opens the segment's base in the other process. There is no call that ends an
 * export, so from the first one on
 *
 *   its blocks    that the export may have meant are kept as they are once they are freed and the
 *                 work on them is done (CA_BLOCK_EXPORTED), while there is other memory: the other
 *                 process may still read them, and must not find the data of another block
 *   the segment   goes back upstream as soon as nothing lives in it: by the next free that closes
 *                 an epoch, or before the next growth, as by the plain free
 *
 * Which blocks: the handle is of the segment's base, and comes from a program whose block begins
 * there, or from one that asked for the address range and passes on offsets: it may mean every
 * block that is live at that time. (An address inside is not exported: the shim refuses that.)
 *
 * The pool goes on using the rest of the segment: no export can have meant it, and what is cut from
 * it later concerns the other process only once it is exported, too. */
#ifndef CA_POOL_RANGE_EXPORT_H
#define CA_POOL_RANGE_EXPORT_H

#include <stdatomic.h>
#include "pool/arena.h"
#include "pool/range/range.h"

typedef enum {
    CA_EXPORT_NONE,     /* of no segment: not ours */
    CA_EXPORT_BASE,     /* the memory begins where the handle leads to */
    CA_EXPORT_INTERIOR, /* it does not */
} ca_export_t;

/* A handle was made of `address`. Thread-safe. */
ca_export_t ca_pool_export(uint64_t address);

/* What a handle of `address` would be. Thread-safe. */
ca_export_t ca_pool_exports(uint64_t address);

/* The program asks for device memory, or frees it. The fast path does not call these, as its blocks
 * are small. A program whose requests are whole segment units but for a few, and that keeps most of
 * them, has a pool of its own. Such pools share their pieces with other processes (PyTorch's does),
 * taking each for an allocation of the driver's; so each begins a segment, as long as the program
 * goes on like that. It asks seldom, so that this costs little. At the start no more than half of
 * the requests may be others: what begins a segment there stays apart for long, and a program
 * without such a pool would hold more. */
#define CA_EXPORT_OTHERS 16u
#define CA_EXPORT_OTHERS_MOST 4096u /* from here on nothing is counted: it has none */
void ca_pool_note_request(size_t bytes);
void ca_pool_note_free(size_t bytes);
void ca_pool_reset_requests(void); /* none were made */

/* From now on requests for CA_SEGMENT_UNIT and more of device memory get segments of their own, in
 * all arenas, so that their handles lead to just them; or not any more. Where upstream has no
 * memory left they share other segments all the same. */
void ca_pool_dedicate(bool on);

/* Before an out-of-memory: what is kept becomes pending after all. A correct program has made sure,
 * before it freed it, that no process uses it any more: the driver would have taken it back at
 * once. Under the arena's lock. Returns whether there was any. */
bool ca_export_reclaim(ca_arena_t *arena);

/* Whether a request of `bytes` is such a one. */
extern _Atomic bool ca_export_dedicating;
static inline bool ca_export_dedicates(const ca_arena_params_t *params, size_t bytes)
{
    return bytes >= CA_SEGMENT_UNIT &&
           atomic_load_explicit(&ca_export_dedicating, memory_order_relaxed) && !params->host;
}

/* Whether it is to begin a segment, while there is memory: a piece of the program's own pool. Not
 * where that is to come from ranges, which have no handles (range.h). */
extern _Atomic bool ca_export_own_pool;
static inline bool ca_export_begins(const ca_arena_params_t *params, size_t bytes)
{
    return bytes % CA_SEGMENT_UNIT == 0 &&
           atomic_load_explicit(&ca_export_own_pool, memory_order_relaxed) && !params->host &&
           (!params->expandable || ca_ranges_ended);
}

#endif
