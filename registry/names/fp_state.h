/* The thread's floating-point environment, around calls into others' code that may compute with
 * such numbers: the program may have traps on, or look at the flags. We compute with integers. */
#ifndef CA_REGISTRY_NAMES_FP_STATE_H
#define CA_REGISTRY_NAMES_FP_STATE_H

#include <stdint.h>

typedef struct ca_fp_state {
#if defined(__x86_64__)
    uint32_t sse;
    uint32_t x87[7];
#elif defined(__aarch64__)
    uint64_t control, flags;
#else
    char unused;
#endif
} ca_fp_state_t;

/* From here on none traps. */
static inline void ca_fp_hold(ca_fp_state_t *state)
{
#if defined(__x86_64__)
    const uint32_t without_traps = 0x1f80;
    __asm__ volatile("stmxcsr %0\n\tfnstenv %1" : "=m"(state->sse), "=m"(state->x87));
    __asm__ volatile("ldmxcsr %0" : : "m"(without_traps));
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr"
                     : "=r"(state->control), "=r"(state->flags));
#else
    state->unused = 0;
#endif
}

/* As it was at ca_fp_hold, flags included. */
static inline void ca_fp_resume(const ca_fp_state_t *state)
{
#if defined(__x86_64__)
    __asm__ volatile("fldenv %1\n\tldmxcsr %0" : : "m"(state->sse), "m"(state->x87));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(state->control), "r"(state->flags));
#else
    (void)state;
#endif
}

#endif
