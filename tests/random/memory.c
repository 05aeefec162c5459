/* Lowers what takes memory and gives it back: plain, stream-ordered, pitched and pinned. Device
 * memory may be taken in one way and freed in another. Names, pin mode and trims are the library's
 * own interface; without it these steps do nothing, and what the program prints is the same. */
#include "random.h"

enum { LEAST_WIDTH = 200, MOST_WIDTH = STAGE_BYTES / 4, PITCH_UNIT = 512 };

static const buffer_t no_buffer = {
    .alive = true, .by = NOBODY, .posted = NOBODY, .handed = NOBODY, .writer = NOBODY};

void add_stages(program_t *p, int thread)
{
    for (int i = 0; i < STAGES; i++) {
        int buffer = p->ops_n + thread * STAGES + i;
        step_t *s = add_step(p, thread, DO_HOST_ALLOC);
        s->device = 0;
        s->buffer = buffer;
        s->bytes = STAGE_BYTES;
        p->buffers.at[buffer] = no_buffer;
        p->buffers.at[buffer].host = true;
        p->buffers.at[buffer].owner = thread;
        p->buffers.at[buffer].bytes = STAGE_BYTES;
    }
}

/* --- taking -------------------------------------------------------------------------------- */
static void lower_host_alloc(program_t *p, int index, const op_t *op, uint64_t *r)
{
    step_t *s = add_step(p, op->thread, DO_HOST_ALLOC);
    s->device = op->to;
    s->buffer = index;
    s->bytes = op->bytes;
    s->value = below(r, 2) ? below(r, 16) & (BY_DRIVER | HOST_FLAGS) : 0;
    s = add_step(p, op->thread, DO_FILL);
    s->buffer = index;
    s->bytes = op->bytes;
    s->value = (uint64_t)index;
}

/* So many rows that the buffer has about the bytes asked for. */
static void shape(buffer_t *b, uint64_t bytes, uint64_t *r)
{
    uint32_t most = bytes < MOST_WIDTH ? (uint32_t)bytes : MOST_WIDTH;
    b->width = most <= LEAST_WIDTH ? most : LEAST_WIDTH + below(r, most - LEAST_WIDTH + 1);
    uint32_t rows = (uint32_t)(bytes / b->width);
    b->slice = rows > 3 && below(r, 2) ? rows / (2 + below(r, 2)) : rows;
    rows = rows / b->slice * b->slice;
    b->bytes = (uint64_t)rows * b->width;
    b->room = (uint64_t)rows * ((b->width + PITCH_UNIT - 1) / PITCH_UNIT * PITCH_UNIT);
}

static bool lower_alloc(program_t *p, int index, const op_t *op, uint64_t *r)
{
    bool async = op->kind == OP_ALLOC_ASYNC, host = op->kind == OP_HOST_ALLOC;
    if (async && !stream_usable(p, op->thread, op->stream))
        return false;
    buffer_t *b = &p->buffers.at[index];
    *b = no_buffer;
    b->host = host;
    b->async = async;
    b->owner = op->thread;
    b->device = async ? p->streams.at[op->stream].device : op->to;
    b->by = index;
    b->bytes = op->bytes;
    b->room = host ? 0 : op->bytes;
    if (op->kind == OP_ALLOC_PITCHED)
        shape(b, op->bytes, r);
    extent_t nothing = {.kind = host ? PATTERN : UNDEFINED, .id = (uint32_t)index};
    b->content = content_of(nothing, b->bytes);
    p->live[op->thread] += b->room;
    if (host) {
        lower_host_alloc(p, index, op, r);
        return true;
    }
    step_t *s = add_step(p, op->thread,
                         async      ? DO_ALLOC_ASYNC
                         : b->width ? DO_ALLOC_PITCHED
                                    : DO_ALLOC);
    s->device = b->device;
    s->buffer = index;
    s->bytes = b->bytes;
    s->value = below(r, 4) == 0                             ? BY_DRIVER
               : b->slice && b->slice * b->width < b->bytes ? PITCHED_3D
                                                            : 0;
    if (async) {
        s->stream = op->stream;
        clocks_join(p->lanes[p->streams.at[op->stream].lane].reached, p->known[op->thread]);
        order_submit_quietly(p, op->stream);
        order_note(p, op->stream, index, true);
    }
    return true;
}

