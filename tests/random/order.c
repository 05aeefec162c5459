/* What has happened before what, as vector clocks over the streams ("lanes"), and the events, waits
 * and synchronisations that make it so.
 *
 * A thread orders only streams that it owns, because only of those does it know what was submitted
 * before what. For streams of others, or gone ones, there are the events recorded when they were
 * given away. Claims are the least that CUDA promises: what happens to be ordered as well (another
 * thread's legacy stream, the wait in cudaFree) is never counted on. */
#include "random.h"
#include <stdlib.h>
#include <string.h>

void *table_room(void *at, int needed, int *room, size_t each)
{
    if (needed <= *room)
        return at;
    int more = *room ? *room * 2 : 64;
    while (more < needed)
        more *= 2;
    at = realloc(at, (size_t)more * each);
    if (!at)
        abort();
    memset((char *)at + (size_t)*room * each, 0, (size_t)(more - *room) * each);
    *room = more;
    return at;
}

void clocks_join(clocks_t into, const clocks_t from)
{
    for (int i = 0; i < MAX_LANES; i++)
        if (into[i] < from[i])
            into[i] = from[i];
}

step_t *add_step(program_t *p, int thread, do_t what)
{
    step_t *s = TABLE_ADD(p->steps);
    int index = p->steps.n - 1;
    *s = (step_t){.what = what,
                  .op = p->current,
                  .thread = thread,
                  .device = NOBODY,
                  .buffer = NOBODY,
                  .from = NOBODY,
                  .stream = NOBODY,
                  .event = NOBODY,
                  .next = NOBODY};
    if (p->last[thread] == NOBODY)
        p->first[thread] = index;
    else
        p->steps.at[p->last[thread]].next = index;
    p->last[thread] = index;
    return s;
}

static lane_t *lane_of(program_t *p, int stream)
{
    return &p->lanes[p->streams.at[stream].lane];
}

void order_begin(program_t *p, int thread, int stream)
{
    const stream_t *s = &p->streams.at[stream];
    lane_t *lane = lane_of(p, stream);
    clocks_join(lane->reached, p->known[thread]);
    if (s->legacy) {
        for (int i = 0; i < MAX_LANES; i++) {
            int other = p->lanes[i].stream;
            if (other == NOBODY || other == stream)
                continue;
            const stream_t *o = &p->streams.at[other];
            if (o->blocking && o->owner == thread && o->device == s->device)
                clocks_join(lane->reached, p->lanes[i].done);
        }
    } else if (s->blocking && p->streams.at[s->device].owner == thread) {
        clocks_join(lane->reached, lane_of(p, s->device)->done);
    }
}

int order_record(program_t *p, int thread, int stream, int event)
{
    int device = p->streams.at[stream].device;
    if (event == NOBODY) {
        TABLE_ADD(p->events)->device = device;
        event = p->events.n - 1;
    }
    lane_t *lane = lane_of(p, stream);
    clocks_join(lane->reached, p->known[thread]);
    memcpy(p->events.at[event].reached, lane->reached, sizeof(clocks_t));
    step_t *s = add_step(p, thread, DO_RECORD);
    s->device = device;
    s->event = event;
    s->stream = stream;
    return event;
}

void order_wait(program_t *p, int thread, int stream, int event)
{
    step_t *s = add_step(p, thread, DO_WAIT);
    s->device = p->streams.at[stream].device;
    s->event = event;
    s->stream = stream;
    lane_t *lane = lane_of(p, stream);
    clocks_join(lane->reached, p->known[thread]);
    clocks_join(lane->reached, p->events.at[event].reached);
}

void order_sync_stream(program_t *p, int thread, int stream)
{
    step_t *s = add_step(p, thread, DO_STREAM_SYNC);
    s->device = p->streams.at[stream].device;
    s->stream = stream;
    clocks_join(p->known[thread], lane_of(p, stream)->reached);
}

/* May the thread make an event of this stream, or wait for it? */
static bool within(const program_t *p, int thread, int stream)
{
    return stream != NOBODY && p->streams.at[stream].owner == thread &&
           !p->streams.at[stream].capturing;
}

/* An event that covers operation `number` of a lane. Where the stream is the thread's own it is
 * recorded now; the event is one for the moment and is recorded again soon. */
