/* Unwinding that tells what it read: the stack words on which its result depends.
 *
 * Slow (microseconds), for whoever remembers the result: while those words are as they were, an
 * unwinding from the same place gives the same frames. */
#ifndef CA_REGISTRY_UNWIND_WORDS_H
#define CA_REGISTRY_UNWIND_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CA_WORDS_MAX 192

typedef struct ca_word {
    uintptr_t address, value;
} ca_word_t;

typedef struct ca_words {
    /* Where to start: an address that a function returns to, the address of that function's saved
     * frame pointer, below which lies its return address, and the thread's stack. */
    uintptr_t caller, frame, stack_low, stack_high;

    /* What was read, in this order, each word once. */
    size_t count;
    ca_word_t words[CA_WORDS_MAX];

    /* For the unwinding itself. */
    bool inexact;
    uintptr_t constant_low, constant_high;
} ca_words_t;

/* Opens the generic unwinder, which the package of libunwind.so.8 brings. May call malloc and take
 * the loader's lock. */
void ca_words_start(void);

/* Whether there is one. */
bool ca_words_usable(void);

/* Forgets the unwind information of objects that another one may have taken the place of. Returns
 * how many objects the process ever loaded. May take the loader's lock. */
uint64_t ca_words_refresh(void);

/* Whether an unwinding from `log->caller` gives just these `count` frames, of which the first is
 * the caller, and where `whole` nothing after them. True too means that it depends on nothing but
 * the caller, the frame's address and the words told: all of them in the thread's stack, none
 * guessed without unwind information. After ca_words_refresh. May take the loader's lock. */
bool ca_words_unwind(ca_words_t *log, void *const *frames, size_t count, bool whole);

#endif
