/* Thread caches: in front of an arena each thread keeps blocks of its own, so that most allocations
 * and frees take no lock that threads share.
 *
 *   classes  Requests up to CA_CACHE_MOST are rounded up to one of 128 sizes: multiples of 512 B to
 *            8 KiB, then 16 steps to each power of two. So a block that was freed fits the next
 *            request of about its size without being cut. Those above CA_CACHE_ALWAYS only as far
 *            as they are a small part of what the program has live.
 *   queues   What the thread frees queues up, a queue for each class, with the number of the
 *            cache's open epoch; the cache knows up to which number all work has passed. So the
 *            oldest block of a class is taken if its number has: no list is touched when an epoch
 *            closes or passes.
 *   epochs   Closed by the free side, as the arena's are, and together with the arena's open
 *            epoch: that gets a mark, "this cache up to this number", and when its fence has passed
 *            the cache learns it. So there is one fence queue, whichever thread frees.
 *   streams  What is freed on a stream lies apart, a block for each stream and class, for the next
 *            request of that class there: in the stream's order it needs no fence
 *            (pool/fence/stream.h). The block before it goes to the arena.
 *   refill   A class that has nothing takes ready blocks from the arena, more each time. What is
 *            too much goes back in batches, by way of a depot that keeps blocks whole: where one
 *            thread allocates what another frees, they are neither merged nor cut again.
 *
 * A cache's memory is the arena's whenever the arena wants it: before it gives memory back, merges
 * or ends, it locks out all caches in front of it and takes their blocks, and before it looks for
 * more it takes as many as it needs (ca_caches_yield), where several threads have some once growth
 * is out of proportion (ca_grow_spares_caches). While one thread climbs the retry ladder they stay
 * locked out, and frees go where that thread looks. They also stay locked out in pin mode, until
 * the arena's warm-up is over (pool/growth/warmup.h), where it has neither had a fence nor met a
 * stream, and where little memory is left: then every free is followed by its fence.
 *
 * The owner enters its cache by one compare-and-swap, which fails only when the cache is locked
 * out: then the owner does without. No other thread enters; the arena locks a cache out under the
 * arena's lock. */
#ifndef CA_POOL_CACHE_CACHE_H
#define CA_POOL_CACHE_CACHE_H

#include "pool/arena.h"
#include "pool/fence/epoch.h"

#define CA_CACHE_CLASSES 128u
/* Of params.thread_cache a thread uses no more than this, or CA_CACHE_BYTES_SHARE of what was live
 * at most, divided by the threads, where that is more. */
#define CA_CACHE_BYTES ((size_t)64 << 20)
#define CA_CACHE_CLASS_BLOCKS 1024u /* most blocks in a class */
#define CA_CACHE_REFILL 16u         /* most blocks taken from the arena at a time */
#define CA_CACHE_REFILL_BYTES ((size_t)64 << 10)
#define CA_CACHE_FLUSH 64u     /* most blocks that go from a full class to the depot at a time */
#define CA_CACHE_ORDERED 32u   /* places for blocks that were freed on streams; a power of two */
#define CA_CACHE_EPOCH_FITS 4u /* no block is kept of which not so many fit in an epoch */

typedef struct ca_cache ca_cache_t;

/* Serves as ca_arena_alloc, or with `ready_only` ca_arena_alloc_ready, where the calling thread's
 * cache has nothing. */
int ca_cached_alloc(ca_arena_t *arena, ca_stream_t *stream, size_t bytes, bool ready_only,
                    ca_block_t **block, uint64_t *address, bool *reused);

/* Takes a live block back, as ca_arena_free does. */
void ca_cached_free(ca_block_t *block);

/* The same, as ca_arena_free_async does; while the device keeps up behind all work, as what fills
 * an epoch of the cache needs one fence for all of it. */
void ca_cached_free_async(ca_block_t *block, ca_stream_t *stream, uint16_t number);

/* The same, as ca_arena_free_on does; on the legacy stream as ca_cached_free_async. */
void ca_cached_free_on(ca_block_t *block, ca_stream_t *stream);

/* The child of a fork has none. */
void ca_caches_reset_after_fork(void);

/* --- for the arena, under its lock ------------------------------------------------------------ */

/* Locks out all caches in front of the arena and takes what is in them, until as many calls of the
 * second: then they open again, if nothing speaks against it. The lock may be dropped. */
void ca_caches_lock_out(ca_arena_t *arena);
void ca_caches_open(ca_arena_t *arena);

/* Locks them out too, but takes only what it needs for a block of `bytes`, which it makes live:
 * what will be missed least first. NULL, and they are empty, where that was not enough. */
ca_block_t *ca_caches_yield(ca_arena_t *arena, size_t bytes);

/* Something changed that decides whether caches may be open, or how much they may hold. */
void ca_caches_review(ca_arena_t *arena);

/* Whether it is for want of memory that they are locked out, or would be. */
bool ca_caches_lack_memory(const ca_arena_t *arena);

/* What was freed on this stream goes back to it; NULL: on any. With `precise` so does what is freed
 * on streams from now on, until the arena is no more precise. */
void ca_caches_give_streams(ca_arena_t *arena, const ca_stream_t *only, bool precise);

/* The caches publish all frees so far: what they publish later counts as freed later. */
void ca_caches_publish(ca_arena_t *arena);

/* Takes what is in caches that no thread used since the last such call, and leaves the others
 * alone. */
void ca_caches_flush_idle(ca_arena_t *arena);

/* The arena is retired: its caches forget it. */
void ca_caches_drop(ca_arena_t *arena);

/* Cached bytes; exact only where the caches are locked out. Takes no lock. */
size_t ca_caches_bytes(const ca_arena_t *arena);

/* What is broken in the caches, or NULL. */
const char *ca_caches_check(ca_arena_t *arena);

#endif
