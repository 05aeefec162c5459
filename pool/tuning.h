/* The pool's tuning numbers: those that an experiment chose. The table in docs/internals/pool.md
 * has the experiment of each (tests/test_docs.py). A number that is a bound, or follows from a
 * size, stands beside the code that uses it.
 *
 * "A for B": a larger number spends A and saves B. Calls are the driver's, of which a growth makes
 * one; memory is what is reserved beside what is live. Numbers are bytes, unless it says otherwise.
 */
#ifndef CA_POOL_TUNING_H
#define CA_POOL_TUNING_H

#include <stddef.h>

/* --- segments --------------------------------------------------------------------------------- */

/* All are multiples of the unit, and those of large programs a part of what is reserved, up to the
 * most, except for a single larger request. */
#define CA_SEGMENT_UNIT ((size_t)2 << 20)   /* memory for calls */
#define CA_SEGMENT_FIRST ((size_t)10 << 20) /* memory of small programs for calls */
#define CA_SEGMENT_SHARE 6u                 /* a sixth: calls for memory */
#define CA_SEGMENT_MOST ((size_t)96 << 20)  /* memory for calls */

/* The reserve may exceed 1.25 x the live peak by so much before the pool waits for pending memory:
 * memory for time. */
#define CA_GROW_SPARE ((size_t)64 << 20)
/* A request that is so many times smaller than a block is on average grows the pool by one unit:
 * memory for calls. */
#define CA_GROW_TRIFLE 64u
/* So long, in ns, the driver's answer to what it has left serves: errors, as other processes obtain
 * memory meanwhile, for time. */
#define CA_ESTIMATE_SERVES_NS 10000000u
/* Allocations and frees from one climb that locks the caches out first to the next: memory that
 * does not merge for time. */
#define CA_LOCKOUT_BACKOFF 4096

/* --- what is cut, and what stays apart (blocks/mixed.h, range/range.h) ------------------------ */

#define CA_MIXED_SHARE 64u  /* a 64th of the device may be stranded: calls for memory */
#define CA_MIXED_LARGE 2u   /* of more than a half of that none is cut: calls for memory */
#define CA_MIXED_TRIFLE 64u /* smaller ones leave idle segments alone: memory for calls */
/* From an eighth of the device on small blocks have segments of their own: calls for memory. */
#define CA_APART_SHARE 8u
/* From a 32nd on blocks that nearly fill pages of a range have whole ones: the pages' ends for
 * pages that can be released. */
#define CA_RANGE_WHOLE_SHARE 32u

/* --- epochs (fence/epoch.h) ------------------------------------------------------------------- */

/* One is closed when it holds so many blocks, or as many bytes as were ever live, within bounds:
 * memory for fences. */
#define CA_EPOCH_BLOCKS 192
#define CA_EPOCH_BYTES ((size_t)8 << 20) /* small programs are to stay small */
#define CA_EPOCH_BYTES_MOST ((size_t)24 << 20)
/* Where more are closed a free polls two instead of one: memory for queries. */
#define CA_EPOCHS_BEHIND 3u

/* --- warm-up (growth/warmup.h) ---------------------------------------------------------------- */

#define CA_WARMUP_CLOSES ((size_t)1 << 20) /* larger frees close their epoch: memory for fences */
#define CA_WARMUP_ASKS ((size_t)64 << 10)  /* such requests poll first: memory for queries */
/* Growth does not count below a 32nd of what was reserved, four times as much among so many blocks,
 * and so much for each thread but the first. */
#define CA_WARMUP_GROWN 32u                /* time for memory */
#define CA_WARMUP_MANY 65536u              /* blocks: time for memory */
#define CA_WARMUP_THREAD ((size_t)4 << 20) /* memory for time */
/* What a small program's epoch holds until a third of its reserve is live; CA_WARMUP_ASKS then. */
#define CA_SMALL_EPOCH ((size_t)2 << 20) /* memory for fences */
#define CA_SMALL_LIVE 3u                 /* fences for memory */

/* --- thread caches (cache/cache.h) ------------------------------------------------------------ */

/* Larger blocks in a cache hold more memory apart than the time they save is worth; and so do those
 * above CA_CACHE_ALWAYS where little is live: a thread's are CA_CACHE_SHARE times smaller than what
 * was live at most, divided by the threads. */
#define CA_CACHE_MOST ((size_t)1 << 20)     /* memory for time */
#define CA_CACHE_ALWAYS ((size_t)256 << 10) /* memory for time */
#define CA_CACHE_SHARE 320u                 /* time for memory */
/* An eighth of what was live at most is cached, divided by the threads: time for memory. */
#define CA_CACHE_BYTES_SHARE 8u
/* A full cache gives a quarter of its bytes to the arena: flushes for misses. */
#define CA_CACHE_FLUSH_SHARE 4u
/* An epoch of a cache is closed when it holds so many blocks: misses, as what pends serves no
 * request, for fences. */
#define CA_CACHE_EPOCH_BLOCKS 208u
/* Where less may be pending a cache has no epoch: time for memory. */
#define CA_CACHE_EPOCH_LEAST ((size_t)256 << 10)
/* With fewer blocks, where others have more, a class gets new memory instead of waiting for a fence
 * every few requests: memory for time. */
#define CA_CACHE_STARVED 16u

#endif
