/* Lowers the operations that touch bytes, and keeps the account of what every byte must be. */
#include "random.h"
#include <stdlib.h>

typedef struct part {
    uint64_t offset, bytes;
} part_t;

/* Some part of `all` bytes, most often not a large one. */
static part_t some_part(uint64_t all, uint64_t *r)
{
    part_t part = {0, all};
    if (all > 1 && below(r, 3)) {
        uint64_t most = all > 65536 && below(r, 16) ? 65536 : all;
        part.bytes = 1 + draw(r) % most;
        part.offset = draw(r) % (all - part.bytes + 1);
    }
    return part;
}

/* Pitched memory is worked on by rows, so that what lies between them does not matter. */
static uint64_t unit_of(const buffer_t *b)
{
    return b->width ? b->width : 1;
}

static part_t some_rows(const buffer_t *b, uint64_t all, uint64_t *r)
{
    uint64_t unit = unit_of(b);
    part_t part = some_part(all / unit, r);
    return (part_t){part.offset * unit, part.bytes * unit};
}

static void set(program_t *p, int thread, int stream, int buffer, part_t part, uint32_t value,
                uint64_t *r)
{
    order_access(p, thread, stream, buffer, true, r);
    buffer_t *b = &p->buffers.at[buffer];
    extent_t fill = {.kind = FILL, .id = value};
    if (!content_put(&b->content, part.offset, part.bytes, fill)) {
        part = (part_t){0, b->bytes};
        b->content = content_of(fill, b->bytes);
    }
    step_t *s = stream_step(p, thread, DO_SET, stream, buffer);
    s->offset = part.offset;
    s->bytes = part.bytes;
    s->value = value;
    order_submit(p, stream);
    order_note(p, stream, buffer, true);
}

/* Nobody reads what was never written, and a first write is a whole one. */
void define(program_t *p, int thread, int stream, int buffer, uint64_t *r)
{
    buffer_t *b = &p->buffers.at[buffer];
    if (!content_defined(&b->content, 0, b->bytes))
        set(p, thread, stream, buffer, (part_t){0, b->bytes}, below(r, 256), r);
}

static void set_2d(program_t *p, int thread, int stream, int buffer, uint64_t *r)
{
    buffer_t *b = &p->buffers.at[buffer];
    uint32_t pitch = b->width ? b->width : 16 + below(r, 240);
    if (pitch > b->bytes)
        pitch = (uint32_t)b->bytes;
    uint32_t width = 1 + below(r, pitch);
    uint64_t rows = 1 + below(r, (uint32_t)(b->bytes / pitch < 64 ? b->bytes / pitch : 64));
    uint64_t offset = draw(r) % (b->bytes - rows * pitch + 1);
    part_t part = {offset - offset % unit_of(b), rows * pitch};
    uint32_t outside = below(r, 256), inside = below(r, 256);
    define(p, thread, stream, buffer, r);
    set(p, thread, stream, buffer, part, outside, r);
    extent_t grid = {.kind = GRID, .id = inside | outside << 8, .pitch = pitch, .width = width};
    if (!content_put(&b->content, part.offset, part.bytes, grid))
        return; /* the plain set took the whole buffer, and stays */
    order_access(p, thread, stream, buffer, true, r);
    step_t *s = stream_step(p, thread, DO_SET_2D, stream, buffer);
    s->offset = part.offset;
    s->bytes = rows;
    s->value = inside | (uint64_t)width << 8 | (uint64_t)pitch << 32;
    order_submit(p, stream);
    order_note(p, stream, buffer, true);
}

/* Copies [from_offset, + bytes) of one buffer to another, device or host. */
static bool copy(program_t *p, int thread, int stream, int to, uint64_t offset, int from,
                 uint64_t from_offset, uint64_t bytes, uint64_t *r)
{
    buffer_t *dst = &p->buffers.at[to];
    const buffer_t *src = &p->buffers.at[from];
    if (!content_copy(&dst->content, offset, bytes, &src->content, from_offset))
        return false;
    const stream_t *on = &p->streams.at[stream];
    bool sync = dst->host != src->host && below(r, 6) == 0;
    int device = on->device;
    if (sync && !(on->legacy && on->owner == thread)) {
        /* On the legacy stream without a claim to its order: only what the host knows counts. */
        order_host(p, thread, to, true, r);
        order_host(p, thread, from, false, r);
        device = dst->host ? src->device : dst->device;
    } else {
        if (src->host)
            order_source(p, thread, stream, from, r);
        order_access(p, thread, stream, to, true, r);
        order_access(p, thread, stream, from, false, r);
        order_submit(p, stream);
        order_note(p, stream, from, false);
        order_note(p, stream, to, true);
    }
    step_t *s = stream_step(p, thread, sync ? DO_COPY_SYNC : DO_COPY, stream, to);
    s->device = device;
    s->from = from;
    s->offset = offset;
    s->from_offset = from_offset;
    s->bytes = bytes;
    s->value = below(r, 4);
    if (sync && on->legacy && on->owner == thread)
        clocks_join(p->known[thread], p->lanes[on->lane].reached);
    return true;
}

