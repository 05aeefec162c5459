/* Messages with call stacks, for wrong use of memory: written when it is found, not at exit, since
 * the program may not get that far.
 *
 * Names need the loader's lock, the host's heap and more of a stack than the caller may have. The
 * caller may hold the one (from a library's constructor) or wait for the thread that holds the
 * other: so a thread of ours looks names up, for a second at most. Where that does not answer
 * frames are shown as module and offset. */
#ifndef CA_SHIM_ALLOC_DEBUG_NOTICE_H
#define CA_SHIM_ALLOC_DEBUG_NOTICE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"

#define CA_NOTICE_STACKS 3
/* Most that are shown; one more says that some were not. The first have names: a program that goes
 * wrong in a loop, and lives with it, must not wait for names each time. */
#define CA_NOTICES_A_SECOND 8
#define CA_NOTICES 64
#define CA_NOTICES_NAMED 16

typedef struct ca_notice {
    char text[400]; /* one line */
    unsigned count; /* of stacks */
    struct {
        char title[64];
        uint32_t stack; /* ca_stack_capture's id, 0 for none */
    } stacks[CA_NOTICE_STACKS];
} ca_notice_t;

/* Adds a stack: "TITLE by thread NAME". With neither a stack nor a thread nothing is added. */
void ca_notice_add(ca_notice_t *notice, const char *title, uint32_t stack, uint32_t thread);

/* Whether there is to be a message now: the log's level allows it, and there were not too many, in
 * all or this second. Ask before anything is looked up for it. */
bool ca_notice_wanted(void);

/* Writes it to stderr, in one piece. May wait for a second. With no lock held. errno is preserved.
 */
void ca_notice_say(const ca_notice_t *notice);

#endif
