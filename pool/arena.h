/* The caching block pool: one arena per context.
 *
 * An arena holds segments obtained upstream, cut into blocks that know their neighbours. A block is
 *
 *   LIVE     handed out
 *   PENDING  freed, but work submitted before the free may still touch it; or that is done, and it
 *            stays whole for the next request of its size (pool/blocks/segment.h)
 *   READY    free for reuse; in a bin; merged with ready neighbours
 *   CACHED   in a thread's own cache, in front of the arena: see pool/cache/cache.h
 *   EXPORTED freed, and kept as it is until its segment goes: see pool/range/export.h
 *   LENT     of a range: its memory is used by other addresses: see pool/range/range.h
 *   HOLE     addresses of a range without memory
 *
 * A free tags its block with the arena's open epoch (pool/fence/epoch.h), which one fence makes
 * ready. So a free never waits, and memory is handed out again only after everything submitted
 * before its free.
 *
 * All metadata is on the host: the memory itself is never touched. Thread-safe. */
#ifndef CA_POOL_ARENA_H
#define CA_POOL_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/record.h"
#include "pool/tuning.h"
#include "pool/upstream.h"

#define CA_GRANULE ((size_t)512)         /* blocks are multiples of this */
#define CA_PAGE ((size_t)4096)           /* alignment of blocks of CA_PAGE_FROM and more */
#define CA_PAGE_FROM ((size_t)64 << 10)  /* dma-buf exports want whole pages */
#define CA_EPOCH_LARGE ((size_t)4 << 20) /* a free of this size closes its epoch at once */

typedef struct ca_arena ca_arena_t;
typedef struct ca_block ca_block_t;
typedef struct ca_stream ca_stream_t;

typedef enum {
    CA_POOL_REUSE_AUTO,  /* grow while reserved is at most 1.25 x the live peak + 64 MiB, then wait
                          */
    CA_POOL_REUSE_GROW,  /* never wait while there is memory, nor make a stream wait */
    CA_POOL_REUSE_WAIT,  /* wait, or make the stream wait for what another one freed, before growing
                          */
    CA_POOL_REUSE_ORDER, /* so, and what is in flight serves on one stream: pool/fence/order.h */
} ca_reuse_t;

typedef struct ca_arena_params {
    size_t max_split;       /* blocks above are never split; SIZE_MAX for none */
    size_t limit;           /* most bytes reserved upstream; SIZE_MAX for none */
    size_t headroom;        /* bytes that growth leaves upstream while the cache can do without */
    ca_reuse_t reuse;       /* whether growing or waiting comes first */
    uint64_t reuse_wait_ns; /* longest wait for pending memory before growing past the policy */
    uint64_t oom_wait_ns;   /* the same before an out-of-memory, for what is overdue: see
                               ca_epoch_overdue; a tenth of it where that was in vain before */
    size_t granule;         /* blocks are multiples of this; 0: CA_GRANULE; CA_PAGE at most */
    size_t segment_first;   /* bytes of the first segment; 0: CA_SEGMENT_FIRST */
    bool expandable;        /* ranges that grow, where upstream has pages: pool/range/range.h */
    bool host;              /* host memory: counted apart; as upstream's free waits for all work, it
                               goes back only while nothing runs */
    /* Requests are rounded up to one of these, in any order; kept by the caller for good. */
    const size_t *size_classes;
    size_t size_class_count;
    size_t thread_cache; /* most bytes that a thread keeps for itself; 0 for none */
    unsigned roundup;    /* then to that many steps in each power of two; a power of two, or 0 */
    /* Reserved above this many percent of the limit, or of the device where that is less, and about
     * to grow: what is idle goes back first, longest idle first. 0 for never. */
    unsigned gc_threshold;
    bool whole_pages;    /* blocks have pages of their own, where that wastes little:
                            pool/range/range.h */
    bool unseen_ends;    /* streams are destroyed without ca_stream_retire: see ca_stream_t */
    bool all_come_home;  /* streams other than ca_arena_default_stream's, too: see stream.h */
    size_t small;        /* requests up to this size get segments of their own; 0 for none */
    size_t device_bytes; /* of this memory in all, the host's for host memory; 0 when unknown */
    uint64_t warmup; /* allocations and frees after a growth: see pool/growth/warmup.h; 0: none */
} ca_arena_params_t;

/* `context` is handed to every upstream call. NULL when there is no host memory. The pointer stays
 * good for ever. */
ca_arena_t *ca_arena_create(const ca_upstream_t *upstream, void *context,
                            const ca_arena_params_t *params);

/* Serves `bytes` (> 0), with a stream of the arena's in its order: also from what was freed on the
 * same stream, whatever is still at work there; it then waits for the device only when there is no
 * memory left. NULL: behind all work. Returns 0, -ENOMEM when everything in the retry ladder failed
 * (the caller then asks the driver, whose answer is the program's), or -EIO when the arena no
 * longer serves, or does not here: in a callback of upstream's, inside a call of this thread's that
 * obtains memory. `*reused` (may be NULL) tells whether the memory was handed out before. */
int ca_arena_alloc(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, ca_block_t **block,
                   uint64_t *address, bool *reused);