static bool copy_some(program_t *p, int thread, int stream, int to, int from, uint64_t *r)
{
    if (!stream_reaches(p, stream, to) || !stream_reaches(p, stream, from))
        return false;
    buffer_t *dst = &p->buffers.at[to], *src = &p->buffers.at[from];
    uint64_t least = dst->bytes < src->bytes ? dst->bytes : src->bytes;
    if (dst->width && src->width && dst->width != src->width)
        return false;
    if ((dst->width || src->width) && !dst->host && !src->host && dst->device != src->device)
        return false;
    const buffer_t *rows = dst->width ? dst : src;
    uint64_t unit = unit_of(rows);
    if (least < unit)
        return false;
    part_t part = some_rows(rows, least, r);
    if (!src->host)
        define(p, thread, stream, from, r);
    if (!content_defined(&dst->content, 0, dst->bytes)) {
        if (least == dst->bytes && least % unit == 0)
            part = (part_t){0, least};
        else
            define(p, thread, stream, to, r);
    }
    uint64_t offset = part.offset + draw(r) % (dst->bytes - part.offset - part.bytes + 1);
    offset -= offset % unit_of(dst);
    if (!copy(p, thread, stream, to, offset, from, part.offset, part.bytes, r)) {
        if (dst->host)
            return false;
        set(p, thread, stream, to, (part_t){0, dst->bytes}, below(r, 256), r);
    }
    return true;
}

/* Somebody looks at all of a pinned buffer: the host, or the stream by a host function. */
static void look(program_t *p, int thread, int stream, int buffer, uint64_t *r)
{
    buffer_t *b = &p->buffers.at[buffer];
    step_t *s;
    if (below(r, 3)) {
        order_access(p, thread, stream, buffer, false, r);
        order_submit(p, stream);
        order_note(p, stream, buffer, false);
        s = stream_step(p, thread, DO_CALL_CHECK, stream, buffer);
    } else {
        order_host(p, thread, buffer, false, r);
        s = add_step(p, thread, DO_CHECK);
        s->buffer = buffer;
    }
    content_t *expected = malloc(sizeof(*expected));
    if (!expected)
        abort();
    *expected = b->content;
    s->bytes = b->bytes;
    s->content = expected;
}

/* Device memory is brought to a stage: all of a small buffer, of others the ends and two samples.
 */
static void check(program_t *p, int thread, int stream, int buffer, uint64_t *r)
{
    int stage = p->ops_n + thread * STAGES + p->stage_next[thread]++ % STAGES;
    buffer_t *b = &p->buffers.at[buffer], *at = &p->buffers.at[stage];
    define(p, thread, stream, buffer, r);
    at->content = content_of((extent_t){.kind = UNDEFINED}, STAGE_BYTES);
    if (b->bytes <= STAGE_BYTES) {
        copy(p, thread, stream, stage, 0, buffer, 0, b->bytes, r);
    } else {
        const uint64_t unit = unit_of(b), piece = STAGE_BYTES / 4 / unit * unit;
        const uint64_t last = b->bytes - piece;
        const uint64_t from[] = {0, last, draw(r) % last, draw(r) % last};
        for (unsigned i = 0; i < 4; i++)
            if (!copy(p, thread, stream, stage, i * piece, buffer, from[i] - from[i] % unit, piece,
                      r))
                break; /* too many extents for one look */
    }
    look(p, thread, stream, stage, r);
}

static void fill(program_t *p, int index, int thread, int stream, int buffer, uint64_t *r)
{
    buffer_t *b = &p->buffers.at[buffer];
    step_t *s;
    if (below(r, 2)) {
        order_access(p, thread, stream, buffer, true, r);
        order_submit(p, stream);
        order_note(p, stream, buffer, true);
        s = stream_step(p, thread, DO_CALL_FILL, stream, buffer);
    } else {
        order_host(p, thread, buffer, true, r);
        s = add_step(p, thread, DO_FILL);
        s->buffer = buffer;
    }
    b->content = content_of((extent_t){.kind = PATTERN, .id = (uint32_t)index}, b->bytes);
    s->bytes = b->bytes;
    s->value = (uint64_t)index;
}

bool lower_data(program_t *p, int index, const op_t *op, uint64_t *r)
{
    int t = op->thread;
    bool host = op->kind == OP_HOST_CHECK || op->kind == OP_HOST_FILL;
    if (!stream_usable(p, t, op->stream) || !usable(p, t, op->a, host))
        return false;
    if (!host && !stream_reaches(p, op->stream, op->a))
        return false;
    switch (op->kind) {
    case OP_SET: {
        const buffer_t *b = &p->buffers.at[op->a];
        bool fresh = !content_defined(&b->content, 0, b->bytes);
        part_t part = fresh ? (part_t){0, b->bytes} : some_rows(b, b->bytes, r);
        set(p, t, op->stream, op->a, part, below(r, 256), r);
        return true;
    }
    case OP_SET_2D:
        set_2d(p, t, op->stream, op->a, r);
        return true;
    case OP_UPLOAD:
        return usable(p, t, op->b, true) && copy_some(p, t, op->stream, op->a, op->b, r);
    case OP_DOWNLOAD:
        return usable(p, t, op->b, true) && copy_some(p, t, op->stream, op->b, op->a, r);
    case OP_COPY:
        return op->a != op->b && usable(p, t, op->b, false) &&
               copy_some(p, t, op->stream, op->b, op->a, r);
    case OP_CHECK:
        check(p, t, op->stream, op->a, r);
        return true;
    case OP_HOST_CHECK:
        look(p, t, op->stream, op->a, r);
        return true;
    case OP_HOST_FILL:
        fill(p, index, t, op->stream, op->a, r);
        return true;
    default:
        return false;
    }
}
