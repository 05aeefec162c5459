/* Names of new files from settled patterns (path.h): of several processes that want one name each
 * gets another, and none replaces what is there. */
#ifndef CA_BASE_NEW_FILE_H
#define CA_BASE_NEW_FILE_H

#include <stddef.h>
#include "base/atomic_file.h"

/* The name to try after `tried` that were taken: %n counts, otherwise the process id is added, then
 * a number. 0 or -ENAMETOOLONG. */
int ca_new_file_path(const char *settled, unsigned tried, char *path, size_t bytes);

/* Gives a closed file the first such name that is free, which is then in `path`; `*tried` names
 * were tried. 0 or a negative errno. */
int ca_new_file_name(ca_atomic_file_t *file, const char *settled, char *path, size_t bytes,
                     unsigned *tried);

#endif
