/* A file that appears under its name whole, or not at all, and never in another's place.
 *
 * It is written under a temporary name in the same directory, and renamed. What has the name
 * already, a symbolic link included, is neither followed nor replaced. No heap. */
#ifndef CA_BASE_ATOMIC_FILE_H
#define CA_BASE_ATOMIC_FILE_H

#include <limits.h>

typedef struct ca_atomic_file {
    int fd; /* to write to, or -1 */
    char temporary[PATH_MAX];
} ca_atomic_file_t;

/* Begins a file, mode 0600, in the directory of `path`. 0 or a negative errno. */
int ca_atomic_file_begin(ca_atomic_file_t *file, const char *path);

/* Closes it. 0, or the negative errno of what could not be written after all; then discard it. */
int ca_atomic_file_end(ca_atomic_file_t *file);

/* Gives the closed file the name `path`, in the directory it was begun in. 0, -EEXIST where the
 * name is taken (another one may be tried), or another negative errno; then discard it. */
int ca_atomic_file_name(ca_atomic_file_t *file, const char *path);

/* Removes what was begun and not named. */
void ca_atomic_file_discard(ca_atomic_file_t *file);

#endif
