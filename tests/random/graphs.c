/* Lowers captures and graphs. A stream begins to capture and takes a few sets and copies; until the
 * capture ends nothing else is done with the stream, while its thread and others go on. A graph is
 * then launched on any stream, as one operation, for as long as its buffers live.
 *
 * Meanwhile no thread may synchronise a device (profiles with captures leave that out), and other
 * calls are allowed because captures that last are begun in relaxed mode. Streams that capture are
 * non-blocking: the legacy stream stays free. What a capture refuses is tried in one of its own,
 * which that spoils: it begins and ends with the operation, in the mode of one thread. */
#include "random.h"
#include <stdlib.h>

/* What a launch changes. False, and no change, where it takes too many extents. */
static bool apply(program_t *p, const graph_t *g)
{
    content_t after[GRAPH_WORK];
    for (int i = 0; i < g->n; i++) {
        int to = g->work[i].to, from = g->work[i].from;
        const content_t *source = from == NOBODY ? NULL : &p->buffers.at[from].content;
        after[i] = p->buffers.at[to].content;
        for (int k = 0; k < i; k++) {
            if (g->work[k].to == to)
                after[i] = after[k];
            if (g->work[k].to == from)
                source = &after[k];
        }
        extent_t fill = {.kind = FILL, .id = g->work[i].value};
        if (from == NOBODY ? !content_put(&after[i], g->work[i].offset, g->work[i].bytes, fill)
                           : !content_copy(&after[i], g->work[i].offset, g->work[i].bytes, source,
                                           g->work[i].from_offset))
            return false;
    }
    for (int i = 0; i < g->n; i++)
        p->buffers.at[g->work[i].to].content = after[i];
    return true;
}

/* Work like that of the program: a set of a part, or a copy from another buffer. */
static void draw_work(const program_t *p, graph_t *g, const op_t *op, uint64_t *r)
{
    for (g->n = 0; g->n < 1 + (int)below(r, GRAPH_WORK);) {
        int to = op->a, from = NOBODY;
        if (op->b != NOBODY && op->b != op->a && below(r, 2)) {
            from = below(r, 2) ? op->a : op->b;
            to = from == op->a ? op->b : op->a;
        } else if (p->buffers.at[to].host) {
            return;
        }
        uint64_t most = p->buffers.at[to].bytes;
        if (from != NOBODY && p->buffers.at[from].bytes < most)
            most = p->buffers.at[from].bytes;
        g->work[g->n].bytes = 1 + draw(r) % most;
        g->work[g->n].offset = draw(r) % (p->buffers.at[to].bytes - g->work[g->n].bytes + 1);
        if (from != NOBODY)
            g->work[g->n].from_offset =
                draw(r) % (p->buffers.at[from].bytes - g->work[g->n].bytes + 1);
        g->work[g->n].through = below(r, 4) == 0;
        g->work[g->n].value = below(r, 256);
        g->work[g->n].to = to;
        g->work[g->n++].from = from;
    }
}

static void add_work(program_t *p, const graph_t *g)
{
    for (int i = 0; i < g->n; i++) {
        do_t what = g->work[i].from == NOBODY ? DO_SET
                    : g->work[i].through      ? DO_GRAPH_COPY
                                              : DO_COPY;
        step_t *s = stream_step(p, g->owner, what, g->stream, g->work[i].to);
        s->from = g->work[i].from;
        s->offset = g->work[i].offset;
        s->from_offset = g->work[i].from_offset;
        s->bytes = g->work[i].bytes;
        s->value = g->work[i].from == NOBODY ? g->work[i].value : 2;
    }
}

/* May the buffer be part of a graph that runs on this stream's device? */
static bool fits(const program_t *p, int thread, int stream, int buffer)
{
    return (usable(p, thread, buffer, false) || usable(p, thread, buffer, true)) &&
           stream_reaches(p, stream, buffer) && p->buffers.at[buffer].width == 0 &&
           (p->buffers.at[buffer].host ||
            p->buffers.at[buffer].device == p->streams.at[stream].device);
}

static bool end(program_t *p, int which, bool kept)
{
    graph_t *g = &p->graphs.at[which];
    if (!g->capturing)
        return false;
    kept = kept && p->launches;
    /* What is instantiated must be there: the driver looks memory up that is copied. */
    for (int i = 0; i < g->n; i++)
        kept = kept && fits(p, g->owner, g->stream, g->work[i].to) &&
               (g->work[i].from == NOBODY || fits(p, g->owner, g->stream, g->work[i].from));
    step_t *s = stream_step(p, g->owner, DO_GRAPH_END, g->stream, which);
    s->value = kept ? INSTANTIATED : 0;
    g->capturing = false;
    g->alive = kept;
    p->streams.at[g->stream].capturing = false;
    return true;
}

