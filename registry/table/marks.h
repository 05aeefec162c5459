/* Moments that the program gave a name, beside the timeline. The last CA_MARKS_MOST are kept.
 * Thread-safe. */
#ifndef CA_REGISTRY_TABLE_MARKS_H
#define CA_REGISTRY_TABLE_MARKS_H

#include <stddef.h>
#include <stdint.h>
#include "registry/report/model.h"

#define CA_MARKS_MOST 1024u

/* Notes this moment, with a copy of `name`; a long one is cut. With none of our locks held; never
 * in a signal handler. Takes some hundred nanoseconds, a few more for each thread there is. */
void ca_marks_add(const char *name);

/* Copies them, oldest first, and tells how many older ones are not kept any more. Returns how many
 * there are, CA_MARKS_MOST at most: that much room `marks` has, or it is NULL and nothing is
 * copied. Where a frame that a signal interrupted is just adding one, all count as not kept. */
size_t ca_marks_copy(ca_model_mark_t *marks, uint64_t *dropped);

void ca_marks_reset_after_fork(void);

#endif
