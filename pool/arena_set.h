/* Several arenas for one context's device memory (`arenas:N`): threads that would wait for each
 * other's lock mostly find different ones. Each arena has its own lock, segments and epochs; what
 * concerns all of them together is here.
 *
 *   hints    Each arena's largest ready block, of each kind of segment, is in an atomic that is
 *            read without the arena's lock. Hints decide the order of visits, nothing else: the
 *            arena that is visited looks again under its lock and picks the address, best fit. A
 *            stale hint costs a visit. Hints are published when the lock is dropped after a change.
 *   home     A thread's own arena: the first choice while its hint fits, and the one that grows.
 *            Its first segment comes before the others are visited, or all threads would live on
 *            the arena that was first. Where the device is full the others give back what is idle.
 *   open     The arenas that are homes. Where no number is asked for, that is one, until its lock
 *            is waited for: then twice as many. An arena that comes late gets segments of the
 *            richest with all that is in them (pool/balance.h), as does one that has little.
 *   alone    Until a second arena is some thread's home the first serves as if there were no other:
 *            a program of one thread has one arena, whatever was asked for.
 *   sums     `limit`, the growth policy, `gc_threshold` and the reserved peak go by what the arenas
 *            hold together. Growth claims its bytes first, so that no two arenas pass the limit at
 *            the same moment.
 *
 * No lock of one arena is waited for while another's is held. A free needs nothing of this: a block
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

/* More arenas come into use where of CA_ARENA_SET_JUDGED takes of an arena's lock one in
 * CA_ARENA_SET_WAITED had to wait, and each would have CA_ARENA_SET_LEAST bytes. Of the requests
 * that find their arena one part in CA_ARENA_SET_UNEVEN below its due, one in CA_ARENA_SET_LEVELLED
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

/* Each arena adds a change of its live bytes to the set's sum only from this size on, so that not
 * every call writes what all threads share: the sum is off by this much per arena at most, and by
 * what its threads' caches have not published (ca_arena_in_use). */
#define CA_ARENA_SET_PUBLISH_FROM ((size_t)1 << 20)

/* What threads that look for memory read of an arena: no cache line in common with another's. */
typedef struct ca_arena_set_slot {
    _Alignas(64) ca_arena_t *arena;
    _Atomic size_t largest[CA_POOLS]; /* the hints; bytes */
    _Atomic size_t reserved;          /* bytes */
    _Atomic bool begun;               /* has asked for its first segment, or is to get others' */
    _Atomic unsigned levelled;        /* requests that found it poor */
} ca_arena_set_slot_t;

typedef struct ca_arena_set {
    _Atomic uint64_t homes; /* arenas that were a thread's or a stream's, a bit for each */
    unsigned most;          /* arenas */
    unsigned open_first;
    _Atomic unsigned count; /* arenas that there are; of a life before too */
    _Atomic unsigned open;  /* arenas that are homes */
    _Atomic bool opening;
    _Atomic unsigned awake;               /* arenas that have not dropped their memory */
    _Alignas(64) _Atomic size_t reserved; /* with what is claimed */
    _Atomic size_t reserved_peak;
    _Alignas(64) _Atomic size_t live;
    _Atomic size_t live_peak;
    ca_arena_set_slot_t slots[];
} ca_arena_set_t;

/* Arenas that there are, which rises only; and those that are a home for threads. An arena
 * below these counts is there to see. */
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

/* Arenas that were a home, 1 at least. Seldom more than one, and the count is a call where
 * processors may lack the instruction. */
static inline unsigned ca_arena_set_in_use(const ca_arena_set_t *set)
{
    uint64_t bits = atomic_load_explicit(&set->homes, memory_order_relaxed);

    return ca_arena_set_alone(set) ? 1 : (unsigned)__builtin_popcountll(bits);
}

/* NULL from the last one on. */
static inline ca_arena_t *ca_arena_set_at(const ca_arena_set_t *set, unsigned index)
{
    return index < ca_arena_set_count(set) ? set->slots[index].arena : NULL;
}

/* What the set has reserved, growth under way included, and at most at a time; and what of all
 * arenas together was live at most. */
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
 * first, until ca_arena_set_at gives no more. */
ca_arena_set_t *ca_arena_set_create(const ca_upstream_t *upstream, void *context,
                                    const ca_arena_params_t *params, unsigned count, unsigned most);

/* The arena that the calling thread tries first. */
ca_arena_t *ca_arena_set_home(const ca_arena_set_t *set);

/* Serves `bytes` as ca_arena_alloc_on does. Before an arena grows for a plain request each was
 * visited under its lock, but for an arena's first segment; before an out-of-memory all have given
 * back what is idle, and waited. With `ready_only` only arenas whose hint fits are visited, and
 * -EAGAIN says that they had nothing: no upstream call is made.
 *
 * `stream`, of any of the arenas, or NULL: its arena is then the home, and the others are visited
 * only when that one cannot grow: what is freed on a stream comes back in its order from its own
 * arena. */
int ca_arena_set_alloc(ca_arena_set_t *set, ca_stream_t *stream, size_t bytes, bool ready_only,
                       ca_block_t **block, uint64_t *address, bool *reused);

/* --- for the arenas; `arena` is one of a set ------------------------------------------------- */

/* Whether it is the calling thread's. */
bool ca_arena_set_is_home(const ca_arena_t *arena);

/* Under the arena's lock. */
void ca_arena_set_publish(ca_arena_t *arena);

/* Before an upstream call that obtains `bytes`: false where the limit does not allow them
 * beside what the others of the set have, if it is of one. What comes of the call:
 * ca_arena_set_obtained, or it is given up. */
bool ca_arena_set_claim(const ca_arena_t *arena, size_t bytes, size_t limit);
void ca_arena_set_obtained(const ca_arena_t *arena);
void ca_arena_set_give_up(const ca_arena_t *arena, size_t bytes);

/* The arena is about to be revived: what the set knows of it, with the first arena all, is from
 * before. */
void ca_arena_set_forget(const ca_arena_t *arena);

/* The arena is in service again; it has dropped all but its blocks; whether all of the set have, so
 * that the first may be revived. Blocks of one may be of another's making (pool/balance.h): so they
 * are discarded together, when the last has dropped the rest. */
void ca_arena_set_wake(const ca_arena_t *arena);
void ca_arena_set_sleep(const ca_arena_t *arena);
bool ca_arena_set_asleep(const ca_arena_t *arena);

/* Tells the other arenas how much is left to grow by, and what this one found: they share it. No
 * lock is held. */
void ca_arena_set_note_free_bytes(ca_arena_t *arena, size_t bytes, ca_free_estimate_t look);

#endif
