/* Epochs: what was freed since the last fence waits together for the next one.
 *
 *   open     takes the blocks freed now; exactly one per arena
 *   closing  detached; a thread is recording its fence, outside the lock
 *   closed   has its fence; in a FIFO, because fences of one context pass in order
 *   passed   its blocks are ready; released once no thread uses its fence any more
 *
 * A fence is recorded after the frees that it covers, never before: work submitted in between would
 * be missed. A thread may wait without bound for the fences that were recorded before a plain free
 * of its own: that free would have waited for all that they cover. Others cover work that may be
 * waiting for this very thread, whichever thread freed the memory. They are not safe to block on:
 * a wait for them has a bound, ca_arena_params_t's oom_wait_ns.
 *
 * Every function takes the arena with its lock held and returns so; those that call upstream drop
 * the lock meanwhile, and say so. */
#ifndef CA_POOL_FENCE_EPOCH_H
#define CA_POOL_FENCE_EPOCH_H

#include "pool/blocks/block.h"

#define CA_EPOCH_FREE_SHARE 8 /* an epoch holds at most this share of what is left to grow by */
#define CA_QUERY_DOUBLINGS 3  /* of that number, while queries go on failing */
#define CA_QUERY_BACKOFF 64   /* allocations and frees between two queries that failed */
#define CA_CLOSE_BACKOFF 64   /* the same between two refused records (a capture is on) */
#define CA_SYNC_SCALE 16      /* epochs are this much larger where closing one synchronises */
#define CA_WAIT_BYTES ((size_t)48 << 20) /* enough to be worth a bounded wait */

typedef struct ca_fence_queue ca_fence_queue_t;

struct ca_epoch {
    ca_epoch_t *prev, *next;
    ca_fence_queue_t *fences;
    ca_block_t *blocks, *last; /* newest first, but for what it took in later: see ca_epoch_cover */
    size_t count, bytes;
    bool urgent;  /* holds a large block: to be closed at once */
    bool precise; /* its fence was recorded right behind its only free */
    bool passed;
    bool own_passed; /* all but the work of other contexts */
    bool foreign;    /* what another context may still use is in it: see ca_epoch_overdue */
    bool lent;       /* its fence is, or was, a debt (order.h): it serves without another one */
    struct ca_cache_mark *marks; /* what thread caches freed, that its fence covers too */
    unsigned users;              /* threads asking about the fence, outside the lock */
    unsigned by;                 /* the one thread whose plain frees are in it, see CA_BY_NO_THREAD;
                                    once it is closed: whose plain free closed it */
    uint64_t began, number;      /* of its fence, before and after its record: fence_order.h */
    void *fence;
};

typedef struct ca_epoch_list {
    ca_epoch_t *head, *tail;
    size_t count;
} ca_epoch_list_t;

/* A fence queue: epochs whose fences pass in order. An arena has one for plain frees, whose fences
 * stand behind all work there is, and one for each stream that memory is freed on
 * (pool/fence/stream.h), whose fences stand behind that stream's work alone. */
struct ca_fence_queue {
    ca_stream_t *stream; /* NULL: all work */
    ca_epoch_t *open;
    ca_epoch_list_t closing, closed;
    uint64_t query_after; /* operations */
    unsigned failures;    /* queries that failed in a row, up to CA_QUERY_DOUBLINGS */
    uint64_t failed_at;   /* operations at the last query that failed */
    uint64_t close_after; /* operations */
};

typedef enum { CA_BY_FREE, CA_BY_ALLOC } ca_closer_t;

#define CA_BY_NO_THREAD 0u       /* it is empty */
#define CA_BY_SEVERAL UINT32_MAX /* or by a call that does not wait */

/* A new epoch for the queue; NULL when there is no host memory. */
ca_epoch_t *ca_epoch_make(ca_arena_t *arena, ca_fence_queue_t *fences);

/* Makes the queue's open epoch. -ENOMEM when there is no host memory. */
int ca_fence_queue_start(ca_arena_t *arena, ca_fence_queue_t *fences, ca_stream_t *stream);

/* A plain free of a large block, where it is quiet since a fence was begun at `began`
 * (ca_order_quiet_since): it is in a closed epoch now, if that fence is one's, since it stands
 * behind the block, too. False: it is for ca_epoch_push. Smaller ones, and what waits in the open
 * epoch or the thread's cache, get a fence of their own: to have them back sooner saves no memory
 * (tests/replay). */
bool ca_epoch_cover(ca_arena_t *arena, ca_block_t *block, uint64_t began);

/* Where the newest closed epoch's fence is lent: its block, if that is the only one that is closed,
 * is of just that size and may serve in order, or NULL: what ca_epoch_take_in_order and
 * ca_block_take would come to. */
ca_block_t *ca_epoch_take_owed(ca_arena_t *arena, size_t bytes);

/* Puts a pending block into the queue's open epoch, or takes one out of the epoch it is in. */
void ca_epoch_push(ca_arena_t *arena, ca_fence_queue_t *fences, ca_block_t *block);
void ca_epoch_pull(ca_block_t *block);
/* The same into a given epoch of the queue of plain frees, and out of one. */
static inline void ca_epoch_push_into(ca_epoch_t *epoch, ca_block_t *block)
{
    ca_block_set_epoch(block, epoch);
    ca_block_set_earlier(block, NULL);
    ca_block_set_later(block, epoch->blocks);
    if (epoch->blocks)
        ca_block_set_earlier(epoch->blocks, block);
    else
        epoch->last = block;
    epoch->blocks = block;
    epoch->count++;
    epoch->bytes += ca_block_size(block);
}
static inline void ca_epoch_pull_from(ca_epoch_t *epoch, ca_block_t *block)
{
    ca_block_t *earlier = ca_block_earlier(block), *later = ca_block_later(block);

    if (earlier)
        ca_block_set_later(earlier, later);
    else
        epoch->blocks = later;
    if (later)
        ca_block_set_earlier(later, earlier);
    else
        epoch->last = earlier;
    epoch->count--;
    epoch->bytes -= ca_block_size(block);
}
/* Its lowest `bytes` are another block by now. */
void ca_epoch_shrink(ca_block_t *block, size_t bytes);

