#include "base/atomic_file.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TRIES 100

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
