/* Which fences a thread may wait for without bound. A plain free waits for all work submitted
 * before it, so a thread that made one has been behind all fences that were recorded before it, and
 * its program can tell no difference where we wait for one of them later. Work behind any other
 * fence may be waiting for this very thread.
 *
 * Fences behind all work are numbered in the order in which they are recorded, in one row for all
 * contexts. Any thread may call; no call here takes a lock or reaches upstream. */
#ifndef CA_POOL_FENCE_FENCE_ORDER_H
#define CA_POOL_FENCE_FENCE_ORDER_H

#include <stdatomic.h>
#include <stdint.h>

#define CA_FENCE_NONE UINT64_MAX /* no fence yet, or not behind all work: for no thread */

extern __attribute__((visibility("hidden"))) _Atomic uint64_t ca_fence_last;

/* Of the contexts that this thread freed in last. One that falls out makes waits bounded that need
 * not be. */
#define CA_FENCE_CONTEXTS 4u
typedef struct ca_fence_freed {
    const void *context;
    uint64_t number;
} ca_fence_freed_t;
extern __attribute__((
    visibility("hidden"))) _Thread_local ca_fence_freed_t ca_fence_freed[CA_FENCE_CONTEXTS];

/* A fence was recorded: its number. The newest one's. */
static inline uint64_t ca_fence_number(void)
{
    return atomic_fetch_add(&ca_fence_last, 1) + 1;
}

static inline uint64_t ca_fence_newest(void)
{
    return atomic_load(&ca_fence_last);
}

static inline ca_fence_freed_t *ca_fence_freed_in(const void *context)
{
    return &ca_fence_freed[(uintptr_t)context >> 6 & (CA_FENCE_CONTEXTS - 1)];
}

/* The calling thread makes a plain free in the context, after the fence with this number. */
static inline void ca_fence_note_free(const void *context, uint64_t number)
{
    ca_fence_freed_t *freed = ca_fence_freed_in(context);

    if (freed->context != context || freed->number < number)
        *freed = (ca_fence_freed_t){context, number};
}

/* The last fence that the calling thread may wait for in this context; 0: none. */
static inline uint64_t ca_fence_freed_after(const void *context)
{
    const ca_fence_freed_t *freed = ca_fence_freed_in(context);

    return freed->context == context ? freed->number : 0;
}

#endif
