/* Patterns as in the suppression files of LeakSanitizer. */
#ifndef CA_REGISTRY_REPORT_GLOB_H
#define CA_REGISTRY_REPORT_GLOB_H

#include <stdbool.h>

/* Whether `text` holds what `pattern` says: `*` stands for anything, a `^` at its begin and a `$`
 * at its end for those of the text. Without them it may be anywhere. */
bool ca_glob_holds(const char *pattern, const char *text);

#endif
