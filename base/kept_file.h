/* A file that its maker keeps up to date: each time a new one takes the place of the last, so that
 * a reader never sees half of one. What somebody else put under its name is left alone, as are
 * links: what is there must be what was put there last, by device, inode and time (inodes come
 * again). All zero is one that was never put there. No heap. */
#ifndef CA_BASE_KEPT_FILE_H
#define CA_BASE_KEPT_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include "base/atomic_file.h"

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
