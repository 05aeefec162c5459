/* For the fast path: a call costs more there than what it saves in size. And for words that threads
 * share. */
#ifndef CA_BASE_INLINE_H
#define CA_BASE_INLINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CA_INLINE static inline __attribute__((always_inline))

/* What is not likely comes to lie apart, so that a path that the processor's cache has lost is read
 * in few lines. */
#define CA_LIKELY(condition) __builtin_expect(!!(condition), 1)

/* For an address that is used several times: the compiler must not work it out anew at each. */
#define CA_KEEP_IN_REGISTER(pointer) __asm__("" : "+r"(pointer))

/* Raises a word that other threads raise too, where it is less. */
static inline void ca_raise(_Atomic uint64_t *at, uint64_t value)
{
    uint64_t before = atomic_load(at);

    while (before < value && !atomic_compare_exchange_weak(at, &before, value))
        continue;
}

/* Whether a word that other threads may write has this value. Where the caller has hardly a
 * register left, the compiler must not take one for it. */
CA_INLINE bool ca_word_is(const _Atomic uint32_t *word, uint32_t value)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    bool same;
    __asm__("cmpl %2, %1" : "=@cce"(same) : "m"(*word), "r"(value));
    return same;
#else
    return atomic_load_explicit(word, memory_order_relaxed) == value;
#endif
}

#endif
