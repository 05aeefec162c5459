/* Lowers what is about order: streams, events, synchronisations, host functions that take time, and
 * the hand-over of buffers and streams between host threads. */
#include "random.h"
#include <string.h>

/* A lane for a stream that `thread` makes: unused, or one whose work the thread knows to be done.
 */
static int free_lane(const program_t *p, int thread, int device)
{
    for (int i = 0; i < MAX_LANES; i++) {
        const lane_t *l = &p->lanes[i];
        if (l->stream == NOBODY && (l->submitted == 0 || l->device == device) &&
            p->known[thread][i] >= l->submitted)
            return i;
    }
    return NOBODY;
}

bool add_stream(program_t *p, int stream, int thread, int device, bool blocking)
{
    int lane = free_lane(p, thread, device);
    if (lane == NOBODY)
        return false;
    p->streams.at[stream] = (stream_t){.alive = true,
                                       .blocking = blocking,
                                       .owner = thread,
                                       .device = device,
                                       .lane = lane,
                                       .posted = NOBODY};
    lane_t *l = &p->lanes[lane];
    l->stream = stream;
    l->device = device;
    memcpy(l->reached, p->known[thread], sizeof(clocks_t));
    memcpy(l->done, p->known[thread], sizeof(clocks_t));
    return true;
}

/* --- streams ------------------------------------------------------------------------------- */
static bool lower_stream_new(program_t *p, int index, const op_t *op, uint64_t *r)
{
    int stream = FIRST_OWN_STREAM + index;
    bool blocking = op->b == 1;
    if (!add_stream(p, stream, op->thread, op->to, blocking))
        return false;
    step_t *s = add_step(p, op->thread, DO_STREAM_NEW);
    s->device = op->to;
    s->stream = stream;
    s->value = blocking | below(r, 3) << 1; /* how it is made; which priority */
    return true;
}

static bool lower_stream_end(program_t *p, const op_t *op, uint64_t *r)
{
    if (!stream_usable(p, op->thread, op->stream) || op->stream < FIRST_OWN_STREAM)
        return false;
    stream_t *s = &p->streams.at[op->stream];
    lane_t *l = &p->lanes[s->lane];
    if (below(r, 2))
        order_sync_stream(p, op->thread, op->stream);
    else
        l->tail[op->thread] = order_record(p, op->thread, op->stream, NOBODY);
    step_t *step = add_step(p, op->thread, DO_STREAM_END);
    step->stream = op->stream;
    s->alive = false;
    l->stream = NOBODY;
    return true;
}

static bool lower_wait(program_t *p, const op_t *op, uint64_t *r)
{
    int t = op->thread;
    if (!stream_usable(p, t, op->stream))
        return false;
    int device = p->streams.at[op->stream].device;
    int *scratch = &p->scratch[t][device];
    step_t *s;
    switch (op->kind) {
    case OP_SYNC:
        order_sync_stream(p, t, op->stream);
        return true;
    case OP_POLL:
        if (below(r, 2)) {
            *scratch = order_record(p, t, op->stream, *scratch);
            s = add_step(p, t, DO_EVENT_QUERY);
            s->event = *scratch;
        } else {
            s = add_step(p, t, DO_STREAM_QUERY);
            s->device = device;
            s->stream = op->stream;
        }
        return true;
    case OP_FORK:
        if (!stream_usable(p, t, op->b) || op->b == op->stream)
            return false;
        *scratch = order_record(p, t, op->stream, *scratch);
        order_wait(p, t, op->b, *scratch);
        break;
    default: /* OP_EVENT_SYNC */
        *scratch = order_record(p, t, op->stream, *scratch);
        s = add_step(p, t, DO_EVENT_SYNC);
        s->event = *scratch;
        clocks_join(p->known[t], p->events.at[*scratch].reached);
    }
    if (below(r, 4) == 0) { /* an event may be destroyed at any time */
        s = add_step(p, t, DO_EVENT_END);
        s->event = *scratch;
        *scratch = NOBODY;
    }
    return true;
}

static bool lower_device_sync(program_t *p, const op_t *op)
{
    step_t *s = add_step(p, op->thread, DO_DEVICE_SYNC);
    s->device = op->to;
    for (int i = 0; i < MAX_LANES; i++) {
        int stream = p->lanes[i].stream;
        if (stream != NOBODY && p->streams.at[stream].owner == op->thread &&
            p->streams.at[stream].device == op->to)
            clocks_join(p->known[op->thread], p->lanes[i].reached);
    }
    return true;
}

