/* Turns operations into steps: contexts, resets, the end. Operations that touch bytes are in
 * data.c, those that take and free memory in memory.c, graphs in graphs.c, those about order in
 * streams.c. An operation that cannot be done because something it needs was left out is skipped,
 * so every subset of a program is a program. */
#include "random.h"
#include <stdlib.h>
#include <string.h>

bool usable(const program_t *p, int thread, int buffer, bool host)
{
    if (buffer < 0 || buffer >= p->buffers.n)
        return false;
    const buffer_t *b = &p->buffers.at[buffer];
    return b->alive && b->owner == thread && b->host == host;
}

bool stream_usable(const program_t *p, int thread, int stream)
{
    return stream >= 0 && stream < p->streams.n && p->streams.at[stream].alive &&
           p->streams.at[stream].owner == thread && !p->streams.at[stream].capturing;
}

bool stream_reaches(const program_t *p, int stream, int buffer)
{
    const buffer_t *b = &p->buffers.at[buffer];
    /* Peer access is enabled for cudaMalloc's memory, not for that of the driver's pool. */
    return b->host || (p->peers && !b->async) || b->device == p->streams.at[stream].device;
}

step_t *stream_step(program_t *p, int thread, do_t what, int stream, int buffer)
{
    step_t *s = add_step(p, thread, what);
    s->device = p->streams.at[stream].device;
    s->stream = stream;
    s->buffer = buffer;
    return s;
}

void lower_nothing(program_t *p, int thread, int stream)
{
    order_begin(p, thread, stream);
    stream_step(p, thread, DO_CALL_PAUSE, stream, NOBODY);
    order_submit(p, stream);
}

/* --- start --------------------------------------------------------------------------------- */
void program_init(program_t *p, int ops_n, int threads, int devices)
{
    memset(p, 0, sizeof(*p));
    p->threads = threads;
    p->devices = devices;
    p->ops_n = ops_n;
    p->current = NOBODY;
    p->buffers.n = ops_n + threads * STAGES;
    p->buffers.at = table_room(NULL, p->buffers.n, &p->buffers.room, sizeof(buffer_t));
    p->streams.n = ops_n + FIRST_OWN_STREAM;
    p->streams.at = table_room(NULL, p->streams.n, &p->streams.room, sizeof(stream_t));
    p->contexts.n = ops_n;
    p->contexts.at = table_room(NULL, ops_n, &p->contexts.room, sizeof(context_t));
    p->graphs.n = ops_n;
    p->graphs.at = table_room(NULL, ops_n, &p->graphs.room, sizeof(graph_t));
    for (int i = 0; i < MAX_LANES; i++) {
        p->lanes[i].stream = NOBODY;
        for (int t = 0; t < MAX_THREADS; t++)
            p->lanes[i].tail[t] = NOBODY;
    }
    for (int t = 0; t < MAX_THREADS; t++) {
        p->first[t] = p->last[t] = NOBODY;
        for (int d = 0; d < MAX_DEVICES; d++)
            p->scratch[t][d] = NOBODY;
    }
    for (int d = 0; d < devices; d++) {
        add_stream(p, d, 0, d, false);
        p->streams.at[d].legacy = true;
        for (int t = 0; t < threads; t++) {
            add_stream(p, per_thread_stream(t, d), t, d, true);
            p->streams.at[per_thread_stream(t, d)].per_thread = true;
        }
    }
    for (int t = 0; t < threads; t++)
        add_stages(p, t);
}

/* --- contexts, reset, end ------------------------------------------------------------------ */
static bool lower_context(program_t *p, int index, const op_t *op, uint64_t *r)
{
    int which = op->kind == OP_CTX_NEW ? index : op->a;
    if (which < 0 || which >= p->contexts.n)
        return false;
    context_t *c = &p->contexts.at[which];
    if (op->kind == OP_CTX_NEW)
        *c = (context_t){true, op->thread, op->to};
    else if (!c->alive || c->owner != op->thread)
        return false;
    step_t *s = add_step(p, op->thread,
                         op->kind == OP_CTX_NEW   ? DO_CTX_NEW
                         : op->kind == OP_CTX_USE ? DO_CTX_USE
                                                  : DO_CTX_END);
    s->device = c->device;
    s->buffer = which;
    s->value = draw(r);
    c->alive = op->kind != OP_CTX_END;
    return true;
}

static void end_contexts(program_t *p)
{
    for (int i = 0; i < p->contexts.n; i++) {
        const context_t *c = &p->contexts.at[i];
        uint64_t r = 0;
        op_t end = {.kind = OP_CTX_END, .thread = c->owner, .a = i};
        if (c->alive && c->device != NOBODY)
            lower_context(p, i, &end, &r);
    }
}

