/* Locks with ranks. A thread may only take a lock of a higher rank than those it holds; debug
 * builds (CA_DEBUG) check that and keep a count, so that the upstream table can prove that no
 * driver call is made under a lock. */
#ifndef CA_CONFIG_LOCK_H
#define CA_CONFIG_LOCK_H

#include <pthread.h>
#include <stdbool.h>

/* Outermost first. */
typedef enum {
    CA_RANK_CONTEXTS = 1, /* shim: context to arena */
    CA_RANK_GRAPHS,       /* shim: memory that captures touched */
    CA_RANK_ARENA,        /* pool: one arena */
    CA_RANK_SPANS,        /* pool: address ranges of all segments */
    CA_RANK_REGISTRY,     /* registry: one shard */
    CA_RANK_STACKS,       /* registry: interned stacks */
    CA_RANK_MEMORY,       /* config: host memory of our own */
} ca_rank_t;

typedef struct ca_lock {
    pthread_mutex_t mutex;
    ca_rank_t rank;
} ca_lock_t;

#define CA_LOCK_INIT(rank_)                                                                        \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, rank_                                                           \
    }

/* Also how an owner makes a lock good again in the child of a fork, whoever held it. */
void ca_lock_init(ca_lock_t *lock, ca_rank_t rank);
/* Where another thread holds it: tries for a moment, then sleeps. Returns whether that was so. */
bool ca_lock_take(ca_lock_t *lock);
void ca_lock_drop(ca_lock_t *lock);
/* Takes it if that needs no wait. For _exit and kin, which may run in a signal handler; as it
 * cannot deadlock, its rank is not checked. */
bool ca_lock_try(ca_lock_t *lock);

#if CA_DEBUG
/* How many of our locks this thread holds. */
unsigned ca_lock_held(void);
/* Debug builds only: stops the process where `what` is about to happen under a lock. */
void ca_lock_assert_none(const char *what);
#else
static inline unsigned ca_lock_held(void)
{
    return 0;
}
static inline void ca_lock_assert_none(const char *what)
{
    (void)what;
}
#endif

#endif
