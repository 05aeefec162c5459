/* See libraries.h. */
#include "shim/cuda/libraries.h"
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef struct visit {
    void (*see)(const char *name, size_t length, void *arg);
    void *arg;
} visit_t;

/* `path` of a library, not terminated. */
static void visit_path(const visit_t *visit, const char *path, size_t length)
{
    const char *slash = memrchr(path, '/', length);
    const char *name = slash ? slash + 1 : path;
    visit->see(name, length - (size_t)(name - path), visit->arg);
}

/* A line of /proc/self/maps: "from-to rights offset device inode path". Each library has one part
 * that begins the file. */
static void visit_line(const visit_t *visit, const char *line, size_t length)
{
    const char *at = line, *stop = line + length;
    bool first = false;
    for (int field = 0; field < 5 && at; field++) {
        first |= field == 2 && strspn(at, "0") == strcspn(at, " ");
        at = memchr(at, ' ', (size_t)(stop - at));
        while (at && at < stop && *at == ' ')
            at++;
    }
    if (at && at < stop && *at == '/' && first)
        visit_path(visit, at, (size_t)(stop - at));
}

static bool visit_maps(const visit_t *visit)
{
    char text[4096];
    size_t have = 0;
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    for (ssize_t more; (more = read(file, text + have, sizeof text - have)) > 0;) {
        have += (size_t)more;
        size_t begin = 0;
        for (const char *end_of; (end_of = memchr(text + begin, '\n', have - begin));) {
            size_t length = (size_t)(end_of - (text + begin));
            visit_line(visit, text + begin, length);
            begin += length + 1;
        }
        if (begin == 0) /* no path is as long: of such a line the rest is passed over */
            begin = have;
        memmove(text, text + begin, have - begin);
        have -= begin;
    }
    close(file);
    return true;
}

static int visit_module(struct dl_phdr_info *info, size_t bytes, void *visit)
{
    (void)bytes;
    if (info->dlpi_name)
        visit_path(visit, info->dlpi_name, strlen(info->dlpi_name));
    return 0;
}

void ca_libraries_each(void (*see)(const char *name, size_t length, void *arg), void *arg)
{
    visit_t visit = {see, arg};
    if (!visit_maps(&visit))
        dl_iterate_phdr(visit_module, &visit);
}

bool ca_library_begins(const char *name, size_t length, const char *begins)
{
    return length >= strlen(begins) && memcmp(name, begins, strlen(begins)) == 0;
}

typedef struct numbers {
    unsigned long long opened, closed;
    bool valid;
} numbers_t;

static int read_numbers(struct dl_phdr_info *info, size_t bytes, void *arg)
{
    numbers_t *numbers = arg;
    numbers->valid = bytes >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof info->dlpi_subs;
    if (numbers->valid) {
        numbers->opened = info->dlpi_adds;
        numbers->closed = info->dlpi_subs;
    }
    return 1;
}

bool ca_libraries_changed(ca_libraries_seen_t *seen)
{
    numbers_t now = {0};
    dl_iterate_phdr(read_numbers, &now);
    bool opened = atomic_exchange(&seen->opened, now.opened) != now.opened;
    bool closed = atomic_exchange(&seen->closed, now.closed) != now.closed;
    return !now.valid || opened || closed;
}
