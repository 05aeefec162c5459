#include "registry/names/plain_names.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/names/symbol_table.h"

#define FILES_MAX 1024
#define PATHS_BYTES (128u << 10)
#define LINE_BYTES 4352 /* a path and the numbers before it */

/* Code of a file, as it is mapped. */
typedef struct ca_mapping {
    uintptr_t start, end;
    uintptr_t base; /* where the file's first byte is mapped, or would be */
    uint64_t offset;
    uint64_t inode;
    const char *path;
} ca_mapping_t;

/* Buffers are static: the caller's stack may be that of a signal handler. */
static ca_mapping_t mappings[FILES_MAX];
static size_t mapping_count;
static char paths[PATHS_BYTES];
static size_t paths_used;

static const ca_mapping_t *opened_for; /* whose file `file` is */
static ca_symbol_file_t file = {.fd = -1};

static int error; /* the first, and of which file */
static const char *error_path;

static int open_to_read(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && error == 0) {
        error = errno;
        error_path = path;
    }
    return fd;
}

int ca_plain_names_error(const char **path)
{
    *path = error_path;
    return error;
}

/* --- which files are mapped ------------------------------------------------------------------- */

/* A hexadecimal number (decimal for a base of 10) and what follows it. */
static const char *number(const char *at, unsigned base, uint64_t *value)
{
    *value = 0;
    for (;; at++) {
        unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
                         : *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a') + 10
                                                    : base;
        if (digit >= base)
            return at;
        *value = *value * base + digit;
    }
}

/* Without what the kernel says behind the name of a file that is not there any more. */
static const char *keep_path(const char *path)
{
    static const char *last, deleted[] = " (deleted)";
    size_t length = strlen(path), suffix = sizeof deleted - 1;
    if (length > suffix && strcmp(path + length - suffix, deleted) == 0)
        length -= suffix;
    /* The mappings of a file follow each other. */
    if (paths_used != 0 && last && strncmp(last, path, length) == 0 && last[length] == '\0')
        return last;
    if (length >= sizeof paths - paths_used)
        return NULL;
    last = memcpy(paths + paths_used, path, length);
    paths[paths_used + length] = '\0';
    paths_used += length + 1;
    return last;
}

/* `start-end rwxp offset major:minor inode   path` */
static void add_line(const char *line)
{
    static uintptr_t base;
    uint64_t start, end, offset, inode, unused;
    const char *at = number(line, 16, &start);
    at = number(at + (*at == '-'), 16, &end);
    if (*at != ' ' || strlen(at) < 8)
        return;
    bool executable = at[3] == 'x';
    at = number(at + 6, 16, &offset);
    at = number(at + (*at == ' '), 16, &unused);
    at = number(at + (*at == ':'), 16, &unused);
    at = number(at + (*at == ' '), 10, &inode);
    at += strspn(at, " ");
    if (offset == 0)
        base = (uintptr_t)start;
    if (!executable || *at != '/' || mapping_count == FILES_MAX)
        return;
    ca_mapping_t *mapping = &mappings[mapping_count];
    *mapping = (ca_mapping_t){(uintptr_t)start, (uintptr_t)end, base, offset, inode, keep_path(at)};
    if (mapping->path)
        mapping_count++;
}

/* Into `space` bytes behind what is there already; 0 at the end, or where it cannot be read. */
static size_t read_more(int fd, char *to, size_t space)
{
    ssize_t got;
    do
        got = read(fd, to, space);
    while (got < 0 && errno == EINTR);
    return got > 0 ? (size_t)got : 0;
}

void ca_plain_names_begin(void)
{
    static char text[LINE_BYTES];
    size_t used = 0, got;
    mapping_count = paths_used = 0;
    ca_symbol_files_begin();
    ca_plain_names_end();
    error = 0;
    int fd = open_to_read("/proc/self/maps");
    if (fd < 0)
        return;
    while ((got = read_more(fd, text + used, sizeof text - 1 - used)) != 0) {
        char *line = text, *newline;
        used += got;
        text[used] = '\0';
        while ((newline = strchr(line, '\n')) != NULL) {
            *newline = '\0';
            add_line(line);
            line = newline + 1;
        }
        used -= (size_t)(line - text);
        if (used == sizeof text - 1) /* a line that is longer than any path */
            used = 0;
        memmove(text, line, used);
    }
    close(fd);
}

void ca_plain_names_end(void)
{
    ca_symbol_file_close(&file);
    opened_for = NULL;
}

static const ca_mapping_t *mapping_of(uintptr_t pc)
{
    for (size_t i = 0; i < mapping_count; i++)
        if (pc - mappings[i].start < mappings[i].end - mappings[i].start)
            return &mappings[i];
    return NULL;
}

/* --- what a file says ------------------------------------------------------------------------- */

/* Opens the mapping's file. False where it is another file by now. */
static bool open_file(const ca_mapping_t *mapping)
{
    struct stat found;
    if (opened_for != mapping) {
        ca_plain_names_end();
        opened_for = mapping;
        int fd = open_to_read(mapping->path);
        if (fd >= 0 && (fstat(fd, &found) != 0 || (uint64_t)found.st_ino != mapping->inode)) {
            close(fd);
            fd = -1;
        }
        ca_symbol_file_open(&file, fd);
    }
    return file.fd >= 0;
}

ca_plain_name_t ca_plain_names_find(uintptr_t pc)
{
    const ca_mapping_t *mapping = mapping_of(pc);
    ca_plain_name_t found = {.function = NULL};
    if (!mapping)
        return found;
    found.module = mapping->path;
    found.offset = pc - mapping->base;
    if (open_file(mapping) &&
        ca_symbol_file_address(&file, pc - mapping->start + mapping->offset, &found.offset))
        found.function = ca_symbol_file_function(&file, found.offset, &found.timed_out);
    return found;
}
