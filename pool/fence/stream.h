/* Streams that memory is freed on (cuMemFreeAsync).
 *
 * A block freed on a stream is pending in that stream's own fence queue, whose fences stand
 * behind the work of this stream alone. Meanwhile it is as good as ready for an allocation on the
 * same stream: whatever the new owner submits there runs after what the old one did. It is then
 * taken out of its epoch again, so that a pair on one stream costs no call upstream. When the
 * fence passes, it is ready for every stream.
 *
 * An allocation on another stream need not wait for that: it may take the block at once and make
 * its own stream wait for the fence ("join"), as the driver's own pool does. Only a fence recorded
 * right behind the free will do: one that stands further back may stand behind work that waits for
 * the very allocation. So an arena where that is wanted is made precise: every free on a stream has
 * a fence of its own, for CA_STREAM_PRECISE allocations and frees from then on.
 *
 * Two streams are not like that. Both fence a free at once, but for a few small ones that the
 * legacy stream fences together, and nothing that was freed on them is taken before its fence is
 * recorded:
 *
 *   legacy     The legacy stream of the context. Each operation on it waits for all work before it
 *              on the blocking streams, which then wait for it, and a program may rely on that
 *              between two users of the memory. A call that we serve is no operation, but the
 *              record of the fence is: whatever is submitted after it to any of these streams runs
 *              behind it, so that an allocation on the legacy stream may take the block then
 *   elsewhere  All streams of other contexts, whose order is not ours to record. The fence stands
 *              behind the work of every context, which may take long: in a queue of its own, so
 *              that nothing else has to wait. Never taken before the fence has passed
 *
 * The object of a stream that was destroyed serves another one once its work is done, or a program
 * with a stream for each request would fill the host's memory with them.
 *
 * The arena's lock is held in every function here but the public ones (arena.h). */
#ifndef CA_POOL_FENCE_STREAM_H
#define CA_POOL_FENCE_STREAM_H

#include <pthread.h>
#include "pool/blocks/bin.h"
#include "pool/fence/epoch.h"

#define CA_STREAM_EPOCH_BLOCKS 32                 /* as CA_EPOCH_BLOCKS, on a stream */
#define CA_STREAM_PRECISE 65536                   /* allocations and frees */
#define CA_STREAM_EPOCH_BYTES ((size_t)256 << 20) /* from the second block on */
#define CA_STREAM_LEGACY_BYTES ((size_t)64 << 10) /* on the legacy stream */

typedef enum { CA_STREAM_COMMON, CA_STREAM_LEGACY, CA_STREAM_ELSEWHERE } ca_stream_kind_t;

struct ca_stream {
    ca_stream_t *next;
    ca_stream_t *next_busy;
    ca_stream_t *next_retired; /* the one that went after it */
    ca_arena_t *arena;
    void *queue;
    ca_fence_queue_t fences;
    ca_bins_t *bins; /* its pending blocks */
    ca_stream_kind_t kind;
    uint16_t number; /* see ca_stream_number */
    bool busy;       /* has pending blocks, or fences: see stream.c */
    bool retired;    /* destroyed: no block joins it any more */
    /* It may be destroyed without a word: its queue is used in calls on it alone, so that every
     * free has its fence at once, and no thread's cache keeps it. */
    bool unseen;
    bool confined;   /* only its own thread can record fences on it */
    pthread_t owner; /* that thread */
    /* Launches that wait for all before them: begun, and the last one that was made. `handed`: the
     * first one that is behind all that was handed out. Without the lock. */
    _Atomic uint64_t begun, made, handed;
};

/* The one for what is freed in the order of other contexts' streams; NULL without host memory. */
ca_stream_t *ca_stream_elsewhere(ca_arena_t *arena);

/* Whether it is still the one that had this number. */
bool ca_stream_is_number(const ca_stream_t *stream, uint16_t number);

/* Whether a free on a stream is to have a fence of its own now. */
bool ca_stream_precise(const ca_arena_t *arena);

/* Home: while one stream alone asks for memory, what is freed on it is ready at once, and no fence
 * is recorded for it; but all that is ready may then be in flight on that stream. It is the default
 * stream of a caller that counts on its own order alone (ca_arena_default_stream), or any with
 * params.all_come_home. Before any other request, a trim, its own end, and before any goes back
 * upstream the stream leaves home: all that was ready is pending then, behind a fence of the
 * stream's, as if it had been freed this instant. None comes home while a thread is inside the
 * arena (ca_arena_enter): so there is none for a thread inside that has seen it off.
 *
 * To those others nothing is ready then. So a stream comes home only after CA_HOME_AFTER operations
 * for each stream that there is, and one, in which none but it asked, twice as many after each time
 * that it left for others: where several take turns, they soon are as if there was no home. */
#define CA_HOME_AFTER 512u
#define CA_HOME_DOUBLINGS 20u

/* A request is in the order of `stream`, or of none: another stream leaves home. Drops the lock. */
void ca_stream_asks(ca_arena_t *arena, ca_stream_t *stream);

/* Takes back a block that was freed on the stream, and is pending in no epoch. False: it is for the
 * stream's open epoch. */
bool ca_stream_keeps(ca_stream_t *stream, ca_block_t *block);

/* The stream that is at home, if any, leaves. Drops the lock. */
void ca_stream_leave(ca_arena_t *arena);

/* The same, and waits for all work, ca_epoch_long_wait at most. Whether there is none any more.
 * Drops the lock. */
bool ca_stream_leave_passed(ca_arena_t *arena);

/* Keeps a pending block findable by its size: in stream->bins, until it is removed there. */
void ca_stream_list(ca_stream_t *stream, ca_block_t *block);

/* Makes a block that was freed on the stream live again, for work on the same stream: one of about
 * the size, or cut off a larger one, or off any (see mixed.h). NULL when there is none. */
typedef enum { CA_TAKE_CLOSE, CA_TAKE_CUT, CA_TAKE_ANY } ca_take_t;
ca_block_t *ca_stream_take(ca_stream_t *stream, size_t bytes, ca_take_t how);

/* The same with a block that was freed on another stream and has its fence, behind which `stream`
 * is made to wait. Frees on streams have fences of their own from then on, for a while. Drops the
 * lock. */
ca_block_t *ca_stream_take_joined(ca_stream_t *stream, size_t bytes);

/* Closes the open epochs of all streams of the arena, on behalf of an allocation that found nothing
 * else, also where a fence could not be had a moment ago. Drops the lock. */
void ca_streams_close(ca_arena_t *arena);

/* How many closed epochs all of them have. */
size_t ca_streams_closed(const ca_arena_t *arena);

/* Asks closed epochs of all streams, at most `most` of each. Returns how many passed. Drops the
 * lock. */
size_t ca_streams_reap(ca_arena_t *arena, size_t most, bool forced);

/* Its open epoch got no fence (`rc`), and is open again. */
void ca_stream_reopened(ca_stream_t *stream, int rc);

/* The arena is retired: gives the host memory of its streams back. The objects stay: threads may
 * come late with a pointer to one. */
void ca_streams_drop(ca_arena_t *arena);

void ca_streams_reset_after_fork(void);

#endif
