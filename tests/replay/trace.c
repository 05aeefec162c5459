/* Reads a trace: see trace.h. */
#include "tests/replay/trace.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define LINE_BYTES 256
#define HEADER "op,id,size,stream,t"
#define LIVE_MOST ((uint64_t)1 << 62) /* bytes: what a policy adds still fits its numbers */

/* Which slot an id has, while it is live: open addressing, deletion by a mark. */
typedef struct ids {
    uint64_t *keys;
    uint32_t *slots; /* step + 1; 0 is empty, UINT32_MAX is deleted */
    size_t room, used;
} ids_t;

bool trace_quiet;

int trace_complain(const trace_t *trace, unsigned long line, const char *what, const char *text)
{
    if (!trace_quiet)
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
        return trace_complain(trace, line, "the operation is neither `a` nor `f`", text);
    if (!take_number(&at, ',', &id))
        return trace_complain(trace, line, "the id is not a number", text);
    if (!take_number(&at, ',', &bytes))
        return trace_complain(trace, line, "the size is not a number", text);
    if (!take_number(&at, ',', &stream) || !take_number(&at, '\0', &time))
        return trace_complain(trace, line, "stream and time are not two numbers", text);
    bool allocates = text[0] == 'a', live;
    if (allocates && bytes == 0)
        return trace_complain(trace, line, "an allocation of 0 bytes", text);
    if (allocates && bytes > LIVE_MOST - trace->live)
        return trace_complain(trace, line, "more than 2^62 bytes are live", text);
    if (line > UINT32_MAX - 2 || ids_grow(ids) != 0)
        return trace_complain(trace, line, "out of host memory", NULL);
    size_t place = ids_find(ids, id, &live);
    if (allocates && live)
        return trace_complain(trace, line, "this id is live already", text);
    if (!allocates && !live)
        return trace_complain(trace, line, "frees an id that is not live", text);
    step_t *step = add_step(trace);
    if (!step)
        return trace_complain(trace, line, "out of host memory", NULL);
    *step = (step_t){.bytes = bytes, .allocates = allocates, .line = (uint32_t)line};
    if (allocates) {
        ids->used += ids->slots[place] == 0;
        ids->keys[place] = id;
        ids->slots[place] = (uint32_t)trace->count; /* its step's number and 1 */
        step->slot = trace->slots++;
        trace->live += bytes;
        if (trace->live > trace->live_peak)
            trace->live_peak = trace->live;
    } else {
        const step_t *made = &trace->steps[ids->slots[place] - 1];
        step->slot = made->slot;
        step->bytes = made->bytes;
        trace->live -= made->bytes;
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
        return code != Z_OK && code != Z_STREAM_END ? trace_complain(trace, line, what, NULL) : 0;
    }
    size_t length = strlen(text);
    if (length == LINE_BYTES - 1 && text[length - 1] != '\n')
        return trace_complain(trace, line, "the line is too long", NULL);
    while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == '\r'))
        text[--length] = '\0';
    return 1;
}

int trace_read(trace_t *trace, const char *name)
{
    *trace = (trace_t){.name = name};
    char text[LINE_BYTES];
    ids_t ids = {0};
    gzFile file = gzopen(trace->name, "rb");
    if (!file) {
        fprintf(stderr, "replay: %s: %s\n", trace->name, strerror(errno));
        return -1;
    }
    int status = read_line(trace, file, text, 1);
    if (status >= 0 && (status == 0 || strcmp(text, HEADER) != 0))
        status = trace_complain(trace, 1, "the header is not `" HEADER "`", NULL);
    for (unsigned long line = 2; status > 0; line++) {
        status = read_line(trace, file, text, line);
        if (status > 0 && read_row(trace, &ids, text, line) != 0)
            status = -1;
    }
    gzclose(file);
    free(ids.keys);
    free(ids.slots);
    return status;
}

void trace_scale(trace_t *trace, size_t bytes)
{
    double factor = trace->live_peak > 0 ? (double)bytes / (double)trace->live_peak : 1;

    trace->live = trace->live_peak = 0;
    for (size_t i = 0; i < trace->count; i++) {
        step_t *step = &trace->steps[i];
        size_t scaled = (size_t)((double)step->bytes * factor);
        step->bytes = scaled > 0 ? scaled : 1;
        trace->live += step->allocates ? step->bytes : -step->bytes;
        if (trace->live > trace->live_peak)
            trace->live_peak = trace->live;
    }
}

void trace_end(trace_t *trace)
{
    free(trace->steps);
    *trace = (trace_t){0};
}
