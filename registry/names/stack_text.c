#include "registry/names/stack_text.h"

#include <string.h>

#include "base/text.h"
#include "registry/names/fold.h"
#include "registry/names/frame_lines.h"

#define LINE_BYTES 1024
#define NAME_MOST 200
#define SOURCES 4 /* modules that are named */

/* A function of the stack: of a frame, with those that are inlined in it before it. */
typedef struct at {
    size_t frame, place;
} at_t;

typedef struct chain {
    const ca_frame_t *const *frames;
    size_t count;
} chain_t;

static const ca_place_t *place_at(const chain_t *chain, at_t at)
{
    const ca_frame_t *frame = chain->frames[at.frame];
    return at.place < frame->place_count ? &frame->places[at.place] : NULL;
}

static at_t next(const chain_t *chain, at_t at)
{
    if (at.place + 1 < chain->frames[at.frame]->place_count)
        return (at_t){at.frame, at.place + 1};
    return (at_t){at.frame + 1, 0};
}

static bool is_inner(const chain_t *chain, at_t at)
{
    return ca_fold_is_inner(chain->frames[at.frame], place_at(chain, at));
}

/* Functions from `at` on that make one line; `last` is the last of them. */
static size_t run_at(const chain_t *chain, at_t at, at_t *last)
{
    bool python = chain->frames[at.frame]->python;
    size_t length = 0;
    while (at.frame < chain->count && chain->frames[at.frame]->python == python &&
           is_inner(chain, at)) {
        *last = at;
        length++;
        at = next(chain, at);
    }
    return length;
}

/* --- lines ------------------------------------------------------------------------------------ */

static void add_escaped(ca_text_t *text, const char *piece)
{
    ca_text_escape(text, piece, strlen(piece), NAME_MOST);
}

static const char *last_component(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The function's name, for people. */
static void name_of(const chain_t *chain, at_t at, ca_text_t *text)
{
    const ca_frame_t *frame = chain->frames[at.frame];
    const ca_place_t *place = place_at(chain, at);
    const char *function = place && place->function ? place->function : frame->text;
    if (frame->python || !place)
        ca_text_add(text, function, strlen(function));
    else
        ca_fold_name(function, text);
}

static void add_name(ca_text_t *line, const chain_t *chain, at_t at)
{
    char name[NAME_MOST * 2];
    ca_text_t text;
    ca_text_init(&text, name, sizeof name);
    name_of(chain, at, &text);
    add_escaped(line, name);
}

/* A template is glue around what it calls, and what has no name tells nothing. */
static bool is_glue(const chain_t *chain, at_t at)
{
    char name[NAME_MOST * 2];
    ca_text_t text;
    const ca_place_t *place = place_at(chain, at);
    if (!place || !place->function)
        return true;
    ca_text_init(&text, name, sizeof name);
    name_of(chain, at, &text);
    return strstr(name, "<...>") != NULL;
}

static bool is_same(at_t a, at_t b)
{
    return a.frame == b.frame && a.place == b.place;
}

/* Brings both ends of a run to functions that tell something, where it has such. */
static void find_named(const chain_t *chain, size_t length, at_t *first, at_t *last)
{
    at_t at = *first;
    bool any = false;
    for (size_t i = 0; i < length; i++, at = next(chain, at)) {
        if (is_glue(chain, at))
            continue;
        *first = any ? *first : at;
        *last = at;
        any = true;
    }
}

/* What the function is in, for people; NULL where it is not known. */
static const char *source_of(const chain_t *chain, at_t at)
{
    const ca_frame_t *frame = chain->frames[at.frame];
    const char *path = frame->python ? place_at(chain, at)->file : frame->module;
    return path ? last_component(path) : NULL;
}

static void add_sources(ca_text_t *line, const chain_t *chain, at_t at, size_t length)
{
    const char *named[SOURCES];
    size_t count = 0;
    for (size_t i = 0; i < length; i++, at = next(chain, at)) {
        const char *source = source_of(chain, at);
        bool again = !source;
        for (size_t j = 0; !again && j < count; j++)
            again = strcmp(source, named[j]) == 0;
        if (again)
            continue;
        if (count == SOURCES) {
            ca_text_printf(line, ", ...");
            return;
        }
        ca_text_printf(line, "%s", count ? ", " : "");
        add_escaped(line, source);
        named[count++] = source;
    }
}

static void write_line(ca_out_t *out, ca_text_t *line)
{
    ca_text_mark_cut(line);
    ca_out_printf(out, "    %s\n", line->buffer);
}

static void write_run(ca_out_t *out, const chain_t *chain, at_t begin, at_t end, size_t length)
{
    char buffer[LINE_BYTES];
    ca_text_t line;
    at_t first = begin, last = end;
    find_named(chain, length, &first, &last);
    size_t more = length - (is_same(first, last) ? 1 : 2);
    ca_text_init(&line, buffer, sizeof buffer);
    add_name(&line, chain, first);
    if (!is_same(first, last)) {
        ca_text_printf(&line, is_same(next(chain, first), last) ? " < " : " < ... < ");
        add_name(&line, chain, last);
    }
    ca_text_printf(&line, " (");
    if (more != 0)
        ca_text_printf(&line, "+%zu frames of ", more);
    add_sources(&line, chain, begin, length);
    ca_text_printf(&line, ")");
    write_line(out, &line);
}

/* One of several functions at an address, of which others are on another line. */
static void write_place(ca_out_t *out, const chain_t *chain, at_t at)
{
    char buffer[LINE_BYTES];
    ca_text_t line;
    const ca_place_t *place = place_at(chain, at);
    ca_text_init(&line, buffer, sizeof buffer);
    ca_frame_add_function(&line, place->function ? place->function : "??");
    if (place->file) {
        ca_text_printf(&line, " at ");
        add_escaped(&line, last_component(place->file));
        ca_text_printf(&line, ":%u", place->line);
    }
    write_line(out, &line);
}

/* Whether no function of the frame is in a run. */
static bool is_whole(const chain_t *chain, size_t frame, bool fold)
{
    at_t last;
    bool whole = true;
    if (!fold || chain->frames[frame]->place_count < 2)
        return true;
    for (at_t at = {frame, 0}; whole && at.frame == frame; at = next(chain, at))
        whole = run_at(chain, at, &last) < 2;
    return whole;
}

/* A framework's function alone: all that its text has more is arguments, and an offset. */
static bool is_long(const chain_t *chain, size_t frame)
{
    const ca_frame_t *it = chain->frames[frame];
    return !it->python && it->place_count == 1 && !it->places[0].file;
}

void ca_stack_text(ca_out_t *out, const ca_frame_t *const *frames, size_t count, bool fold)
{
    const chain_t chain = {frames, count};
    if (count == 0)
        ca_out_printf(out, "    (no call stack)\n");
    for (at_t at = {0, 0}, last; at.frame < count;) {
        size_t length = fold ? run_at(&chain, at, &last) : 0;
        if (length > 1 || (length == 1 && is_long(&chain, at.frame))) {
            write_run(out, &chain, at, last, length);
            at = next(&chain, last);
        } else if (at.place == 0 && is_whole(&chain, at.frame, fold)) {
            ca_frame_write(out, "    ", frames[at.frame]->lines);
            at = (at_t){at.frame + 1, 0};
        } else {
            write_place(out, &chain, at);
            at = next(&chain, at);
        }
    }
}
