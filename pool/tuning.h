/* The pool's tuning numbers: each was chosen by an experiment, and says what it trades. The table
 * in docs/internals/pool.md has them all, with the experiment of each (tests/test_docs.py). A
 * number that is a bound, or follows from a size, stands beside the code that uses it. Bytes,
 * unless it says otherwise. */
#ifndef CA_POOL_TUNING_H
#define CA_POOL_TUNING_H

#include <stddef.h>

/* --- segments --------------------------------------------------------------------------------- */

#define CA_SEGMENT_UNIT ((size_t)2 << 20)   /* multiples of this: calls of the driver for memory */
#define CA_SEGMENT_FIRST ((size_t)10 << 20) /* all that a small program gets: calls for memory */
/* Later ones are this part of what there is, up to the next: larger ones save calls of the driver,
 * and hold memory that may never be wanted. */
#define CA_SEGMENT_SHARE 6u
#define CA_SEGMENT_MOST ((size_t)96 << 20) /* except for a single larger request */
/* The reserve may exceed 1.25 x the live peak by this before pending memory is waited for: memory
 * for time. */
#define CA_GROW_SPARE ((size_t)64 << 20)
/* So many times smaller than a block is on average, a request grows the pool by the smallest
 * segment: calls for memory. */
#define CA_GROW_TRIFLE 64u
/* How long the driver's answer to what it has left serves, in ns: a call for each growth, or an
 * estimate that other processes have made stale. */
#define CA_ESTIMATE_SERVES_NS 10000000u
/* Allocations and frees from one climb that locks the caches out before anything else to the next:
 * time of the threads for memory that merges. */
#define CA_LOCKOUT_BACKOFF 4096

/* --- what is cut, and what stays apart -------------------------------------------------------- */

/* Bytes of segments that a smaller request may strand, as a part of the device or the limit: calls
 * of the driver for memory that nothing fits in. Requests of more than a part of that get segments
 * of their own. */
#define CA_MIXED_SHARE 64u
#define CA_MIXED_LARGE 2u
#define CA_MIXED_TRIFLE 64u /* so many times smaller, it leaves idle segments alone */
/* A pool with this part of the device, or of the limit, keeps small blocks out of large segments:
 * calls for memory. */
#define CA_APART_SHARE 8u
/* With this part its blocks have whole pages of a range where they nearly fill them: what they
 * leave of a page for calls. */
#define CA_RANGE_WHOLE_SHARE 32u

/* --- epochs ----------------------------------------------------------------------------------- */

/* An arena's epoch is closed when it holds so many blocks, or as many bytes as were ever live
 * within these bounds. A record may cost microseconds; what is not closed yet serves no request,
 * and small programs are to stay small. */
#define CA_EPOCH_BLOCKS 192
#define CA_EPOCH_BYTES ((size_t)8 << 20)
#define CA_EPOCH_BYTES_MOST ((size_t)24 << 20)
/* Of more closed epochs than this a free polls two instead of one: time for memory. */
#define CA_EPOCHS_BEHIND 3u

/* --- warm-up ---------------------------------------------------------------------------------- */

#define CA_WARMUP_CLOSES                                                                           \
    ((size_t)1 << 20)                     /* a free of more closes its epoch: fences for memory    \
                                           */
#define CA_WARMUP_ASKS ((size_t)64 << 10) /* a request of so much polls first: time for memory */
/* So little of what was reserved does not count as growth, four times as much among so many blocks,
 * and so much for each thread but the first: memory for a warm-up that ends. */
#define CA_WARMUP_GROWN 32u
#define CA_WARMUP_MANY 65536u
#define CA_WARMUP_THREAD ((size_t)4 << 20)
/* Epochs of a small program until this part of its reserve is live, and of CA_WARMUP_ASKS from then
 * on: memory for fences. */
#define CA_SMALL_EPOCH ((size_t)2 << 20)
#define CA_SMALL_LIVE 3u

/* --- thread caches ---------------------------------------------------------------------------- */

/* Larger blocks in a cache hold more memory apart than the time they save is worth, and so do those
 * above CA_CACHE_ALWAYS where little is live: a thread's are CA_CACHE_SHARE times smaller than what
 * was live at most, divided by the threads. */
#define CA_CACHE_MOST ((size_t)1 << 20)
#define CA_CACHE_ALWAYS ((size_t)256 << 10)
#define CA_CACHE_SHARE 320u
/* Where that is more than CA_CACHE_BYTES a thread caches this part of what was live at most,
 * divided by the threads: memory for time. */
#define CA_CACHE_BYTES_SHARE 8u
/* Of a full cache's bytes so many go to the arena at a time: misses for flushes. */
#define CA_CACHE_FLUSH_SHARE 4u
/* An epoch of a cache is closed when it holds so many blocks: with more there are fewer records,
 * and more misses, because what pends serves no request. */
#define CA_CACHE_EPOCH_BLOCKS 208u
/* It may hold at least this much, or else it is not worth having one: memory where that is short.
 */
#define CA_CACHE_EPOCH_LEAST ((size_t)256 << 10)
/* With fewer blocks a class waits for a fence every few requests, so that its thread gets new
 * memory instead: memory for time. */
#define CA_CACHE_STARVED 16u

#endif
