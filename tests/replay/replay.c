/* Replays recorded allocation traces call by call through cudaMalloc and cudaFree, and so through
 * the preloaded shim where there is one:
 *
 *     replay [--passes N] FILE...
 *
 * A trace is text, plain or gzip: a header line `op,id,size,stream,t`, then rows in replay order;
 * `a` allocates `size` bytes under `id`, `f` frees `id`. Several passes replay it again on what the
 * pool holds by then; what a pass leaves live is freed before the next. The figures of the shim are
 * those of the whole process: for exact peaks, one file per process.
 *
 * The whole file is read and checked first, so that the time per operation is that of the calls. */
#include <cuda_runtime_api.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"

#define LINE_BYTES 256
#define HEADER "op,id,size,stream,t"

typedef struct step {
    size_t bytes;  /* 0: a free */
    uint32_t slot; /* the allocation that it makes or frees, numbered in order of appearance */
    uint32_t line;
} step_t;

typedef struct trace {
    const char *name;
    step_t *steps;
    size_t count, room;
    void **live; /* by slot */
    size_t *sizes;
    uint32_t slots;
} trace_t;

/* Which slot an id has, while it is live: open addressing, deletion by a mark. */
typedef struct ids {
    uint64_t *keys;
    uint32_t *slots; /* slot + 1; 0 is empty, UINT32_MAX is deleted */
    size_t room, used;
} ids_t;

static int complain(const trace_t *trace, unsigned long line, const char *what, const char *text)
{
    fprintf(stderr, "replay: %s:%lu: %s%s%s\n", trace->name, line, what, text ? ": " : "",
            text ? text : "");
    return -1;
}

static size_t ids_find(const ids_t *ids, uint64_t key, bool *found)
{
    size_t at = (key * UINT64_C(0x9E3779B97F4A7C15)) >> 20 & (ids->room - 1), free_at = SIZE_MAX;
    for (; ids->slots[at] != 0; at = (at + 1) & (ids->room - 1)) {
        if (ids->slots[at] != UINT32_MAX && ids->keys[at] == key) {
            *found = true;
            return at;
        }
        if (ids->slots[at] == UINT32_MAX && free_at == SIZE_MAX)
            free_at = at;
    }
    *found = false;
    return free_at != SIZE_MAX ? free_at : at;
}

