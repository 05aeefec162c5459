/* Which allocations have their call stack recorded: all, none, or those in which a sample falls.
 *
 * Every byte that is allocated is a sample with the same probability, 1 in `every`, whatever else
 * is; so an allocation of `bytes` has its stack with a probability of 1 - exp(-bytes / every). Each
 * thread draws how many bytes there are to its next sample, and counts them down: most allocations
 * cost a subtraction and a branch. An allocation that is counted twice, since its first way came to
 * nothing, is as likely to be sampled as others: what is left to a sample says nothing of what has
 * been. */
#ifndef CA_REGISTRY_TABLE_SAMPLE_H
#define CA_REGISTRY_TABLE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/thread_state.h"

#define CA_SAMPLE_ALL 0u
#define CA_SAMPLE_NONE SIZE_MAX

/* Once, before the first allocation is counted: bytes from one sample to the next on average, at
 * most 2^48, or one of the above. */
void ca_sample_start(size_t every);

/* Whether an allocation of `bytes` (at most 2^48) goes without its stack. Where it does not,
 * ca_sample_draw decides. */
static inline bool ca_sample_passes(size_t bytes)
{
    return __builtin_expect((ca_thread.sample_left -= (int64_t)bytes) >= 0, 1);
}

/* After ca_sample_passes said no: whether the allocation is sampled. Draws the next sample. Takes
 * no lock and allocates nothing. */
bool ca_sample_draw(size_t bytes);

/* This thread begins anew, with these numbers. For tests; else they differ from process to process
 * and from thread to thread. */
void ca_sample_seed(uint64_t seed);

#endif
