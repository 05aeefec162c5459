/* Draws operations, each from what exists when it would be done. Lowering them at once tells what
 * exists. Lists of candidates are cleaned up when a dead one is drawn. */
#include "generate.h"
#include <string.h>

static void keep(list_t *l, int value)
{
    if (l->n < LIST)
        l->at[l->n++] = value;
}

static int drop(list_t *l, int i)
{
    int value = l->at[i];
    l->at[i] = l->at[--l->n];
    return value;
}

int pick_buffer(generator_t *g, int thread, bool host)
{
    list_t *l = host ? &g->host[thread] : &g->device[thread];
    while (l->n) {
        int i = (int)below(&g->r, (uint32_t)l->n);
        if (usable(g->p, thread, l->at[i], host))
            return l->at[i];
        drop(l, i);
    }
    return NOBODY;
}

int pick_stream(generator_t *g, int thread, int buffer)
{
    list_t *l = &g->streams[thread];
    if (g->profile->steady && (int)below(&g->r, 100) < g->profile->steady) {
        int first = l->n ? l->at[0] : 0;
        if (stream_usable(g->p, thread, first) &&
            (buffer == NOBODY || stream_reaches(g->p, first, buffer)))
            return first;
    }
    for (int tries = 0; tries < 8; tries++) {
        uint32_t which = below(&g->r, (uint32_t)l->n + 2);
        int device = (int)below(&g->r, (uint32_t)g->p->devices), stream;
        if (which < (uint32_t)l->n) {
            stream = l->at[which];
            if (!stream_usable(g->p, thread, stream)) {
                if (!g->p->streams.at[stream].capturing)
                    drop(l, (int)which);
                continue;
            }
        } else {
            stream = which == (uint32_t)l->n ? per_thread_stream(thread, device) : device;
        }
        if (stream_usable(g->p, thread, stream) &&
            (buffer == NOBODY || stream_reaches(g->p, stream, buffer)))
            return stream;
    }
    return per_thread_stream(thread, buffer == NOBODY ? 0 : g->p->buffers.at[buffer].device);
}

static uint64_t some_bytes(generator_t *g)
{
    static const uint32_t large_kib[] = {700, 1500, 2500, 4096, 5000}; /* some end an epoch */
    uint64_t *r = &g->r;
    if (g->profile->sizes == LARGE)
        return (uint64_t)large_kib[below(r, 5)] << 10;
    if (g->profile->sizes)
        return UINT64_C(1000) << 2 * below(r, (uint32_t)g->profile->sizes);
    uint32_t kind = below(r, 200);
    int low = kind == 0 ? 20 : kind < 10 ? 16 : 8, high = kind == 0 ? 23 : kind < 10 ? 20 : 16;
    uint64_t bytes = UINT64_C(1) << (low + (int)below(r, (uint32_t)(high - low)));
    return below(r, 2) ? bytes : bytes + draw(r) % bytes;
}

bool full(const generator_t *g, int thread)
{
    return g->device[thread].n > g->profile->buffers * 3 / 2 ||
           g->p->live[thread] > (uint64_t)LIVE_BYTES / (unsigned)g->p->threads;
}

static op_kind_t some_kind(generator_t *g)
{
    int at = (int)below(&g->r, (uint32_t)g->weights);
    for (int k = 0; k < OP_COUNT; k++)
        if ((at -= g->weight[k]) < 0)
            return (op_kind_t)k;
    return OP_POLL;
}

static int pick_listed(generator_t *g, list_t *l, bool remove)
{
    if (l->n == 0)
        return NOBODY;
    int i = (int)below(&g->r, (uint32_t)l->n);
    return remove ? drop(l, i) : l->at[i];
}

/* Does all live that the graph works on? */
static bool launchable(const program_t *p, int thread, const graph_t *graph)
{
    for (int i = 0; i < graph->n; i++) {
        int to = graph->work[i].to, from = graph->work[i].from;
        if (!usable(p, thread, to, p->buffers.at[to].host) ||
            (from != NOBODY && !usable(p, thread, from, p->buffers.at[from].host)))
            return false;
    }
    return true;
}

/* One of the thread's graphs that the operation is for: being captured, fit to be launched, or
 * preferably not. */
static int pick_graph(generator_t *g, int thread, op_kind_t kind)
{
    int other = NOBODY;
    list_t *l = &g->graphs[thread];
    for (int tries = 0; tries < 8 && l->n; tries++) {
        int i = (int)below(&g->r, (uint32_t)l->n);
        const graph_t *graph = &g->p->graphs.at[l->at[i]];
        if (!graph->alive && !graph->capturing)
            drop(l, i);
        else if (graph->capturing != (kind == OP_CAPTURE_END))
            continue;
        else if (graph->capturing || launchable(g->p, thread, graph) == (kind == OP_LAUNCH))
            return l->at[i];
        else
            other = l->at[i];
    }
    return other;
}

