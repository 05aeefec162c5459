/* Random call graphs: what the frames of every form share.
 *
 * A walk goes down by frames that its `way` chooses, and captures here and there. The same way
 * takes the same frames, so that the stacks come again; different ones leave different things in
 * the places that they share. */
#ifndef CALLGRAPHS_H
#define CALLGRAPHS_H

#include <stddef.h>
#include <stdint.h>

#define NOINLINE __attribute__((noinline, noclone))

#ifdef __cplusplus
extern "C" {
#endif

typedef void form_t(uint64_t way, unsigned levels);

/* Captures this stack and holds it against a full unwinding. */
void check(void);

/* Written after calls, so that none becomes a jump. */
extern __thread volatile unsigned sink;

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* All forms, in shares as they are to be met. */
form_t *form_of(uint64_t way);

/* The next frame, or the end of the walk. Inlined: each form calls the next one itself. */
static inline __attribute__((always_inline)) void go_on(uint64_t way, unsigned levels)
{
    if (levels == 0 || way % 3 == 0)
        check();
    if (levels != 0)
        form_of(way >> 8)(mix(way + 0x9e3779b97f4a7c15u), levels - 1);
}

/* Of forms.c, which is compiled several times, and of throws.cc. */
#define FORMS 14
extern form_t *const forms_plain[FORMS], *const forms_framed[FORMS], *const forms_small[FORMS];
#define THROWS 4
extern form_t *const forms_throws[THROWS];

/* Of signals.c, coroutines.c, libraries.c: other stacks, and code that goes. */
form_t on_signal, on_alternate_stack, in_coroutine, in_library;
int signals_start(void); /* in each thread; 0, or -1 where signals cannot be had */
void libraries_start(const char *const *paths); /* of the two modules */

/* What libunwind knows of code is forgotten: a library has come or gone. */
void full_unwind_forget(void);

/* How often, of all threads. */
enum {
    COROUTINES,
    COROUTINE_SAME_PLACE,
    LIBRARIES,
    LIBRARY_SAME_PLACE,
    SIGNALS,
    THROWN,
    JUMPS,
    COUNTS
};
void count(int what);

/* Ends the program: it cannot do what it should, or found what a stack need not tell. */
void fail(const char *what);

#ifdef __cplusplus
}
#endif

#endif
