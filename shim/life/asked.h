/* What tools/cachealloc asks of the library: its own table of options and its own parser answer, so
 * that no other list of them exists. The question is in the environment of the process that loads
 * it, in CACHEALLOC_ASK, which is removed before the program sees it:
 *
 *   check          what is wrong in ALLOC_CONF goes to stderr now, CUDA used or not
 *   options        the basic options, on stdout
 *   options:all    all of them
 *   options:KEY    that one, or a line that begins with `unknown` and names near ones
 */
#ifndef CA_SHIM_LIFE_ASKED_H
#define CA_SHIM_LIFE_ASKED_H

#include <stdbool.h>

/* At load, once, while the process has one thread. */
void ca_asked_answer(void);

/* Whether all that is wrong in these two texts (each may be NULL) was reported at load. */
bool ca_asked_reported(const char *conf, const char *alias);

#endif