/* What an epoch may hold where `live` bytes were live at most and free memory is not short. */
static inline size_t ca_epoch_bytes(size_t live)
{
    if (live < CA_EPOCH_BYTES)
        return CA_EPOCH_BYTES;
    return live < CA_EPOCH_BYTES_MOST ? live : CA_EPOCH_BYTES_MOST;
}

/* Whether the open epoch is to be closed by this free. */
bool ca_epoch_due(const ca_arena_t *arena, const ca_fence_queue_t *fences);

/* Whether it may not be waited for without bound, nor by the real free: that waits for the memory's
 * own context, and what was freed behind another one's work may still be in use there. */
bool ca_epoch_overdue(const ca_arena_t *arena, const ca_epoch_t *epoch);

/* A plain free of this thread (ca_thread_number), or of CA_BY_SEVERAL, has put something there. */
void ca_epoch_freed_by(ca_epoch_t *epoch, unsigned thread);

/* Closes the open epoch, if it holds anything. Where the driver has no fences a free waits for
 * everything, so that they are ready at once, and an allocation does nothing. Drops the lock. */
void ca_epoch_close(ca_arena_t *arena, ca_fence_queue_t *fences, ca_closer_t by);

/* Without fences: waits for everything submitted to the memory's context, and to others where it
 * was freed behind their work, which makes what is in the open epoch ready. Drops the lock. */
void ca_epoch_synchronize(ca_arena_t *arena);

/* Asks closed epochs, oldest first, at most `most` of them, until one has not passed; makes the
 * blocks of the others ready. After a failure it does nothing for a while unless `forced`. Returns
 * how many passed. Drops the lock. */
size_t ca_epoch_reap(ca_arena_t *arena, ca_fence_queue_t *fences, size_t most, bool forced);

/* For a free: closes the open epoch, and asks as many as come, and one more while more than a few
 * wait, or a queue that once fell behind would stay behind. Drops the lock. */
void ca_epoch_close_due(ca_arena_t *arena, ca_fence_queue_t *fences, ca_closer_t by);

/* Whether memory in flight may serve now (order.h). */
bool ca_epoch_in_order(const ca_arena_t *arena);

/* Makes ready at once what plain frees left in closed epochs that may serve in order (order.h).
 * Returns how many epochs that were. For a request of `bytes`, where the newest of them has just
 * its block alone, that is served and goes to `found`; 0: for none. Drops the lock. */
size_t ca_epoch_take_in_order(ca_arena_t *arena, size_t bytes, ca_block_t **found);

typedef enum {
    CA_EPOCHS_OWED,  /* that are safe to block on */
    CA_EPOCHS_FREED, /* that a plain free came after, whichever thread's: for short waits, since the
                        fences of others may wait for this thread, and it is the fewest that do */
    CA_EPOCHS_ALL,   /* the oldest of any queue */
} ca_which_t;

/* Applies the answer of a query or a wait to a closed epoch with a user (epoch->users), which
 * leaves it: 1 makes its blocks ready, -EIO stops the arena. Returns the answer, -EIO where the
 * context has ended meanwhile. Drops the lock. */
int ca_epoch_answer(ca_arena_t *arena, ca_epoch_t *epoch, int answer);

/* Waits for closed epochs. Without bound (CA_WAIT_OWN) for the oldest alone that was not waited for
 * so before: where 0 is the answer, only other contexts' work may still be at its blocks. Else for
 * CA_WAIT_BYTES, but at most the older half, in one wait: each would be one every few frees, and
 * the device keeps the other half to work on. Returns 1 when any passed, 0 when time is up, -ENOENT
 * when there is none, or upstream's error. Drops the lock. */
int ca_epoch_wait(ca_arena_t *arena, ca_which_t which, uint64_t nanoseconds);

/* Whether a plain free of the calling thread closed one of the closed epochs: it would have slept
 * in that free, for all that is waited for before. */
bool ca_epoch_slept_for(const ca_arena_t *arena);

/* Nanoseconds to wait for what such a free, or the stream at home (stream.h), left: a hundred times
 * `reuse_wait`, a second at most. Where that was in vain the device waits for this very thread, as
 * it may in a program that was written for frees that do not wait: then no longer than
 * `reuse_wait`, for CA_LONG_RETRY allocations and frees, since such a program does not change. */
#define CA_LONG_RETRY (UINT64_C(1) << 24)
uint64_t ca_epoch_long_wait(const ca_arena_t *arena);

/* Makes the stream `queue` wait for a closed epoch's fence. 0 or an error. Drops the lock. */
int ca_epoch_join(ca_arena_t *arena, ca_epoch_t *epoch, void *queue);

/* The arena is retired, and the caller the last one inside: its closed epochs' fences are released,
 * which are other contexts' events too. Drops the lock. */
void ca_epochs_end(ca_arena_t *arena, ca_fence_queue_t *fences);

/* Whether everything submitted to the context so far is done, or is after so many nanoseconds: this
 * records one fence, and queries it at once or waits for it. False where there is no answer. Drops
 * the lock. */
bool ca_epoch_device_idle(ca_arena_t *arena, uint64_t nanoseconds);

#endif
