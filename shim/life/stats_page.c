#include "shim/life/stats_page.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/text.h"

#define BEGAN_FIELD 22 /* of /proc/PID/stat: proc(5) */

static char runtime[PATH_MAX / 2]; /* $XDG_RUNTIME_DIR, or empty */

void ca_stats_page_configure(void)
{
    const char *value = getenv("XDG_RUNTIME_DIR");
    runtime[0] = '\0';
    if (value && value[0] == '/' && strlen(value) < sizeof runtime)
        memcpy(runtime, value, strlen(value) + 1);
}

/* A folder below /tmp may have been made by any user, or be a link to anywhere. */
static int own_folder(const char *path)
{
    struct stat found;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return -errno;
    if (lstat(path, &found) != 0)
        return -errno;
    if (!S_ISDIR(found.st_mode))
        return -ENOTDIR;
    return found.st_uid == geteuid() && (found.st_mode & 077) == 0 ? 0 : -EPERM;
}

static int find_folder(char *path, size_t bytes)
{
    ca_text_t text;
    ca_text_init(&text, path, bytes);
    ca_text_printf(&text, "%s/cachealloc", runtime);
    if (runtime[0] != '\0' && own_folder(path) == 0)
        return 0;
    ca_text_init(&text, path, bytes);
    ca_text_printf(&text, "/tmp/cachealloc-%u", (unsigned)geteuid());
    return own_folder(path);
}

int ca_stats_page_path(char *path, size_t bytes)
{
    ca_text_t text;
    struct stat found;
    int error = find_folder(path, bytes);
    if (error)
        return error;
    size_t length = strlen(path);
    ca_text_init(&text, path + length, bytes - length);
    ca_text_printf(&text, "/%d", (int)getpid());
    if (lstat(path, &found) == 0 && !S_ISDIR(found.st_mode))
        unlink(path);
    return 0;
}

/* The program's name, in parentheses, may have anything in it. */
static uint64_t field(const char *line, unsigned number)
{
    const char *at = strrchr(line, ')');
    for (unsigned i = 2; at && i < number; i++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at ? strtoull(at, NULL, 10) : 0;
}

uint64_t ca_stats_page_began(void)
{
    char line[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    line[got] = '\0';
    return field(line, BEGAN_FIELD);
}