/* --- giving back --------------------------------------------------------------------------- */

/* Is a stream of another device at work on the buffer, as far as the thread knows? */
static bool away(const program_t *p, int thread, const buffer_t *b)
{
    for (int i = 0; i < MAX_LANES; i++) {
        uint32_t number = b->read[i];
        if (b->writer == i && b->written > number)
            number = b->written;
        if (number > p->known[thread][i] && p->lanes[i].device != b->device)
            return true;
    }
    return false;
}

/* Makes a free wait for what it does not wait for by itself. */
static void order_free(program_t *p, const op_t *op, uint64_t *r)
{
    const buffer_t *b = &p->buffers.at[op->a];
    if (op->kind == OP_FREE_ASYNC) {
        order_access(p, op->thread, op->stream, op->a, true, r);
    } else if (b->async) {
        order_host(p, op->thread, op->a, true, r);
    } else if (!p->peer_free && away(p, op->thread, b)) {
        /* A free waits for the memory's own context: let that wait for the other one. */
        int stream = per_thread_stream(op->thread, b->device);
        order_access(p, op->thread, stream, op->a, true, r);
        lower_nothing(p, op->thread, stream);
    }
}

/* The name that is left frees the memory; which of the two is freed first is drawn. */
bool lower_free(program_t *p, const op_t *op, uint64_t *r)
{
    if (!usable(p, op->thread, op->a, op->kind == OP_HOST_FREE))
        return false;
    buffer_t *b = &p->buffers.at[op->a];
    bool async = op->kind == OP_FREE_ASYNC;
    if (async && (!stream_usable(p, op->thread, op->stream) ||
                  p->streams.at[op->stream].device != b->device))
        return false;
    if (!b->alias)
        order_free(p, op, r);
    step_t *s = add_step(p, op->thread, b->host ? DO_HOST_FREE : async ? DO_FREE_ASYNC : DO_FREE);
    s->buffer = op->a;
    s->device = async ? b->device : op->to; /* with a plain free the current device is any */
    s->stream = async ? op->stream : NOBODY;
    s->value = (below(r, 4) == 0 ? BY_DRIVER : 0) | (b->alias ? ONLY_NAME : 0) |
               (below(r, 2) ? BY_ALIAS : 0);
    if (b->alias) {
        b->alias = false;
        return true;
    }
    if (async)
        order_submit_quietly(p, op->stream);
    b->alive = false;
    p->live[op->thread] -= b->room;
    return true;
}

/* --- the library's interface --------------------------------------------------------------- */
static bool lower_alias(program_t *p, const op_t *op, uint64_t *r)
{
    bool host = op->a >= 0 && op->a < p->buffers.n && p->buffers.at[op->a].host;
    if (!usable(p, op->thread, op->a, host) || p->buffers.at[op->a].alias ||
        p->buffers.at[op->a].bytes < 2)
        return false;
    p->buffers.at[op->a].alias = true;
    step_t *s = add_step(p, op->thread, DO_ALIAS);
    s->buffer = op->a;
    s->offset = 1 + draw(r) % (p->buffers.at[op->a].bytes - 1);
    return true;
}

static bool lower_pin(program_t *p, const op_t *op)
{
    bool on = op->kind == OP_PIN;
    if (on ? p->pins[op->thread] == 2 : p->pins[op->thread] == 0)
        return false;
    p->pins[op->thread] += on ? 1 : -1;
    add_step(p, op->thread, DO_PIN)->value = on;
    return true;
}

bool lower_memory(program_t *p, int index, const op_t *op, uint64_t *r)
{
    switch (op->kind) {
    case OP_ALLOC:
    case OP_ALLOC_ASYNC:
    case OP_ALLOC_PITCHED:
    case OP_HOST_ALLOC:
        return lower_alloc(p, index, op, r);
    case OP_FREE:
    case OP_FREE_ASYNC:
    case OP_HOST_FREE:
        return lower_free(p, op, r);
    case OP_ALIAS:
        return lower_alias(p, op, r);
    case OP_TRIM:
        add_step(p, op->thread, DO_TRIM);
        return true;
    default: /* OP_PIN, OP_UNPIN */
        return lower_pin(p, op);
    }
}