void end_captures(program_t *p)
{
    for (int i = 0; i < p->graphs.n; i++)
        end(p, i, false);
}

static bool capture(program_t *p, int index, const op_t *op, uint64_t *r)
{
    int t = op->thread;
    if (!stream_usable(p, t, op->stream) || p->streams.at[op->stream].blocking ||
        op->stream < FIRST_OWN_STREAM || !fits(p, t, op->stream, op->a) ||
        (op->b != NOBODY && !fits(p, t, op->stream, op->b)) ||
        (op->b != NOBODY && p->buffers.at[op->a].host && p->buffers.at[op->b].host))
        return false;
    graph_t *g = &p->graphs.at[index];
    *g = (graph_t){.owner = t, .stream = op->stream, .capturing = true};
    draw_work(p, g, op, r);
    /* Who has to wait for the stream's earlier work meanwhile waits for this event. */
    p->lanes[p->streams.at[op->stream].lane].tail[t] = order_record(p, t, op->stream, NOBODY);
    bool at_once = below(r, 3) == 0;
    step_t *s = stream_step(p, t, DO_GRAPH_BEGIN, op->stream, index);
    s->value = at_once; /* no unsafe call of this thread comes between: a stricter mode will do */
    p->streams.at[op->stream].capturing = true;
    add_work(p, g);
    if (at_once)
        end(p, index, true);
    return true;
}

static bool launch(program_t *p, const op_t *op, uint64_t *r)
{
    const graph_t *g = &p->graphs.at[op->a];
    int t = op->thread;
    if (!g->alive || g->owner != t || !stream_usable(p, t, op->stream) ||
        p->streams.at[op->stream].device != p->streams.at[g->stream].device)
        return false;
    for (int i = 0; i < g->n; i++)
        if (!fits(p, t, op->stream, g->work[i].to) ||
            (g->work[i].from != NOBODY && !fits(p, t, op->stream, g->work[i].from)))
            return false;
    for (int i = 0; i < g->n; i++) {
        define(p, t, op->stream, g->work[i].to, r);
        if (g->work[i].from != NOBODY)
            define(p, t, op->stream, g->work[i].from, r);
    }
    if (!apply(p, g))
        return false;
    for (int i = 0; i < g->n; i++) {
        order_access(p, t, op->stream, g->work[i].to, true, r);
        if (g->work[i].from != NOBODY)
            order_access(p, t, op->stream, g->work[i].from, false, r);
    }
    stream_step(p, t, DO_GRAPH_LAUNCH, op->stream, op->a);
    order_submit(p, op->stream);
    for (int i = 0; i < g->n; i++)
        if (g->work[i].from != NOBODY)
            order_note(p, op->stream, g->work[i].from, false);
    for (int i = 0; i < g->n; i++)
        order_note(p, op->stream, g->work[i].to, true);
    return true;
}

/* The buffer stays, and so does what it holds. */
static bool refused(program_t *p, const op_t *op, uint64_t *r)
{
    bool frees = op->a != NOBODY && below(r, 2);
    if (!stream_usable(p, op->thread, op->stream) || p->streams.at[op->stream].blocking ||
        op->stream < FIRST_OWN_STREAM || (frees && !usable(p, op->thread, op->a, false)))
        return false;
    step_t *s = stream_step(p, op->thread, DO_REFUSED, op->stream, frees ? op->a : NOBODY);
    s->bytes = 1 + draw(r) % 5000000;
    s->value = below(r, 2); /* whether plain memory, or pinned, is asked for */
    return true;
}

bool lower_graph(program_t *p, int index, const op_t *op, uint64_t *r)
{
    if (op->kind == OP_CAPTURE)
        return capture(p, index, op, r);
    if (op->kind == OP_REFUSED)
        return refused(p, op, r);
    if (op->a < 0 || op->a >= p->graphs.n || p->graphs.at[op->a].owner != op->thread)
        return false;
    graph_t *g = &p->graphs.at[op->a];
    switch (op->kind) {
    case OP_CAPTURE_END:
        return end(p, op->a, below(r, 8) != 0);
    case OP_LAUNCH:
        return launch(p, op, r);
    default: /* OP_GRAPH_END */
        if (!g->alive)
            return false;
        g->alive = false;
        add_step(p, op->thread, DO_GRAPH_DESTROY)->buffer = op->a;
        return true;
    }
}