/* The same from memory that is ready now: makes no upstream call. -EAGAIN when there is none, or
 * when ca_arena_alloc would first ask for better. */
int ca_arena_alloc_ready(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, ca_block_t **block,
                         uint64_t *address, bool *reused);

/* The same without a stream, and where nothing is ready it asks about fences. It is not counted. */
int ca_arena_alloc_passed(ca_arena_t *arena, size_t bytes, ca_block_t **block, uint64_t *address);

/* Takes a live block back; it becomes pending in the open epoch. Never fails, never waits for the
 * device except where the driver has no context-wide events. Any thread, any current context. */
void ca_arena_free(ca_block_t *block);

/* A stream of the arena's context, called `queue` upstream, for the two functions below. NULL when
 * there is no host memory, or the arena serves no streams. `confined`: only the calling thread can
 * record fences on it (the per-thread default stream). */
ca_stream_t *ca_arena_stream(ca_arena_t *arena, void *queue, bool confined);

/* The legacy stream of the arena's context, called `queue` upstream, which is there as long as the
 * context. Made on first use, without a call upstream; NULL as above. */
ca_stream_t *ca_arena_legacy_stream(ca_arena_t *arena, void *queue);

/* The same stream in the order of its own work alone, for callers that count on no more: not on the
 * work of other streams that an operation on it would wait for. */
ca_stream_t *ca_arena_default_stream(ca_arena_t *arena, void *queue);

bool ca_stream_is_legacy(const ca_stream_t *stream);

/* Whether it is destroyed without a word (params.unseen_ends). */
bool ca_stream_unseen(const ca_stream_t *stream);

/* A number of the stream's in its arena, never given to another one; 0 where there is none left. */
uint16_t ca_stream_number(const ca_stream_t *stream);

/* Reused memory was handed out in the order of the stream: between what is at it still and what
 * comes next, nothing was submitted there. */
void ca_stream_handed(ca_stream_t *stream);

/* A launch that may begin before the kernel in front of it has ended is about to be made on the
 * stream: 0, or it may not, since memory was handed out there. It then waits as other launches do,
 * and the second function says when it is made, with what this returned: the next one may again. */
uint64_t ca_stream_begin_serial(ca_stream_t *stream);
void ca_stream_made_serial(ca_stream_t *stream, uint64_t begun);

/* The stream is about to be destroyed: it is never used again, and what was freed on it comes back
 * when its work is done. */
void ca_stream_retire(ca_stream_t *stream);

ca_arena_t *ca_stream_arena(const ca_stream_t *stream);

/* A free in the order of a stream: what is at work elsewhere does not matter, the program has made
 * the stream wait for it. On a stream of another arena the block comes back when all work is done,
 * as after a plain free, and is not waited for before a plain free would have been. */
void ca_arena_free_on(ca_block_t *block, ca_stream_t *stream);

/* The same in the order of another context's default stream, which is no stream of ours. */
void ca_arena_free_elsewhere(ca_block_t *block);

/* The same by a call that waits for nothing, of stream-ordered memory that nothing is at any more
 * but what an allocation in the order of `stream` may still be behind. With NULL, or where that is
 * no longer the stream that had this number, behind all work, which is not waited for before a
 * plain free would have waited for it; see ca_epoch_overdue. */
void ca_arena_free_async(ca_block_t *block, ca_stream_t *stream, uint16_t number);

/* The context is destroyed, and with it the memory and the events: drops everything, calls nothing
 * upstream but to release fences. Frees that come later are ignored. All but a few hundred bytes of
 * host memory goes when the last thread is out of the arena. */
void ca_arena_retire(ca_arena_t *arena);

/* The same in two steps. After the first nothing is served or taken back any more; until the second
 * the records of its blocks are there. */
void ca_arena_retire_begin(ca_arena_t *arena);
void ca_arena_retire_end(ca_arena_t *arena);

/* A retired arena serves again, as one that was just made with the same arguments: for callers
 * that know that no thread is on its way with a pointer from before. False where one is still
 * inside, or where there is no host memory: then it is as before. */
bool ca_arena_revive(ca_arena_t *arena);

/* Releases idle whole segments until at least `bytes` are released (SIZE_MAX: all). Polls closed
 * epochs first. Returns the bytes released. */
size_t ca_arena_trim(ca_arena_t *arena, size_t bytes);

/* Memory that was idle for long goes back upstream. Time is counted in ticks, which the caller
 * gives: the pool reads no clock. At each what was freed by now becomes ready if its work is done,
 * as in a trim, but for what lies in the caches of threads that used them since the last tick: a
 * program that is idle makes no call that would do so. */
void ca_arena_tick(ca_arena_t *arena);

/* Releases one wholly ready segment whose last live block was freed more than `ticks` ticks ago:
 * `ticks` whole intervals lie between; or, where there is none, as many pages of a range as were
 * wholly ready at each of these. `waits`: upstream's free waits for the context, so nothing is
 * released while that works. Returns the bytes released, 0 when there is no such segment. */
size_t ca_arena_decay(ca_arena_t *arena, uint32_t ticks, bool waits);

