/* Files that appear under their name whole, or not at all, and never in another's place.
 *
 * A file is written under a temporary name in the same directory, and renamed. What has the name
 * already, a symbolic link included, is neither followed nor replaced. No heap. */
#ifndef CA_BASE_ATOMIC_FILE_H
#define CA_BASE_ATOMIC_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

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

/* --- a name that is free ---------------------------------------------------------------------- */

/* From an expanded pattern (path.h): of several processes that want one name each gets another, and
 * none replaces what is there. */

/* The name to try after `tried` that were taken: %n counts, otherwise the process id is added, then
 * a number. 0 or -ENAMETOOLONG. */
int ca_new_file_path(const char *pattern, unsigned tried, char *path, size_t bytes);

/* Gives a closed file the first such name that is free, which is then in `path`; `*tried` names
 * were tried. 0 or a negative errno. */
int ca_new_file_name(ca_atomic_file_t *file, const char *pattern, char *path, size_t bytes,
                     unsigned *tried);

/* --- a file that is kept up to date ----------------------------------------------------------- */

/* Each time a new file takes the place of the last, so that a reader never sees half of one. What
 * another process put under its name is left alone, as are links: what is there must be what was
 * put there last, by device, inode and time (inodes come again). All zero is one that was never put
 * there. */
typedef struct ca_kept_file {
    char path[PATH_MAX]; /* its name, absolute: set by the owner before anything else */
    bool made;
    ca_atomic_file_t next;
    dev_t device, next_device;
    ino_t inode, next_inode;
    struct timespec modified;
} ca_kept_file_t;

/* Begins the next one, in the directory of its path, to be written to `next.fd`. 0 or a negative
 * errno. */
int ca_kept_file_begin(ca_kept_file_t *file, mode_t mode);

/* Closes it, and discards it where it cannot be whole. 0 or a negative errno. */
int ca_kept_file_end(ca_kept_file_t *file);

/* Puts it under the name, in the place of the last one. 0; -EEXIST where something else has the
 * name (another one may be tried); or another negative errno. Then discard it. */
int ca_kept_file_put(ca_kept_file_t *file);
void ca_kept_file_discard(ca_kept_file_t *file);

/* Removes what is there, if it is the one that was put there last. */
void ca_kept_file_remove(ca_kept_file_t *file);

#endif