static int pick_launch_stream(generator_t *g, int thread, int graph)
{
    int stream = NOBODY;
    for (int tries = 0; tries < 4 && graph != NOBODY; tries++) {
        stream = pick_stream(g, thread, NOBODY);
        if (g->p->streams.at[stream].device ==
            g->p->streams.at[g->p->graphs.at[graph].stream].device)
            break;
    }
    return stream;
}

/* A stream that may capture, and memory of its device. */
static void draw_capture(generator_t *g, op_t *op)
{
    for (int tries = 0; tries < 4; tries++) {
        op->stream = pick_stream(g, op->thread, NOBODY);
        if (op->stream >= FIRST_OWN_STREAM)
            break;
    }
    for (int tries = 0; tries < 4; tries++) {
        op->a = pick_buffer(g, op->thread, false);
        op->b = pick_buffer(g, op->thread, below(&g->r, 2));
        if (op->a != NOBODY && stream_reaches(g->p, op->stream, op->a) && op->b != NOBODY &&
            stream_reaches(g->p, op->stream, op->b))
            return;
    }
}

static op_t propose(generator_t *g)
{
    program_t *p = g->p;
    uint64_t *r = &g->r;
    int t = (int)below(r, (uint32_t)p->threads);
    op_t op = {.kind = some_kind(g), .thread = t, .a = NOBODY, .b = NOBODY, .stream = NOBODY};
    op.to = (int)below(r, (uint32_t)p->devices);
    if (g->index < g->most_streams)
        op.kind = OP_STREAM_NEW;
    bool takes = op.kind == OP_ALLOC || op.kind == OP_ALLOC_ASYNC || op.kind == OP_ALLOC_PITCHED;
    if (takes && full(g, t))
        op.kind = op.kind == OP_ALLOC_ASYNC ? OP_FREE_ASYNC : OP_FREE;
    if (op.kind == OP_FREE && !full(g, t) && g->device[t].n < g->profile->buffers / 2)
        op.kind = OP_ALLOC;
    switch (op.kind) {
    case OP_ALLOC:
    case OP_ALLOC_ASYNC:
    case OP_ALLOC_PITCHED:
        op.bytes = some_bytes(g);
        break;
    case OP_TRIM:
    case OP_PIN:
    case OP_UNPIN:
        return op;
    case OP_CAPTURE_END:
    case OP_LAUNCH:
    case OP_GRAPH_END:
        op.a = pick_graph(g, t, op.kind);
        op.stream = op.kind == OP_LAUNCH ? pick_launch_stream(g, t, op.a) : NOBODY;
        return op;
    case OP_CAPTURE:
    case OP_REFUSED:
        draw_capture(g, &op);
        return op;
    case OP_HOST_ALLOC:
        op.bytes = UINT64_C(256) << below(r, g->profile->pinned_bursts ? 12 : 8);
        if (g->host[t].n > 8)
            op.kind = OP_POLL;
        break;
    case OP_TAKE:
    case OP_TAKE_STREAM: {
        list_t *l = op.kind == OP_TAKE ? &g->given : &g->given_streams;
        int one = pick_listed(g, l, true);
        if (one == NOBODY) {
            op.kind = OP_POLL;
            break;
        }
        int token = op.kind == OP_TAKE ? p->buffers.at[one].posted : p->streams.at[one].posted;
        if (token != NOBODY)
            op.thread = p->tokens.at[token].to;
        op.a = op.stream = one;
        return op;
    }
    case OP_STREAM_NEW: {
        op.b = (int)below(r, 100) < g->profile->blocking;
        int streams = 0;
        for (int i = 0; i < p->threads; i++)
            streams += g->streams[i].n;
        if (streams >= g->most_streams)
            op.kind = OP_FORK;
        break;
    }
    case OP_OPEN:
        op.a = pick_listed(g, &g->holds, true);
        return op;
    case OP_CTX_NEW:
        if (g->contexts[t].n < 2)
            return op;
        op.kind = OP_CTX_USE; /* fall through */
    case OP_CTX_USE:
    case OP_CTX_END:
        op.a = pick_listed(g, &g->contexts[t], op.kind == OP_CTX_END);
        return op;
    case OP_GIVE:
    case OP_GIVE_STREAM:
        if (p->threads == 1)
            op.kind = OP_SET;
        else
            op.to = (t + 1 + (int)below(r, (uint32_t)p->threads - 1)) % p->threads;
        break;
    default:
        break;
    }
    bool host = op.kind == OP_HOST_CHECK || op.kind == OP_HOST_FILL || op.kind == OP_HOST_FREE ||
                (op.kind == OP_ALIAS && below(r, 3) == 0);
    bool memory = host || (op.kind >= OP_SET && op.kind <= OP_CHECK) || op.kind == OP_FREE ||
                  op.kind == OP_FREE_ASYNC || op.kind == OP_GIVE || op.kind == OP_ALIAS;
    if (memory)
        op.a = pick_buffer(g, t, host);
    if (memory && op.a == NOBODY) {
        op.kind = host ? OP_HOST_ALLOC : OP_ALLOC;
        op.bytes = 512;
        op.to = 0;
    }
    if (op.kind == OP_UPLOAD || op.kind == OP_DOWNLOAD || op.kind == OP_COPY)
        op.b = pick_buffer(g, t, op.kind != OP_COPY);
    op.stream = pick_stream(g, t, memory && op.kind != OP_HOST_ALLOC ? op.a : NOBODY);
    if (op.kind == OP_FORK)
        op.b = pick_stream(g, t, NOBODY);
    return op;
}

