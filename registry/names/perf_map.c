#include "registry/names/perf_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "registry/names/sort.h"

#define BYTES_MOST ((size_t)64 << 20) /* of a file; a larger one is not read */
#define LINES_MOST ((size_t)1 << 20)
#define COVERING_MOST 64 /* pieces that are looked through for those that cover an address */
#define SECOND UINT64_C(1000000000)

/* A piece of code. */
typedef struct piece {
    uint64_t start;
    uint32_t bytes;
    uint32_t line; /* where that begins in the text: a later one is right */
} piece_t;

static bool is_read;
static char *text; /* the whole file, each line with a NUL behind it */
static size_t text_bytes;
static piece_t *pieces;
static size_t piece_count, pieces_bytes;

void ca_perf_map_end(void)
{
    if (text)
        ca_mem_unmap(text, text_bytes);
    if (pieces)
        ca_mem_unmap(pieces, pieces_bytes);
    text = NULL;
    pieces = NULL;
    piece_count = 0;
    is_read = false;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* A hexadecimal number and the blank behind it; NULL where that is not there. */
static const char *number(const char *at, uint64_t *value)
{
    unsigned digits = 0;
    *value = 0;
    at += at[0] == '0' && (at[1] == 'x' || at[1] == 'X') ? 2 : 0;
    for (;; at++, digits++) {
        unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
                         : *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a') + 10
                         : *at >= 'A' && *at <= 'F' ? (unsigned)(*at - 'A') + 10
                                                    : 16;
        if (digit == 16)
            break;
        if (digits == 16)
            return NULL;
        *value = *value * 16 + digit;
    }
    return digits != 0 && *at == ' ' ? at + 1 : NULL;
}

/* The name in a line, and which code has it; NULL where that is no line of such a file. */
static const char *read_line(const char *line, uint64_t *start, uint64_t *bytes)
{
    const char *at = number(line, start);
    at = at ? number(at, bytes) : NULL;
    bool is_code =
        at && *at != '\0' && *bytes != 0 && *bytes <= UINT32_MAX && *start <= UINT64_MAX - *bytes;
    return is_code ? at : NULL;
}

static bool is_before(const void *a, const void *b)
{
    return ((const piece_t *)a)->start < ((const piece_t *)b)->start;
}

/* Of `used` bytes of the text; what is behind the last newline is still being written. */
static void read_lines(size_t used)
{
    size_t lines = 0;
    uint64_t start, bytes;
    for (const char *at = text; (at = memchr(at, '\n', used - (size_t)(at - text))) != NULL; at++)
        lines++;
    pieces_bytes = lines * sizeof *pieces;
    pieces = lines <= LINES_MOST ? ca_mem_map(pieces_bytes) : NULL;
    if (!pieces)
        return;
    char *end;
    for (char *line = text; (end = memchr(line, '\n', used - (size_t)(line - text))) != NULL;
         line = end + 1) {
        *end = '\0';
        if (read_line(line, &start, &bytes))
            pieces[piece_count++] = (piece_t){start, (uint32_t)bytes, (uint32_t)(line - text)};
    }
    ca_sort(pieces, piece_count, sizeof *pieces, is_before);
}

/* --- the file --------------------------------------------------------------------------------- */

void ca_perf_map_read(int fd)
{
    struct stat found;
    size_t used = 0;
    ca_perf_map_end();
    is_read = true;
    if (fd < 0 || fstat(fd, &found) != 0 || found.st_size <= 0 ||
        (uint64_t)found.st_size > BYTES_MOST)
        return;
    text_bytes = (size_t)found.st_size;
    text = ca_mem_map(text_bytes);
    while (text && used < text_bytes) {
        ssize_t got = pread(fd, text + used, text_bytes - used, (off_t)used);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            break;
        used += got > 0 ? (size_t)got : 0;
    }
    if (text)
        read_lines(used);
}

/* When this process began, in seconds since 1970, or 0 where /proc does not say. */
static time_t process_start(void)
{
    enum { FIELDS_BEFORE = 19 }; /* of the one that counts, behind the program's name */
    char said[1024];
    unsigned long long ticks = 0;
    long rate = sysconf(_SC_CLK_TCK);
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, said, sizeof said - 1) : -1;
    if (fd >= 0)
        close(fd);
    said[got > 0 ? got : 0] = '\0';
    const char *at = strrchr(said, ')');
    for (int i = 0; at && i <= FIELDS_BEFORE; i++)
        at = strchr(at + 1, ' ');
    for (at = at ? at + 1 : ""; *at >= '0' && *at <= '9'; at++)
        ticks = ticks * 10 + (unsigned)(*at - '0');
    uint64_t up = ca_clock_of(CLOCK_BOOTTIME) / SECOND, now = ca_clock_of(CLOCK_REALTIME) / SECOND;
    uint64_t since_boot = rate > 0 ? ticks / (unsigned long)rate : 0;
    return ticks != 0 && since_boot <= up && up - since_boot <= now
               ? (time_t)(now - (up - since_boot))
               : 0;
}

/* An earlier process of the same id may have left its own. */
static bool is_ours(int fd)
{
    enum { ROUNDED = 2 }; /* seconds, by the two clocks */
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid() &&
           found.st_mtime >= process_start() - ROUNDED;
}

static void read_own(void)
{
    char path[40];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
    ca_perf_map_read(fd >= 0 && is_ours(fd) ? fd : -1);
    if (fd >= 0)
        close(fd);
}

const char *ca_perf_map_find(uintptr_t pc)
{
    if (!is_read)
        read_own();
    size_t low = 0, high = piece_count; /* the first that begins behind `pc` */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pieces[middle].start <= pc)
            low = middle + 1;
        else
            high = middle;
    }
    const piece_t *best = NULL;
    for (size_t i = low; i-- > 0 && low - i <= COVERING_MOST;)
        if (pc - pieces[i].start < pieces[i].bytes && (!best || pieces[i].line > best->line))
            best = &pieces[i];
    uint64_t start, bytes;
    return best ? read_line(text + best->line, &start, &bytes) : NULL;
}
