/* Several heaps for one context's device memory (`arenas:N`): threads that would wait for each
 * other's lock mostly find different ones. Each heap is an arena of its own, with its lock,
 * segments and epochs; what concerns all of them together is here.
 *
 *   hints    Each heap's largest ready block, of each kind of segment, is in an atomic that is read
 *            without the heap's lock. Hints decide the order of visits, nothing else: the heap that
 *            is visited looks again under its lock and picks the address, best fit. A stale hint
 *            costs a visit. Hints are published when the lock is dropped after a change.
 *   home     A thread's own heap: the first choice while its hint fits, and the one that grows.
 *            Its first segment comes before the others are visited, or all threads would live on
 *            the heap that was first. Where the device is full the others give back what is idle.
 *   open     The heaps that are homes. Where nobody said how many, that is one, until its lock is
 *            waited for: then twice as many. A heap that comes late gets segments of the richest
 *            with all that is in them (pool/balance.h), as does one that has little.
 *   alone    Until a second heap is some thread's home the first serves as if there were no other:
 *            a program of one thread has one heap, whatever was asked for.
 *   sums     `limit`, the growth policy, `gc_threshold` and the reserved peak go by what the heaps
 *            hold together. Growth claims its bytes first, so that no two heaps pass the limit at
 *            the same moment.
 *
 * No lock of one heap is waited for while another's is held. A free needs nothing of this: a block
 * knows its arena. Thread-safe. */
#ifndef CA_POOL_ARENA_SET_H
#define CA_POOL_ARENA_SET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "pool/blocks/block.h"
#include "pool/growth/grow.h"

#define CA_ARENA_SET_MOST 64u

/* More heaps come into use where of CA_ARENA_SET_JUDGED takes of a heap's lock one in
 * CA_ARENA_SET_WAITED had to wait, and each would have CA_ARENA_SET_LEAST bytes. Of the requests
 * that find their heap one part in CA_ARENA_SET_UNEVEN below its due, one in CA_ARENA_SET_LEVELLED
 * gets it more. In debug builds all that is soon the case, for tests of threads. */
#define CA_ARENA_SET_UNEVEN 16u
#if CA_DEBUG
#define CA_ARENA_SET_JUDGED 64u
#define CA_ARENA_SET_WAITED 128u
#define CA_ARENA_SET_LEAST ((size_t)4 << 20)
#define CA_ARENA_SET_LEVELLED 16u
#else
#define CA_ARENA_SET_JUDGED 1024u
#define CA_ARENA_SET_WAITED 8u
#define CA_ARENA_SET_LEAST ((size_t)64 << 20)
#define CA_ARENA_SET_LEVELLED 256u
#endif

/* Each heap tells the sum of live bytes of a change of its own only from this size on, so that not
 * every call writes what all threads share: the sum is off by this much per heap at most, and by
 * what its threads' caches have not told (ca_arena_in_use). */
#define CA_ARENA_SET_TOLD ((size_t)1 << 20)

/* What threads that look for memory read of a heap: no cache line in common with another one's. */
typedef struct ca_arena_set_slot {
    _Alignas(64) ca_arena_t *heap;
    _Atomic size_t largest[CA_POOLS]; /* the hints; bytes */
    _Atomic size_t reserved;          /* bytes */
    _Atomic bool begun;               /* has asked for its first segment, or is to get others' */
    _Atomic unsigned levelled;        /* requests that found it poor */
} ca_arena_set_slot_t;

typedef struct ca_arena_set {
    _Atomic uint64_t homes; /* heaps that were a thread's or a stream's, a bit for each */
    unsigned most;          /* heaps */
    unsigned open_first;
    _Atomic unsigned count; /* heaps that there are; of a life before too */
    _Atomic unsigned open;  /* heaps that are homes */
    _Atomic bool opening;
    _Atomic unsigned awake;               /* heaps that have not dropped their memory */
    _Alignas(64) _Atomic size_t reserved; /* with what is claimed */
    _Atomic size_t reserved_peak;
    _Alignas(64) _Atomic size_t live;
    _Atomic size_t live_peak;
    ca_arena_set_slot_t slots[];
} ca_arena_set_t;

/* Heaps that there are, which rises only; and those that are a home for threads. What these say
 * there are is there to see. */
static inline unsigned ca_arena_set_count(const ca_arena_set_t *set)
{
    return atomic_load_explicit(&set->count, memory_order_acquire);
}
static inline unsigned ca_arena_set_open(const ca_arena_set_t *set)
{
    return atomic_load_explicit(&set->open, memory_order_acquire);
}