static bool lower_call(program_t *p, int index, const op_t *op, uint64_t *r)
{
    if (!stream_usable(p, op->thread, op->stream))
        return false;
    order_begin(p, op->thread, op->stream);
    step_t *s = add_step(p, op->thread, op->kind == OP_HOLD ? DO_CALL_HOLD : DO_CALL_PAUSE);
    s->device = p->streams.at[op->stream].device;
    s->stream = op->stream;
    s->buffer = index;
    s->value = op->kind == OP_HOLD ? 300 + below(r, 700) : below(r, 100); /* us, at most */
    p->contexts.at[index] = (context_t){op->kind == OP_HOLD, op->thread, NOBODY};
    order_submit(p, op->stream);
    return true;
}

static bool lower_open(program_t *p, const op_t *op)
{
    if (op->a < 0 || op->a >= p->contexts.n || !p->contexts.at[op->a].alive)
        return false;
    p->contexts.at[op->a].alive = false;
    add_step(p, op->thread, DO_OPEN)->buffer = op->a;
    return true;
}

/* --- hand-over ----------------------------------------------------------------------------- */
static int post(program_t *p, int thread, int to)
{
    token_t *token = TABLE_ADD(p->tokens);
    memcpy(token->known, p->known[thread], sizeof(clocks_t));
    token->to = to;
    step_t *s = add_step(p, thread, DO_POST);
    s->buffer = p->tokens.n - 1;
    s->value = (uint64_t)to;
    return p->tokens.n - 1;
}

static bool take(program_t *p, int thread, int *posted)
{
    if (*posted == NOBODY || p->tokens.at[*posted].to != thread)
        return false;
    add_step(p, thread, DO_TAKE)->buffer = *posted;
    clocks_join(p->known[thread], p->tokens.at[*posted].known);
    *posted = NOBODY;
    return true;
}

static bool lower_give(program_t *p, const op_t *op, uint64_t *r)
{
    int t = op->thread;
    if (op->to == t || op->to >= p->threads || !stream_usable(p, t, op->stream) ||
        !usable(p, t, op->a, false))
        return false;
    buffer_t *b = &p->buffers.at[op->a];
    if (below(r, 4) == 0) {
        order_host(p, t, op->a, true, r);
        b->handed = NOBODY;
    } else {
        /* One event behind everything that was done to the buffer goes with it. */
        order_access(p, t, op->stream, op->a, true, r);
        lower_nothing(p, t, op->stream);
        b->handed = order_record(p, t, op->stream, NOBODY);
    }
    b->posted = post(p, t, op->to);
    b->owner = NOBODY;
    p->live[t] -= b->room;
    return true;
}

static bool lower_take(program_t *p, const op_t *op)
{
    if (op->a < 0 || op->a >= p->ops_n)
        return false;
    buffer_t *b = &p->buffers.at[op->a];
    if (!b->alive || b->owner != NOBODY || !take(p, op->thread, &b->posted))
        return false;
    b->owner = op->thread;
    p->live[op->thread] += b->room;
    return true;
}

static bool lower_give_stream(program_t *p, const op_t *op)
{
    int t = op->thread;
    if (op->to == t || op->to >= p->threads || !stream_usable(p, t, op->stream) ||
        p->streams.at[op->stream].per_thread)
        return false;
    stream_t *s = &p->streams.at[op->stream];
    p->lanes[s->lane].tail[t] = order_record(p, t, op->stream, NOBODY);
    s->posted = post(p, t, op->to);
    s->owner = NOBODY;
    return true;
}

static bool lower_take_stream(program_t *p, const op_t *op)
{
    if (op->stream < 0 || op->stream >= p->streams.n)
        return false;
    stream_t *s = &p->streams.at[op->stream];
    if (!s->alive || s->owner != NOBODY || !take(p, op->thread, &s->posted))
        return false;
    s->owner = op->thread;
    return true;
}

bool lower_order(program_t *p, int index, const op_t *op, uint64_t *r)
{
    switch (op->kind) {
    case OP_HOLD:
    case OP_PAUSE:
        return lower_call(p, index, op, r);
    case OP_OPEN:
        return lower_open(p, op);
    case OP_FORK:
    case OP_POLL:
    case OP_SYNC:
    case OP_EVENT_SYNC:
        return lower_wait(p, op, r);
    case OP_DEVICE_SYNC:
        return lower_device_sync(p, op);
    case OP_STREAM_NEW:
        return lower_stream_new(p, index, op, r);
    case OP_STREAM_END:
        return lower_stream_end(p, op, r);
    case OP_GIVE:
        return lower_give(p, op, r);
    case OP_TAKE:
        return lower_take(p, op);
    case OP_GIVE_STREAM:
        return lower_give_stream(p, op);
    case OP_TAKE_STREAM:
        return lower_take_stream(p, op);
    default:
        return false;
    }
}