static int ids_grow(ids_t *ids)
{
    if (ids->used * 2 < ids->room)
        return 0;
    ids_t bigger = {.room = ids->room ? ids->room * 2 : 1024};
    bigger.keys = calloc(bigger.room, sizeof(*bigger.keys));
    bigger.slots = calloc(bigger.room, sizeof(*bigger.slots));
    if (!bigger.keys || !bigger.slots) {
        free(bigger.keys);
        free(bigger.slots);
        return -ENOMEM;
    }
    for (size_t i = 0; i < ids->room; i++) {
        if (ids->slots[i] == 0 || ids->slots[i] == UINT32_MAX)
            continue;
        bool found;
        size_t at = ids_find(&bigger, ids->keys[i], &found);
        bigger.keys[at] = ids->keys[i];
        bigger.slots[at] = ids->slots[i];
        bigger.used++;
    }
    free(ids->keys);
    free(ids->slots);
    *ids = bigger;
    return 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* The number at *at, which must end at `end`; moves *at behind that. */
static bool take_number(char **at, char end, uint64_t *value)
{
    char *stop;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *value = strtoull(*at, &stop, 10);
    if (errno || *stop != end)
        return false;
    *at = stop + (end != '\0');
    return true;
}

static step_t *add_step(trace_t *trace)
{
    if (trace->count == trace->room) {
        size_t room = trace->room ? trace->room * 2 : 4096;
        step_t *bigger = realloc(trace->steps, room * sizeof(*bigger));
        if (!bigger)
            return NULL;
        trace->steps = bigger;
        trace->room = room;
    }
    return &trace->steps[trace->count++];
}

static int read_row(trace_t *trace, ids_t *ids, char *text, unsigned long line)
{
    uint64_t id, bytes, stream, time;
    char *at = text + 2;
    if ((text[0] != 'a' && text[0] != 'f') || text[1] != ',')
        return complain(trace, line, "the operation is neither `a` nor `f`", text);
    if (!take_number(&at, ',', &id))
        return complain(trace, line, "the id is not a number", text);
    if (!take_number(&at, ',', &bytes))
        return complain(trace, line, "the size is not a number", text);
    if (!take_number(&at, ',', &stream) || !take_number(&at, '\0', &time))
        return complain(trace, line, "stream and time are not two numbers", text);
    bool allocates = text[0] == 'a', live;
    if (allocates && bytes == 0)
        return complain(trace, line, "an allocation of 0 bytes", text);
    if (line > UINT32_MAX - 2 || ids_grow(ids) != 0)
        return complain(trace, line, "out of host memory", NULL);
    size_t place = ids_find(ids, id, &live);
    if (allocates && live)
        return complain(trace, line, "this id is live already", text);
    if (!allocates && !live)
        return complain(trace, line, "frees an id that is not live", text);
    step_t *step = add_step(trace);
    if (!step)
        return complain(trace, line, "out of host memory", NULL);
    *step = (step_t){.bytes = allocates ? bytes : 0, .line = (uint32_t)line};
    if (allocates) {
        ids->used += ids->slots[place] == 0;
        ids->keys[place] = id;
        ids->slots[place] = ++trace->slots;
        step->slot = trace->slots - 1;
    } else {
        step->slot = ids->slots[place] - 1;
        ids->slots[place] = UINT32_MAX;
    }
    return 0;
}

/* One line without its end. 1, 0 at the end of the file, -1 with a message. */
static int read_line(trace_t *trace, gzFile file, char *text, unsigned long line)
{
    if (!gzgets(file, text, LINE_BYTES)) {
        int code;
        const char *what = gzerror(file, &code);
        if (code == Z_ERRNO)
            what = strerror(errno);
        return code != Z_OK && code != Z_STREAM_END ? complain(trace, line, what, NULL) : 0;
    }
    size_t length = strlen(text);
    if (length == LINE_BYTES - 1 && text[length - 1] != '\n')
        return complain(trace, line, "the line is too long", NULL);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        text[--length] = '\0';
    return 1;
}

static int read_trace(trace_t *trace)
{
    char text[LINE_BYTES];
    ids_t ids = {0};
    gzFile file = gzopen(trace->name, "rb");
    if (!file) {
        fprintf(stderr, "replay: %s: %s\n", trace->name, strerror(errno));
        return -1;
    }
    int status = read_line(trace, file, text, 1);
    if (status >= 0 && (status == 0 || strcmp(text, HEADER) != 0))
        status = complain(trace, 1, "the header is not `" HEADER "`", NULL);
    for (unsigned long line = 2; status > 0; line++) {
        status = read_line(trace, file, text, line);
        if (status > 0 && read_row(trace, &ids, text, line) != 0)
            status = -1;
    }
    gzclose(file);
    free(ids.keys);
    free(ids.slots);
    if (status == 0) {
        trace->live = calloc(trace->slots + 1, sizeof(*trace->live));
        trace->sizes = calloc(trace->slots + 1, sizeof(*trace->sizes));
        if (!trace->live || !trace->sizes)
            status = complain(trace, 1, "out of host memory", NULL);
    }
    return status;
}

/* --- replaying -------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* One pass over the trace. 0, or -1 with a message. */
static int replay(trace_t *trace, size_t *peak_bytes, uint64_t *ns)
{
    size_t live_bytes = 0;
    uint64_t start = now_ns();
    for (size_t i = 0; i < trace->count; i++) {
        const step_t *step = &trace->steps[i];
        void **live = &trace->live[step->slot];
        cudaError_t code;
        if (step->bytes > 0) {
            code = cudaMalloc(live, step->bytes);
            trace->sizes[step->slot] = step->bytes;
            live_bytes += step->bytes;
            *peak_bytes = live_bytes > *peak_bytes ? live_bytes : *peak_bytes;
        } else {
            code = cudaFree(*live);
            *live = NULL;
            live_bytes -= trace->sizes[step->slot];
        }
        if (code != cudaSuccess)
            return complain(trace, step->line, step->bytes > 0 ? "cudaMalloc" : "cudaFree",
                            cudaGetErrorString(code));
    }
    *ns = now_ns() - start;
    for (uint32_t i = 0; i < trace->slots; i++) {
        if (trace->live[i] && cudaFree(trace->live[i]) != cudaSuccess)
            return complain(trace, trace->count + 1, "cudaFree of what is left", NULL);
        trace->live[i] = NULL;
    }
    return 0;
}

/* The shim's figures, or all zero and false where there is no shim. */
static bool ask_shim(cachealloc_stats_t *stats)
{
    *stats = (cachealloc_stats_t){.size = sizeof(*stats)};
    return cachealloc_stats && cachealloc_stats(stats) == 0;
}

static int replay_file(const char *name, unsigned long passes)
{
    trace_t trace = {.name = name};
    int status = read_trace(&trace);
    for (unsigned long pass = 1; status == 0 && pass <= passes; pass++) {
        cachealloc_stats_t before, after;
        size_t peak_bytes = 0;
        uint64_t ns = 0;
        ask_shim(&before);
        status = replay(&trace, &peak_bytes, &ns);
        if (status != 0)
            break;
        printf("%s: pass %lu: %u allocations, peak live %zu bytes", name, pass, trace.slots,
               peak_bytes);
        if (ask_shim(&after))
            printf(", peak upstream %llu bytes, upstream calls %llu, hits %llu",
                   (unsigned long long)after.reserved_peak_bytes,
                   (unsigned long long)(after.upstream_allocs - before.upstream_allocs +
                                        after.upstream_frees - before.upstream_frees),
                   (unsigned long long)(after.hits - before.hits));
        else
            printf(", no shim");
        printf(", %llu ns per operation\n",
               (unsigned long long)(trace.count ? ns / trace.count : 0));
    }
    free(trace.steps);
    free(trace.live);
    free(trace.sizes);
    return status;
}

int main(int argc, char **argv)
{
    unsigned long passes = 1;
    int first = 1;
    if (argc > 2 && strcmp(argv[1], "--passes") == 0) {
        char *end;
        passes = strtoul(argv[2], &end, 10);
        first = *end || passes == 0 ? argc : 3;
    }
    if (first >= argc || argv[first][0] == '-') {
        fprintf(stderr, "usage: replay [--passes N] FILE...\n");
        return 2;
    }
    /* The context is made here, so that the first operation does not pay for it. */
    cudaError_t code = cudaFree(NULL);
    if (code != cudaSuccess) {
        fprintf(stderr, "replay: no device: %s\n", cudaGetErrorString(code));
        return 1;
    }
    for (int i = first; i < argc; i++)
        if (replay_file(argv[i], passes) != 0)
            return 1;
    return 0;
}
