/* Work is held on one stream; a buffer that it uses is freed; memory of the same size is taken and
 * written on another stream. This is where early reuse shows. */
#include "generate.h"

static void enqueue(generator_t *g, op_t op)
{
    if (g->queued < QUEUE)
        g->queue[g->queued++] = op;
}

static void device_burst(generator_t *g, int thread, bool async)
{
    int buffer = pick_buffer(g, thread, false);
    if (buffer == NOBODY)
        return;
    const buffer_t *b = &g->p->buffers.at[buffer];
    int held = pick_stream(g, thread, buffer);
    op_t op = {.thread = thread, .a = buffer, .b = NOBODY, .stream = held, .to = b->device};
    op.kind = OP_HOLD;
    enqueue(g, op);
    op.kind = below(&g->r, 2) ? OP_SET : OP_CHECK;
    enqueue(g, op);
    op.kind = async ? OP_FREE_ASYNC : OP_FREE;
    enqueue(g, op);
    int times = full(g, thread) ? 1 : 1 + (int)below(&g->r, 3);
    for (int i = 0; i < times; i++) {
        op.kind = async ? OP_ALLOC_ASYNC : OP_ALLOC;
        op.bytes = b->bytes;
        if (async)
            op.stream = pick_stream(g, thread, buffer);
        enqueue(g, op);
        op.a = NEWEST;
        if (!async)
            op.stream = pick_stream(g, thread, buffer);
        op.kind = OP_SET;
        enqueue(g, op);
        if (below(&g->r, 2)) {
            op.kind = OP_CHECK;
            enqueue(g, op);
        }
    }
    op.kind = OP_OPEN;
    op.a = g->index;
    enqueue(g, op);
}

/* The buffer is freed while a graph that writes it is at work. */
static void graph_burst(generator_t *g, int thread)
{
    const list_t *l = &g->graphs[thread];
    int which = l->n ? l->at[below(&g->r, (uint32_t)l->n)] : NOBODY;
    if (which == NOBODY || !g->p->graphs.at[which].alive)
        return;
    const graph_t *graph = &g->p->graphs.at[which];
    int buffer = graph->n ? graph->work[0].to : NOBODY;
    if (!usable(g->p, thread, buffer, false))
        return;
    const buffer_t *b = &g->p->buffers.at[buffer];
    op_t op = {.thread = thread, .a = buffer, .b = NOBODY, .to = b->device};
    op.stream = pick_stream(g, thread, buffer);
    op.kind = OP_HOLD;
    enqueue(g, op);
    op.kind = OP_LAUNCH;
    op.a = which;
    enqueue(g, op);
    op.kind = b->async && below(&g->r, 2) ? OP_FREE_ASYNC : OP_FREE;
    op.a = buffer;
    enqueue(g, op);
    op.kind = OP_ALLOC;
    op.bytes = b->bytes;
    enqueue(g, op);
    op.kind = OP_SET;
    op.a = NEWEST;
    op.stream = pick_stream(g, thread, buffer);
    enqueue(g, op);
    op.kind = OP_OPEN;
    op.a = g->index;
    enqueue(g, op);
}

/* The pinned memory is the source or the destination of what is held. */
static void pinned_burst(generator_t *g, int thread)
{
    int host = pick_buffer(g, thread, true), device = pick_buffer(g, thread, false);
    if (host == NOBODY || device == NOBODY)
        return;
    op_t op = {.thread = thread, .a = device, .b = host};
    op.stream = pick_stream(g, thread, device);
    op.kind = OP_HOLD;
    enqueue(g, op);
    op.kind = below(&g->r, 2) ? OP_UPLOAD : OP_DOWNLOAD;
    enqueue(g, op);
    op.kind = OP_HOST_FREE;
    op.a = host;
    enqueue(g, op);
    op.kind = OP_HOST_ALLOC;
    op.bytes = g->p->buffers.at[host].bytes;
    enqueue(g, op);
    op.kind = OP_DOWNLOAD;
    op.a = pick_buffer(g, thread, false);
    op.b = NEWEST;
    op.stream = pick_stream(g, thread, op.a);
    enqueue(g, op);
    op.kind = OP_OPEN;
    op.a = g->index;
    op.b = NOBODY;
    enqueue(g, op);
}

void burst(generator_t *g, int thread)
{
    if (g->profile->launches && below(&g->r, 2)) {
        graph_burst(g, thread);
        return;
    }
    int percent = g->profile->async_bursts + g->profile->pinned_bursts ? (int)below(&g->r, 100) : 0;
    if (percent < g->profile->pinned_bursts)
        pinned_burst(g, thread);
    else
        device_burst(g, thread, percent < g->profile->pinned_bursts + g->profile->async_bursts);
}