/* No more than one was a home, so that the others have nothing. */
static inline bool ca_arena_set_alone(const ca_arena_set_t *set)
{
    uint64_t bits = atomic_load_explicit(&set->homes, memory_order_relaxed);

    return !(bits & (bits - 1));
}

/* Heaps that were a home, 1 at least. Seldom more than one, and the count is a call where
 * processors may lack the instruction. */
static inline unsigned ca_arena_set_in_use(const ca_arena_set_t *set)
{
    uint64_t bits = atomic_load_explicit(&set->homes, memory_order_relaxed);

    return ca_arena_set_alone(set) ? 1 : (unsigned)__builtin_popcountll(bits);
}

/* NULL from the last one on. */
static inline ca_arena_t *ca_arena_set_heap(const ca_arena_set_t *set, unsigned index)
{
    return index < ca_arena_set_count(set) ? set->slots[index].heap : NULL;
}

/* What the set has reserved, growth under way included, and at most at a time; and what of all
 * heaps together was live at most. */
static inline size_t ca_arena_set_reserved(const ca_arena_set_t *set)
{
    return atomic_load_explicit(&set->reserved, memory_order_relaxed);
}
static inline size_t ca_arena_set_reserved_peak(const ca_arena_set_t *set)
{
    return atomic_load_explicit(&set->reserved_peak, memory_order_relaxed);
}
static inline size_t ca_arena_set_live_peak(const ca_arena_set_t *set)
{
    return atomic_load_explicit(&set->live_peak, memory_order_relaxed);
}

/* `count` arenas as of ca_arena_create, from 1 to CA_ARENA_SET_MOST, and twice as many each time
 * that threads wait for each other, up to `most`. NULL when there is no host memory. The pointer
 * stays good for ever, as the arenas do: they are retired and revived one by one, the first one
 * first, until ca_arena_set_heap gives no more. */
ca_arena_set_t *ca_arena_set_create(const ca_upstream_t *upstream, void *context,
                                    const ca_arena_params_t *params, unsigned count, unsigned most);

/* The heap that the calling thread tries first. */
ca_arena_t *ca_arena_set_home(const ca_arena_set_t *set);

/* Serves `bytes` as ca_arena_alloc_on does. Before a heap grows for a plain request each was
 * visited under its lock, but for a heap's first segment; before an out-of-memory all have given
 * back what is idle, and waited. With `ready_only` only heaps whose hint fits are visited, and
 * -EAGAIN says that they had nothing: no upstream call is made.
 *
 * `stream`, of any of the heaps, or NULL: its heap is then the home, and the others are visited
 * only when that one cannot grow: what is freed on a stream comes back in its order from its own
 * heap. */
int ca_arena_set_alloc(ca_arena_set_t *set, ca_stream_t *stream, size_t bytes, bool ready_only,
                       ca_block_t **block, uint64_t *address, bool *reused);

/* --- for the arenas; `arena` is one of a set ------------------------------------------------- */

/* Whether it is the calling thread's. */
bool ca_arena_set_is_home(const ca_arena_t *arena);

/* Under the arena's lock. */
void ca_arena_set_publish(ca_arena_t *arena);

/* Before an upstream call that obtains `bytes`: false where the limit leaves no room for them
 * beside what the others of the set have, if it is of one. What comes of the call:
 * ca_arena_set_obtained, or it is given up. */
bool ca_arena_set_claim(const ca_arena_t *arena, size_t bytes, size_t limit);
void ca_arena_set_obtained(const ca_arena_t *arena);
void ca_arena_set_give_up(const ca_arena_t *arena, size_t bytes);

/* The heap is about to be revived: what the set knows of it, with the first heap all, is from
 * before.
 */
void ca_arena_set_forget(const ca_arena_t *arena);

/* The heap is in service again; it has dropped all but its blocks; whether all of the set have, so
 * that the first may be revived. Blocks of one may be of another's making (pool/balance.h): so they
 * are discarded together, when the last has dropped the rest. */
void ca_arena_set_wake(const ca_arena_t *arena);
void ca_arena_set_rest(const ca_arena_t *arena);
bool ca_arena_set_rested(const ca_arena_t *arena);

/* Tells the other heaps how much is left to grow by, and what this one found: they share it. No
 * lock is held. */
void ca_arena_set_note_free_bytes(ca_arena_t *arena, size_t bytes, ca_free_estimate_t look);

#endif
