/* The state of the process: asleep until CUDA memory is first asked for, then active; after a fork
 * from a process that used CUDA the child is passive, and every call passes through.
 *
 * This is the base of the shim: every folder reads the state, and none below shim/life/ includes
 * what changes it. The functions that stand last are defined above, where their comment says. */
#ifndef CA_SHIM_CUDA_LIFE_STATE_H
#define CA_SHIM_CUDA_LIFE_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/mutation.h"

typedef enum {
    CA_LIFE_ASLEEP,
    CA_LIFE_STARTING,
    CA_LIFE_ACTIVE,
    CA_LIFE_PASSIVE,
} ca_life_state_t;

extern _Atomic int ca_life_state; /* ca_life_state_t */

/* At least a page of the kernel's, and no more than what a library may align to. */
#ifdef __x86_64__
#define CA_LIFE_PAGE 4096
#else
#define CA_LIFE_PAGE 65536
#endif
/* It fills pages that the kernel wipes in the child of a fork, raw clone included (which skips the
 * pthread_atfork handlers), where it has MADV_WIPEONFORK. */
typedef struct ca_life_page {
    _Alignas(CA_LIFE_PAGE) _Atomic bool same_process;
    /* Odd while the fast path is allowed (shim/alloc/fast_path.h). It changes whenever anything
     * changes that a thread's fast path relies on: see base/thread_state.h. */
    _Atomic uint64_t generation;
} ca_life_page_t;

extern ca_life_page_t ca_life_page;

/* Reads the configuration and starts the library, once. Whether it is active then.
 * shim/life/life.c. */
bool ca_life_wake(void);

/* Whether calls are to be served and tracked. The first call wakes the library. */
static inline bool ca_life_active(void)
{
    if (__builtin_expect(
            atomic_load_explicit(&ca_life_state, memory_order_acquire) != CA_LIFE_ACTIVE, 0))
        return ca_life_wake();
    return atomic_load_explicit(&ca_life_page.same_process, memory_order_relaxed) ||
           CA_MUTATED(wiped_page_ignored);
}

/* The option `reuse` as the configuration has it now, or is going to have it, without waking. By
 * one thread. shim/life/life.c. */
int ca_life_peek_reuse(void);

/* The same of the option `nvtx`, as the environment has it. While the library is loaded. */
int ca_life_peek_nvtx(void);

/* Something changed that decides whether the fast path is allowed, or that threads rely on in it:
 * what they remember no longer holds. shim/alloc/fast_path.c. */
void ca_fast_invalidate(void);

#endif
