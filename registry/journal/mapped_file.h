/* A file that grows at its end and is mapped piece by piece, shared: what is stored in it outlives
 * the process.
 *
 * Room is allocated in the file before it is mapped, or a full disk would be a SIGBUS in the middle
 * of a store. No descriptor stays open: programs close what they do not know, and get its number
 * for something else. Not thread-safe. */
#ifndef CA_REGISTRY_JOURNAL_MAPPED_FILE_H
#define CA_REGISTRY_JOURNAL_MAPPED_FILE_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct ca_mapped_file {
    char path[PATH_MAX]; /* absolute */
    dev_t device;
    ino_t inode;
    uint64_t bytes;
} ca_mapped_file_t;

/* Makes an empty file, which must be a new one, with a name that the expanded pattern stands for
 * (base/path.h): it is then in `path`, and `*tried` names were tried. 0 or a negative errno. */
int ca_mapped_file_create(ca_mapped_file_t *file, const char *pattern, char *path, size_t bytes,
                          unsigned *tried);

/* Maps `bytes` more, zeroed, at its end. NULL with errno where there is no room, or where the name
 * has another file now, or one that others have changed the size of. */
void *ca_mapped_file_extend(ca_mapped_file_t *file, uint64_t bytes);

/* Removes it, if the name still has it. */
void ca_mapped_file_remove(const ca_mapped_file_t *file);

#endif