/* What an operation brought into being, where it was not skipped. */
static void account(generator_t *g, const op_t *op, int skipped)
{
    int i = g->index;
    if (g->p->skipped != skipped)
        return;
    switch (op->kind) {
    case OP_ALLOC:
    case OP_ALLOC_ASYNC:
    case OP_ALLOC_PITCHED:
        g->newest = i; /* fall through */
    case OP_TAKE:
        keep(&g->device[op->thread], op->kind == OP_TAKE ? op->a : i);
        break;
    case OP_HOST_ALLOC:
        keep(&g->host[op->thread], g->newest = i);
        break;
    case OP_CAPTURE:
        keep(&g->graphs[op->thread], i);
        break;
    case OP_STREAM_NEW:
        keep(&g->streams[op->thread], FIRST_OWN_STREAM + i);
        break;
    case OP_TAKE_STREAM:
        if (op->stream >= FIRST_OWN_STREAM)
            keep(&g->streams[op->thread], op->stream);
        break;
    case OP_GIVE:
        keep(&g->given, op->a);
        break;
    case OP_GIVE_STREAM:
        keep(&g->given_streams, op->stream);
        break;
    case OP_HOLD:
        keep(&g->holds, i);
        break;
    case OP_CTX_NEW:
        keep(&g->contexts[op->thread], i);
        break;
    case OP_RESET:
        g->given.n = g->given_streams.n = 0;
        for (int t = 0; t < MAX_THREADS; t++)
            g->device[t].n = g->host[t].n = g->streams[t].n = g->contexts[t].n = g->graphs[t].n = 0;
        break;
    default:
        break;
    }
}

static const profile_t *find_profile(settings_t *settings)
{
    if (!settings->profile) /* any but the one that only an allocator of our kind must stand */
        do
            settings->profile = profiles[mix64(settings->seed++) % PROFILES].name;
        while (strcmp(settings->profile, "peerfree") == 0);
    for (int i = 0; i < PROFILES; i++)
        if (strcmp(profiles[i].name, settings->profile) == 0)
            return &profiles[i];
    return NULL;
}

bool generate(program_t *p, op_t *ops, settings_t *settings, int devices_there)
{
    static generator_t g;
    settings_t wanted = *settings;
    g.profile = find_profile(&wanted);
    if (!g.profile)
        return false;
    settings->profile = g.profile->name;
    g.p = p;
    g.r = settings->seed;
    int threads = 1 + (int)below(&g.r, (uint32_t)g.profile->threads);
    int devices = 1 + (int)below(&g.r, (uint32_t)g.profile->devices);
    if (strcmp(g.profile->name, "threads") == 0)
        threads = 4;
    if (strncmp(g.profile->name, "peer", 4) == 0)
        devices = 2;
    settings->threads = settings->threads ? settings->threads : threads;
    settings->devices = settings->devices ? settings->devices : devices;
    if (settings->devices > devices_there)
        settings->devices = devices_there;
    program_init(p, settings->ops, settings->threads, settings->devices);
    p->peers =
        settings->devices > 1 && g.profile->peers && (g.profile->peer_free || below(&g.r, 2));
    p->peer_free = g.profile->peer_free;
    p->launches = g.profile->launches;
    g.most_streams = 1 + (int)below(&g.r, (uint32_t)g.profile->streams);
    for (int k = 0; k < OP_COUNT; k++)
        g.weights += g.weight[k] = weight_of(g.profile, (op_kind_t)k);
    for (int next = 0; g.index < settings->ops; g.index++) {
        op_t op;
        if (g.queued == 0 && (int)below(&g.r, 1000) < g.profile->bursts)
            burst(&g, (int)below(&g.r, (uint32_t)p->threads));
        if (g.index == settings->ops - 1) {
            op = (op_t){.kind = OP_END};
        } else if (g.queued) {
            op = g.queue[next++];
            op.a = op.a == NEWEST ? g.newest : op.a;
            op.b = op.b == NEWEST ? g.newest : op.b;
            if (next == g.queued)
                next = g.queued = 0;
        } else {
            op = propose(&g);
        }
        op.r = draw(&g.r);
        ops[g.index] = op;
        int skipped = p->skipped;
        lower(p, g.index, &op);
        account(&g, &op, skipped);
    }
    return true;
}
