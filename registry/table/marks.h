/* Moments that the program gave a name, beside the timeline. The last CA_MARKS_MOST are kept.
 * Thread-safe. */
#ifndef CA_REGISTRY_TABLE_MARKS_H
#define CA_REGISTRY_TABLE_MARKS_H

#include <stddef.h>
#include <stdint.h>

#define CA_MARKS_MOST 1024u
#define CA_MARK_NAME 96 /* bytes, the NUL included */

/* A moment that the program gave a name (cachealloc_mark). */
typedef struct ca_mark {
    uint64_t ns;       /* since the start */
    uint64_t sequence; /* of the latest allocation before */
    uint64_t live;     /* bytes */
    uint64_t peak;     /* most live bytes since the mark before: ca_registry_peak_bytes' bound */
    char name[CA_MARK_NAME];
} ca_mark_t;

/* Notes this moment, with a copy of `name`; a long one is cut. With none of our locks held; never
 * in a signal handler. Takes some hundred nanoseconds, a few more for each thread there is. */
void ca_marks_add(const char *name);

/* Copies them, oldest first, and tells how many older ones are not kept any more. Returns how many
 * there are, CA_MARKS_MOST at most: that much room `marks` has, or it is NULL and nothing is
 * copied. Where a frame that a signal interrupted is just adding one, all count as not kept. */
size_t ca_marks_copy(ca_mark_t *marks, uint64_t *dropped);

void ca_marks_reset_after_fork(void);

#endif
