#include "base/atomic_file.h"

#include "base/path.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRIES 100
#define NAMES_MAX 65536 /* numbers that are tried for a name */

#define CREATE (O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC)

/* The process id alone is not enough: on a shared file system other hosts have the same ones, in
 * containers it is 1 for everyone. The name is short, as `path` may use all that a name may have.
 */
static int temporary_name(ca_atomic_file_t *file, const char *path)
{
    struct timespec now;
    ca_text_t name;
    const char *slash = strrchr(path, '/');
    clock_gettime(CLOCK_REALTIME, &now);
    ca_text_init(&name, file->temporary, sizeof file->temporary);
    ca_text_add(&name, path, slash ? (size_t)(slash - path) + 1 : 0);
    ca_text_printf(&name, ".cachealloc-%d-%lx%08lx.tmp", (int)getpid(), (long)now.tv_sec,
                   now.tv_nsec);
    return name.length < name.bytes ? 0 : -ENAMETOOLONG;
}

int ca_atomic_file_begin(ca_atomic_file_t *file, const char *path)
{
    int error = 0;
    file->fd = -1;
    for (int i = 0; i < TRIES; i++) {
        error = temporary_name(file, path);
        if (error)
            break;
        file->fd = open(file->temporary, CREATE, 0600);
        if (file->fd >= 0)
            return 0;
        error = -errno;
        if (error != -EEXIST && error != -EINTR)
            break;
    }
    file->temporary[0] = '\0';
    return error;
}

int ca_atomic_file_end(ca_atomic_file_t *file)
{
    /* File systems on the network may find out here that there is no room. A close that was
     * interrupted has closed all the same. */
    int result = close(file->fd);
    file->fd = -1;
    return result != 0 && errno != EINTR ? -errno : 0;
}

/* For file systems that cannot rename without replacing (NFS): the name is claimed with an empty
 * file, which the whole one replaces at once. */
static int claim_and_rename(const ca_atomic_file_t *file, const char *path)
{
    int claim = open(path, CREATE, 0600);
    if (claim < 0)
        return -errno;
    close(claim);
    if (rename(file->temporary, path) == 0)
        return 0;
    int error = -errno;
    unlink(path);
    return error;
}

int ca_atomic_file_name(ca_atomic_file_t *file, const char *path)
{
    int error = 0;
    if (renameat2(AT_FDCWD, file->temporary, AT_FDCWD, path, RENAME_NOREPLACE) != 0)
        error = -errno;
    if (error == -EINVAL || error == -ENOSYS)
        error = claim_and_rename(file, path);
    if (error == 0)
        file->temporary[0] = '\0';
    return error;
}

void ca_atomic_file_discard(ca_atomic_file_t *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    if (file->temporary[0] != '\0')
        unlink(file->temporary);
    file->temporary[0] = '\0';
}

/* --- a name that is free ---------------------------------------------------------------------- */

int ca_new_file_path(const char *pattern, unsigned tried, char *path, size_t bytes)
{
    ca_text_t text;
    bool numbered = ca_path_is_numbered(pattern);
    ca_text_init(&text, path, bytes);
    ca_path_finish(pattern, numbered ? tried + 1 : 1, &text);
    if (tried > 0 && !numbered)
        ca_text_printf(&text, ".%ld", ca_path_pid());
    if (tried > 1 && !numbered) /* other hosts and other runs have our process id too */
        ca_text_printf(&text, ".%u", tried);
    return text.length < text.bytes ? 0 : -ENAMETOOLONG;
}

int ca_new_file_name(ca_atomic_file_t *file, const char *pattern, char *path, size_t bytes,
                     unsigned *tried)
{
    int error = -EEXIST;
    for (*tried = 0; error == -EEXIST && *tried < NAMES_MAX; ++*tried) {
        error = ca_new_file_path(pattern, *tried, path, bytes);
        if (!error)
            error = ca_atomic_file_name(file, path);
    }
    return error;
}

/* --- a file that is kept up to date ----------------------------------------------------------- */

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
static int compare_identity(const ca_kept_file_t *file, const char *path)
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

/* The two change places, and what came out is compared again: another process may have been
 * quicker. And ext4 writes a file to the disk at once where it is renamed over another one, while
 * one that is removed in time is never written. Where there is no such call (NFS) it is renamed all
 * the same. */
static int replace(ca_kept_file_t *file)
{
    char *next = file->next.temporary;
    if (renameat2(AT_FDCWD, next, AT_FDCWD, file->path, RENAME_EXCHANGE) == 0) {
        if (compare_identity(file, next) == 0) {
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
static void note_identity(ca_kept_file_t *file)
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
    int error = compare_identity(file, file->path);
    if (error == 0)
        error = replace(file);
    if (error == -ENOENT)
        error = ca_atomic_file_name(&file->next, file->path);
    if (error)
        return error;
    file->next.temporary[0] = '\0';
    note_identity(file);
    return 0;
}

void ca_kept_file_discard(ca_kept_file_t *file)
{
    if (file->next.temporary[0] != '\0') /* all zero its descriptor is another file's */
        ca_atomic_file_discard(&file->next);
}

void ca_kept_file_remove(ca_kept_file_t *file)
{
    if (file->made && compare_identity(file, file->path) == 0)
        unlink(file->path);
    file->made = false;
}
