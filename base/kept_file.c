#include "base/kept_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int ca_kept_file_begin(ca_kept_file_t *file, mode_t mode)
{
    struct stat begun;
    int error = ca_atomic_file_begin(&file->next, file->path);
    if (error)
        return error;
    if (fchmod(file->next.fd, mode) != 0 || fstat(file->next.fd, &begun) != 0) {
        error = -errno;
        ca_atomic_file_discard(&file->next);
        return error;
    }
    file->next_device = begun.st_dev;
    file->next_inode = begun.st_ino;
    return 0;
}

int ca_kept_file_end(ca_kept_file_t *file)
{
    int error = ca_atomic_file_end(&file->next);
    if (error)
        ca_atomic_file_discard(&file->next);
    return error;
}

/* 0 where it is there, -ENOENT where nothing is, -EEXIST where something else is. */
static int look(const ca_kept_file_t *file, const char *path)
{
    struct stat found;
    if (lstat(path, &found) != 0)
        return -errno;
    return file->made && found.st_dev == file->device && found.st_ino == file->inode &&
                   found.st_mtim.tv_sec == file->modified.tv_sec &&
                   found.st_mtim.tv_nsec == file->modified.tv_nsec
               ? 0
               : -EEXIST;
}

/* The two change places, and what came out is looked at again: somebody may have been quicker. And
 * ext4 writes a file to the disk at once where it is renamed over another one, while one that is
 * gone in time is never written. Where there is no such call (NFS) it is renamed all the same. */
static int replace(ca_kept_file_t *file)
{
    char *next = file->next.temporary;
    if (renameat2(AT_FDCWD, next, AT_FDCWD, file->path, RENAME_EXCHANGE) == 0) {
        if (look(file, next) == 0) {
            unlink(next);
            return 0;
        }
        if (renameat2(AT_FDCWD, next, AT_FDCWD, file->path, RENAME_EXCHANGE) != 0)
            next[0] = '\0'; /* theirs: not to be discarded */
        return -EEXIST;
    }
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    return rename(next, file->path) == 0 ? 0 : -errno;
}

/* File systems on the network set the time when a file is closed. */
static void note(ca_kept_file_t *file)
{
    struct stat found;
    file->made = lstat(file->path, &found) == 0 && found.st_dev == file->next_device &&
                 found.st_ino == file->next_inode;
    if (!file->made)
        return;
    file->device = found.st_dev;
    file->inode = found.st_ino;
    file->modified = found.st_mtim;
}

int ca_kept_file_put(ca_kept_file_t *file)
{
    int error = look(file, file->path);
    if (error == 0)
        error = replace(file);
    if (error == -ENOENT)
        error = ca_atomic_file_name(&file->next, file->path);
    if (error)
        return error;
    file->next.temporary[0] = '\0';
    note(file);
    return 0;
}

void ca_kept_file_discard(ca_kept_file_t *file)
{
    if (file->next.temporary[0] != '\0') /* all zero it has a descriptor of somebody's */
        ca_atomic_file_discard(&file->next);
}

void ca_kept_file_remove(ca_kept_file_t *file)
{
    if (file->made && look(file, file->path) == 0)
        unlink(file->path);
    file->made = false;
}
