/* An unwinder of our own, by what compilers wrote down of each frame (eh_frame.h). It takes no lock
 * and allocates nothing, and can tell what it read: the stack words on which its result depends.
 * While those are as they were, an unwinding from the same place gives the same frames. */
#ifndef CA_REGISTRY_STACK_UNWIND_WORDS_H
#define CA_REGISTRY_STACK_UNWIND_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "registry/stack/eh_frame.h"
#include "registry/stack/hash.h"

#define CA_WORDS_MAX 192
#define CA_RULE_SET_BITS 8
#define CA_RULE_WAYS 4u /* places that a rule may be in */
#define CA_RULES ((1u << CA_RULE_SET_BITS) * CA_RULE_WAYS)

typedef struct ca_word {
    uintptr_t address, value;
} ca_word_t;

/* Where to start: an address that a function returns to, the address of that function's saved frame
 * pointer, below which lies its return address, and the stack. Where that is another one, `own` is
 * the thread's, to which it may lead by way of a signal handler's frame. `sure`: all of the stack
 * is there now, and not only where descriptions lead. */
typedef struct ca_unwind_start {
    uintptr_t caller, frame, stack_low, stack_high;
    uintptr_t own_low, own_high;
    bool sure;
} ca_unwind_start_t;

/* What was read, in this order, each word once. */
typedef struct ca_words {
    ca_unwind_start_t start;
    size_t count;
    ca_word_t words[CA_WORDS_MAX];
} ca_words_t;

/* Rules that a thread has looked up, by return address. Set-associative: in a table with one place
 * for each, two addresses of a stack that share it would be looked up in every unwinding. All zero
 * is an empty one. */
typedef struct ca_rules {
    uint64_t epoch; /* ca_unload_epoch's, when the first was looked up */
    struct ca_known_rule {
        uintptr_t returns;
        ca_frame_rule_t rule;
    } known[1u << CA_RULE_SET_BITS][CA_RULE_WAYS]; /* in each set, the newest first */
} ca_rules_t;

/* The set that an address belongs to. */
static inline size_t ca_rules_set(uintptr_t returns)
{
    return ca_hash_word(returns) >> (64 - CA_RULE_SET_BITS);
}

/* Whether it can be done on this machine. */
bool ca_words_usable(void);

/* How many objects the process ever loaded. May take the loader's lock. */
uint64_t ca_words_loads(void);

/* What an unwinding comes by. */
typedef struct ca_unwound {
    uintptr_t *sps; /* the stack pointer behind each call that a frame returns from; or NULL */
    bool handler;   /* a signal handler is on the stack */
    bool ended;     /* false: the way leads out of the stack before */
} ca_unwound_t;

/* The frames from start->caller on, at most `max`. Code that no table describes, made at run time,
 * is unwound by its frame pointer where that leads to code that is described. 0 where the start
 * lies outside of the stack. */
size_t ca_words_frames(const ca_unwind_start_t *start, ca_rules_t *rules, void **frames, size_t max,
                       ca_unwound_t *unwound);

/* Whether an unwinding from `log->start` gives just these `count` frames, of which the first is the
 * caller, and where `whole` nothing after them. True too means that it depends on nothing but the
 * caller, the frame's address and the words logged: all of them in the stack. */
bool ca_words_unwind(ca_words_t *log, ca_rules_t *rules, void *const *frames, size_t count,
                     bool whole);

#endif