/* Pin mode, counted: while it is on, blocks keep their address. No segment goes back upstream, not
 * by a trim either; freed blocks become ready without merging with their neighbours; and a request
 * takes a ready block of just its size, the one freed last, before another is split. So a program
 * that replays recorded work, which hands the same addresses to the device again and again, finds
 * what it frees and asks for again where it was. Ready blocks merge after all, segment by segment,
 * where a request is out of memory otherwise.
 *
 * When it ends nothing moves: what may be merged is merged by the next trim, or when the arena is
 * about to give memory back. */
void ca_arena_pin(ca_arena_t *arena, bool on);

typedef enum {
    CA_TRIM_IDLE,     /* as above */
    CA_TRIM_POLL,     /* releases nothing, and takes nothing from threads that use it */
    CA_TRIM_SHORTAGE, /* memory is short elsewhere: also waits for pending memory, as before
                         an out-of-memory of the pool itself */
    CA_TRIM_ASKED,    /* the program asks, and may be made to wait: where there are no fences it
                         waits for all work */
} ca_trim_t;
size_t ca_arena_trim_as(ca_arena_t *arena, size_t bytes, ca_trim_t how);

/* Another arena found that the device has only `bytes` left: from now on frees close their epochs
 * accordingly, until this arena has asked for itself: as it grows, where that makes a difference
 * (ca_free_estimate_t), and now and then while it is that little. */
void ca_arena_note_free_bytes(ca_arena_t *arena, size_t bytes);

/* A place in the block for what is known of it while it is live: its address is the block's.
 * Upstream hears (`forget`) when that address is not any more, if by then it is in an index. */
ca_record_t *ca_block_record(ca_block_t *block);

/* The free of a live block takes the slow path from now on. */
void ca_block_bar_fast_path(ca_block_t *block);

/* Whether a block that was live at `address` is still that: its arena may have been revived. */
bool ca_block_is_at(ca_block_t *block, uint64_t address);

/* The arena and the context a block belongs to. NULL when its arena was retired: for frees that
 * lost a race against the end of their context. */
ca_arena_t *ca_block_arena(const ca_block_t *block);
void *ca_arena_context(const ca_arena_t *arena);

/* Whether `address` lies inside a segment of any arena: ours, live or not. */
bool ca_pool_owns(uint64_t address);

/* Where some segment of the arena begins, or 0: it has none. */
uint64_t ca_arena_address(ca_arena_t *arena);

/* Bytes of a live block, rounding included; 0 when it is not live any more. */
size_t ca_block_bytes(ca_block_t *block);

/* What an address lies in. */
typedef struct ca_pool_place {
    uint64_t segment; /* where that begins; 0: no address of the pool's */
    uint64_t block;   /* the same; 0: none that is live or in a thread's cache */
    size_t bytes;     /* of the block, rounding included */
    bool cached;      /* other threads may be taking it: what follows may be the next one's */
    /* The last word of its record's payload, as of when it was live; 0 where it was not since it
     * came into a cache. */
    uint64_t payload;
    void *context; /* of its arena */
    bool host;
} ca_pool_place_t;

/* Under the lock of the arena that has the address it looks at the arena's segments and at the
 * blocks of one of them: for questions that people ask, not for every call. */
ca_pool_place_t ca_pool_place(uint64_t address);

/* The start of the live block that `address` lies in, of any arena; 0 where there is none. */
uint64_t ca_pool_block_at(uint64_t address);

typedef struct ca_arena_stats {
    size_t reserved_bytes; /* obtained upstream */
    size_t reserved_peak;
    size_t live_bytes; /* in live blocks, rounding included */
    size_t live_peak;
    size_t pending_bytes;
    size_t ready_bytes;
    size_t largest_ready;  /* bytes */
    size_t exported_bytes; /* freed, and kept because another process may see them */
    size_t idle_bytes;     /* in segments without a live block, or whole pages, that may go back */
    size_t segments;
    size_t blocks;
    size_t epochs; /* closed, not yet passed */
} ca_arena_stats_t;

/* Of a retired arena all is 0. */
void ca_arena_stats(ca_arena_t *arena, ca_arena_stats_t *stats);

/* The same where waiting is no option: at exit, and in signal handlers, this very thread may hold
 * the arena's lock. False when it could not be had in a bounded number of tries. */
bool ca_arena_stats_try(ca_arena_t *arena, ca_arena_stats_t *stats);

/* Bytes that all arenas together have reserved upstream, now and at most at a time: those of device
 * memory, and those of host memory. */
void ca_pool_reserved(bool host, size_t *now, size_t *peak);

/* In the child of a fork, which has one thread: an empty index of addresses, locks that no
 * thread holds and no totals. The parent's arenas must not be used; their memory stays as it is. */
void ca_pool_reset_after_fork(void);

/* Checks every invariant: segments tiled exactly by their blocks, no two ready neighbours, bins and
 * bitmaps agree, counters equal sums, epochs' lists hold the pending blocks. Returns NULL, or what
 * is broken. Debug builds run it now and then by themselves. */
const char *ca_arena_check(ca_arena_t *arena);

#endif