static bool lower_reset(program_t *p, const op_t *op)
{
    end_captures(p);
    end_contexts(p);
    for (int t = 0; t < p->threads; t++)
        add_step(p, t, DO_BARRIER);
    add_step(p, op->thread, DO_RESET);
    for (int t = 0; t < p->threads; t++)
        add_step(p, t, DO_BARRIER);
    for (int i = 0; i < p->ops_n; i++)
        p->buffers.at[i].alive = p->graphs.at[i].alive = false;
    for (int i = 0; i < p->streams.n; i++) {
        stream_t *s = &p->streams.at[i];
        if (s->legacy && s->owner == NOBODY)
            s->owner = op->thread; /* the token is forgotten */
        s->posted = NOBODY;
        s->alive = s->alive && i < FIRST_OWN_STREAM;
    }
    for (int i = 0; i < MAX_LANES; i++) {
        lane_t *l = &p->lanes[i];
        if (l->stream != NOBODY && !p->streams.at[l->stream].alive)
            l->stream = NOBODY;
        for (int t = 0; t < MAX_THREADS; t++) {
            p->known[t][i] = l->submitted;
            l->tail[t] = NOBODY;
        }
    }
    for (int t = 0; t < p->threads; t++) {
        p->live[t] = 0;
        for (int d = 0; d < MAX_DEVICES; d++)
            p->scratch[t][d] = NOBODY;
        add_stages(p, t);
    }
    return true;
}

/* Everything is taken, looked at, freed. */
static void lower_end(program_t *p, const op_t *op)
{
    op_t o = *op;
    uint64_t r = op->r;
    end_captures(p);
    for (int i = 0; i < p->streams.n; i++) {
        if (!p->streams.at[i].alive || p->streams.at[i].posted == NOBODY)
            continue;
        o.thread = p->tokens.at[p->streams.at[i].posted].to;
        o.stream = i;
        o.kind = OP_TAKE_STREAM;
        lower_order(p, NOBODY, &o, &r);
    }
    for (int i = 0; i < p->ops_n; i++) {
        buffer_t *b = &p->buffers.at[i];
        o.a = i;
        if (b->alive && b->posted != NOBODY) {
            o.thread = p->tokens.at[b->posted].to;
            o.kind = OP_TAKE;
            lower_order(p, NOBODY, &o, &r);
        }
        if (!b->alive)
            continue;
        o.thread = b->owner;
        o.stream = per_thread_stream(o.thread, b->device);
        o.to = b->device;
        o.kind = b->host ? OP_HOST_CHECK : OP_CHECK;
        lower_data(p, i, &o, &r);
        o.kind = b->host ? OP_HOST_FREE : b->async && below(&r, 2) ? OP_FREE_ASYNC : OP_FREE;
        while (b->alive && lower_free(p, &o, &r)) {
        }
    }
    for (int i = 0; i < p->ops_n; i++) {
        o = (op_t){.kind = OP_GRAPH_END, .thread = p->graphs.at[i].owner, .a = i};
        lower_graph(p, NOBODY, &o, &r);
    }
    for (int t = 0; t < p->threads; t++)
        for (o = (op_t){.kind = OP_UNPIN, .thread = t}; p->pins[t];)
            lower_memory(p, NOBODY, &o, &r);
    end_contexts(p);
    for (int t = 0; t < p->threads; t++) {
        for (int i = 0; i < STAGES; i++) {
            int stage = p->ops_n + t * STAGES + i;
            order_host(p, t, stage, true, &r);
            step_t *s = add_step(p, t, DO_HOST_FREE);
            s->buffer = stage;
        }
    }
    for (int i = FIRST_OWN_STREAM; i < p->streams.n; i++) {
        o.stream = i;
        o.thread = p->streams.at[i].owner;
        o.kind = OP_STREAM_END;
        lower_order(p, NOBODY, &o, &r);
    }
}

void lower(program_t *p, int index, const op_t *op)
{
    uint64_t r = op->r;
    bool done;
    p->current = index;
    switch (op->kind) {
    case OP_ALLOC:
    case OP_ALLOC_ASYNC:
    case OP_ALLOC_PITCHED:
    case OP_HOST_ALLOC:
    case OP_FREE:
    case OP_FREE_ASYNC:
    case OP_HOST_FREE:
    case OP_ALIAS:
    case OP_TRIM:
    case OP_PIN:
    case OP_UNPIN:
        done = lower_memory(p, index, op, &r);
        break;
    case OP_CAPTURE:
    case OP_CAPTURE_END:
    case OP_LAUNCH:
    case OP_GRAPH_END:
    case OP_REFUSED:
        done = lower_graph(p, index, op, &r);
        break;
    case OP_HOLD:
    case OP_PAUSE:
    case OP_OPEN:
    case OP_FORK:
    case OP_POLL:
    case OP_SYNC:
    case OP_EVENT_SYNC:
    case OP_DEVICE_SYNC:
    case OP_STREAM_NEW:
    case OP_STREAM_END:
    case OP_GIVE:
    case OP_TAKE:
    case OP_GIVE_STREAM:
    case OP_TAKE_STREAM:
        done = lower_order(p, index, op, &r);
        break;
    case OP_CTX_NEW:
    case OP_CTX_USE:
    case OP_CTX_END:
        done = lower_context(p, index, op, &r);
        break;
    case OP_RESET:
        done = lower_reset(p, op);
        break;
    case OP_END:
        lower_end(p, op);
        done = true;
        break;
    default:
        done = lower_data(p, index, op, &r);
        break;
    }
    p->skipped += !done;
}
