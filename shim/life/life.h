/* The process's life under the shim: asleep until CUDA memory is first asked for, then active;
 * after a fork from a process that used CUDA the child is passive, every call goes through. */
#ifndef CA_SHIM_LIFE_LIFE_H
#define CA_SHIM_LIFE_LIFE_H

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
    /* Odd where hits are allowed (shim/alloc/fast_path.h), and another one after anything changed
     * that a thread relies on in them: see base/thread_state.h. */
    _Atomic uint64_t generation;
} ca_life_page_t;

extern ca_life_page_t ca_life_page;

bool ca_life_wake(void);

/* The option `reuse` as the configuration has it now, or is going to have it, without waking. By
 * one thread. */
int ca_life_peek_reuse(void);

/* Whether calls are to be served and tracked. Reads the configuration at the first call. */
static inline bool ca_life_active(void)
{
    if (__builtin_expect(
            atomic_load_explicit(&ca_life_state, memory_order_acquire) != CA_LIFE_ACTIVE, 0))
        return ca_life_wake();
    return atomic_load_explicit(&ca_life_page.same_process, memory_order_relaxed) ||
           CA_MUTATED(wiped_page_ignored);
}

/* Whether this process has a report to write when it ends. Touches nothing, in whatever child. */
bool ca_life_reports(void);

/* A context is in use: from now on CUDA does not survive a fork. */
void ca_life_context_in_use(void);

#endif