static int event_covering(program_t *p, int thread, int lane, uint32_t number, const buffer_t *b)
{
    int stream = p->lanes[lane].stream;
    if (within(p, thread, stream)) {
        int *scratch = &p->scratch[thread][p->streams.at[stream].device];
        *scratch = order_record(p, thread, stream, *scratch);
        return *scratch;
    }
    if (b->handed != NOBODY && p->events.at[b->handed].reached[lane] >= number)
        return b->handed;
    int tail = p->lanes[lane].tail[thread];
    if (tail != NOBODY && p->events.at[tail].reached[lane] >= number)
        return tail;
    abort(); /* a buffer's work is always within its owner's reach: a bug of this file */
}

/* The next access to `b` that an access has to wait for and is not in `clocks`, or false. */
static bool conflict(const buffer_t *b, const clocks_t clocks, bool write, int *lane,
                     uint32_t *number)
{
    if (b->writer != NOBODY && clocks[b->writer] < b->written) {
        *lane = b->writer;
        *number = b->written;
        return true;
    }
    for (int i = 0; write && i < MAX_LANES; i++) {
        if (b->read[i] > clocks[i]) {
            *lane = i;
            *number = b->read[i];
            return true;
        }
    }
    return false;
}

static void access_after(program_t *p, int thread, int stream, int buffer, bool write, uint64_t *r,
                         void (*begin)(program_t *, int, int))
{
    int lane, own = p->streams.at[stream].lane;
    uint32_t number;
    const buffer_t *b = &p->buffers.at[buffer];
    begin(p, thread, stream);
    /* On its own lane everything submitted is in order. */
    p->lanes[own].reached[own] = p->lanes[own].submitted;
    while (conflict(b, p->lanes[own].reached, write, &lane, &number)) {
        int other = p->lanes[lane].stream;
        if (within(p, thread, other) && below(r, 8) == 0) {
            order_sync_stream(p, thread, other);
        } else {
            int event = event_covering(p, thread, lane, number, b);
            if (below(r, 16) == 0) {
                step_t *s = add_step(p, thread, DO_EVENT_SYNC);
                s->event = event;
                clocks_join(p->known[thread], p->events.at[event].reached);
            } else {
                order_wait(p, thread, stream, event);
            }
        }
        begin(p, thread, stream);
    }
}

void order_access(program_t *p, int thread, int stream, int buffer, bool write, uint64_t *r)
{
    access_after(p, thread, stream, buffer, write, r, order_begin);
}

static void begin_plainly(program_t *p, int thread, int stream)
{
    clocks_join(lane_of(p, stream)->reached, p->known[thread]);
}

void order_source(program_t *p, int thread, int stream, int buffer, uint64_t *r)
{
    access_after(p, thread, stream, buffer, false, r, begin_plainly);
}

void order_host(program_t *p, int thread, int buffer, bool write, uint64_t *r)
{
    int lane;
    uint32_t number;
    const buffer_t *b = &p->buffers.at[buffer];
    while (conflict(b, p->known[thread], write, &lane, &number)) {
        int other = p->lanes[lane].stream;
        if (within(p, thread, other) && below(r, 2) == 0) {
            order_sync_stream(p, thread, other);
        } else {
            int event = event_covering(p, thread, lane, number, b);
            step_t *s = add_step(p, thread, DO_EVENT_SYNC);
            s->event = event;
            clocks_join(p->known[thread], p->events.at[event].reached);
        }
    }
}

void order_submit(program_t *p, int stream)
{
    int lane = p->streams.at[stream].lane;
    lane_t *l = &p->lanes[lane];
    l->reached[lane] = ++l->submitted;
    memcpy(l->done, l->reached, sizeof(clocks_t));
}

void order_submit_quietly(program_t *p, int stream)
{
    int lane = p->streams.at[stream].lane;
    lane_t *l = &p->lanes[lane];
    l->reached[lane] = ++l->submitted;
}

void order_note(program_t *p, int stream, int buffer, bool write)
{
    buffer_t *b = &p->buffers.at[buffer];
    int lane = p->streams.at[stream].lane;
    uint32_t number = p->lanes[lane].submitted;
    if (write) {
        memset(b->read, 0, sizeof(clocks_t));
        b->writer = lane;
        b->written = number;
    } else {
        b->read[lane] = number;
    }
}
