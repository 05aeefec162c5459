/* Deliberate faults, so that tests can prove that a check is able to fail. Debug builds alone read
 * CA_MUTATION=NAME from the environment; in a release build every question is a constant no. */
#ifndef CA_CONFIG_MUTATION_H
#define CA_CONFIG_MUTATION_H

#include <stdbool.h>

#define CA_MUTATIONS(X)                                                                            \
    X(none)                                                                                        \
    X(reuse_pending)        /* freed memory is handed out at once */                               \
    X(reuse_cached)         /* what a thread freed it gets back at once */                         \
    X(pinned_reuse)         /* the same of pinned memory alone */                                  \
    X(fence_legacy_only)    /* a fence forgets non-blocking streams */                             \
    X(fence_no_peers)       /* a fence forgets contexts with peer access */                        \
    X(fence_before_free)    /* a fence is recorded before the frees that it is to cover */         \
    X(query_unrecorded)     /* an event that was never recorded counts as completed */             \
    X(reuse_across_streams) /* what was freed on one stream is handed out on another at once */    \
    X(reuse_across_reset)   /* the arena of a context that was reset goes on serving */            \
    X(capture_gate)         /* fences are recorded while streams are captured */                   \
    X(runtime_first)        /* every module's calls go to the first runtime */                     \
    X(runtime_next)         /* a module's runtime is the next one in the order of look-up */       \
    X(lookup_blind)         /* cuGetProcAddress answers with the driver's own functions */         \
    X(dlsym_blind)          /* and so does dlsym */                                                \
    X(reuse_exported)       /* memory that another process may see is handed out again */

typedef enum {
#define CA_MUTATION(name) CA_MUTATION_##name,
    CA_MUTATIONS(CA_MUTATION)
#undef CA_MUTATION
        CA_MUTATION_COUNT
} ca_mutation_t;

#if CA_DEBUG
extern _Atomic(ca_mutation_t) ca_mutation;
/* By whoever comes first, and again by others. An unknown name is told. */
void ca_mutation_read(void);
#define CA_MUTATED(name) (ca_mutation == CA_MUTATION_##name)
#else
static inline void ca_mutation_read(void)
{
}
#define CA_MUTATED(name) false
#endif

#endif
