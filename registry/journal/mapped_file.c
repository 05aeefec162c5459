#include "registry/journal/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"

#define NAMES_MOST 65536u /* that are tried */
#define PIECE ((uint64_t)256 << 10)
#define INTERRUPTED_MOST 1000u /* times */

/* Beyond a limit of the process's own the kernel would raise SIGXFSZ. */
static bool within_limit(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           bytes <= limit.rlim_cur;
}

/* In pieces: memory of a file system may be allocated from the start again after each signal, and a
 * program may have a timer that is quicker than that. 0 or an errno value. */
static int allocate(int fd, uint64_t offset, uint64_t bytes)
{
    int error = 0;
    unsigned interrupted = 0;
    for (uint64_t done = 0; done < bytes && !error;) {
        uint64_t piece = bytes - done < PIECE ? bytes - done : PIECE;
        error = posix_fallocate(fd, (off_t)(offset + done), (off_t)piece);
        if (!error)
            done += piece;
        else if (error == EINTR && ++interrupted < INTERRUPTED_MOST)
            error = 0;
    }
    return error;
}

/* The file's next `bytes`, mapped. NULL with errno. */
static void *extend(ca_mapped_file_t *file, int fd, uint64_t bytes)
{
    if (!within_limit(file->bytes + bytes)) {
        errno = EFBIG;
        return NULL;
    }
    int error = allocate(fd, file->bytes, bytes);
    void *at = error
                   ? MAP_FAILED
                   : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)file->bytes);
    if (at == MAP_FAILED) {
        error = error ? error : errno;
        if (ftruncate(fd, (off_t)file->bytes) != 0) /* what was allocated in vain */
            error = errno;
        errno = error;
        return NULL;
    }
    file->bytes += bytes;
    return at;
}

/* The file as it was made, or -1: another process may have removed it, or put another in its place.
 */
static int reopen(const ca_mapped_file_t *file)
{
    struct stat found;
    int fd = open(file->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 &&
        (fstat(fd, &found) != 0 || found.st_dev != file->device || found.st_ino != file->inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

void *ca_mapped_file_extend(ca_mapped_file_t *file, uint64_t bytes)
{
    struct stat found;
    int fd = reopen(file);
    void *at = fd >= 0 && fstat(fd, &found) == 0 && (uint64_t)found.st_size == file->bytes
                   ? extend(file, fd, bytes)
                   : NULL;
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return at;
}

/* In a directory that the program may leave. */
static int make_absolute(ca_mapped_file_t *file, const char *path)
{
    file->path[0] = '\0';
    if (path[0] != '/') {
        if (!getcwd(file->path, sizeof file->path - 1))
            return -errno;
        strcat(file->path, "/"); /* NOLINT(clang-analyzer-security.insecureAPI.strcpy): has room */
    }
    size_t length = strlen(file->path), more = strlen(path);
    if (length + more >= sizeof file->path)
        return -ENAMETOOLONG;
    memcpy(file->path + length, path, more + 1);
    return 0;
}

static int open_new(const char *pattern, char *path, size_t bytes, unsigned *tried)
{
    int fd = -1, error = 0;
    for (*tried = 0; fd < 0 && !error && *tried < NAMES_MOST; ++*tried) {
        error = ca_new_file_path(pattern, *tried, path, bytes);
        if (!error)
            fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && !error && errno != EEXIST)
            error = -errno;
    }
    return fd >= 0 ? fd : error ? error : -EEXIST;
}

int ca_mapped_file_create(ca_mapped_file_t *file, const char *pattern, char *path, size_t bytes,
                          unsigned *tried)
{
    struct stat made;
    int fd = open_new(pattern, path, bytes, tried);
    if (fd < 0)
        return fd;
    int error = make_absolute(file, path);
    if (!error && fstat(fd, &made) != 0)
        error = -errno;
    close(fd);
    if (error) {
        unlink(path);
        return error;
    }
    file->device = made.st_dev;
    file->inode = made.st_ino;
    file->bytes = 0;
    return 0;
}

void ca_mapped_file_remove(const ca_mapped_file_t *file)
{
    int fd = reopen(file);
    if (fd >= 0) {
        unlink(file->path);
        close(fd);
    }
}
