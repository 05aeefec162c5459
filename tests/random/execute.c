/* Makes the calls: one host thread per list of steps. Every call must succeed (a query may say "not
 * ready"); what was looked at goes into the digest, by step and not by time. */
#include "execute.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

run_t the_run;

void fail_at(const step_t *s, const char *format, ...)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    char text[300];
    va_list arguments;
    pthread_mutex_lock(&once); /* never unlocked: the first failure is the one to tell */
    fprintf(stderr,
            "random: seed %llu, %s, operation %d: ", (unsigned long long)the_run.settings->seed,
            the_run.settings->profile, s->op);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    show_step(s, the_run.p, text, sizeof(text));
    fprintf(stderr, "\n    in %s\n", text);
    _exit(1);
}

static char *at(int buffer, uint64_t offset)
{
    const buffer_t *b = &the_run.p->buffers.at[buffer];
    if (b->width) /* a whole number of rows */
        offset = offset / b->width * the_run.pitch[buffer];
    return (char *)the_run.buffers[buffer] + offset;
}

static size_t pitch_of(int buffer, size_t width)
{
    return the_run.p->buffers.at[buffer].width ? the_run.pitch[buffer] : width;
}

static void copy(const step_t *s)
{
    const buffer_t *dst = &the_run.p->buffers.at[s->buffer], *src = &the_run.p->buffers.at[s->from];
    void *to = at(s->buffer, s->offset);
    const void *from = at(s->from, s->from_offset);
    cudaStream_t stream = the_run.streams[s->stream];
    enum cudaMemcpyKind kind = dst->host   ? cudaMemcpyDeviceToHost
                               : src->host ? cudaMemcpyHostToDevice
                                           : cudaMemcpyDeviceToDevice;
    if (s->value & 1)
        kind = cudaMemcpyDefault;
    uint32_t width = dst->width ? dst->width : src->width;
    size_t to_pitch = pitch_of(s->buffer, width), from_pitch = pitch_of(s->from, width);
    if (width && s->what == DO_COPY_SYNC)
        MUST(s, cudaMemcpy2D(to, to_pitch, from, from_pitch, width, s->bytes / width, kind));
    else if (width)
        MUST(s, cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, s->bytes / width, kind,
                                  stream));
    else if (s->what == DO_COPY && !dst->host && !src->host && dst->device == s->device &&
             src->device == s->device && done_by_kernel(s, to, from))
        return;
    else if (s->what == DO_COPY_SYNC)
        MUST(s, cudaMemcpy(to, from, s->bytes, kind));
    else if (!dst->host && !src->host && (dst->device != src->device || s->value == 0))
        MUST(s, cudaMemcpyPeerAsync(to, dst->device, from, src->device, s->bytes, stream));
    else
        MUST(s, cudaMemcpyAsync(to, from, s->bytes, kind, stream));
}

static void transfer(const step_t *s)
{
    cudaStream_t stream = the_run.streams[s->stream];
    uint32_t width = the_run.p->buffers.at[s->buffer].width;
    if (s->what == DO_SET && width)
        MUST(s, cudaMemset2DAsync(at(s->buffer, s->offset), the_run.pitch[s->buffer], (int)s->value,
                                  width, s->bytes / width, stream));
    else if (s->what == DO_SET && done_by_kernel(s, at(s->buffer, s->offset), NULL))
        return;
    else if (s->what == DO_SET)
        MUST(s, cudaMemsetAsync(at(s->buffer, s->offset), (int)s->value, s->bytes, stream));
    else if (s->what == DO_SET_2D)
        MUST(s,
             cudaMemset2DAsync(at(s->buffer, s->offset), pitch_of(s->buffer, s->value >> 32),
                               (int)(s->value & 0xff), s->value >> 8 & 0xffffff, s->bytes, stream));
    else
        copy(s);
}

static void stream_new(const step_t *s)
{
    unsigned flags = s->value & 1 ? cudaStreamDefault : cudaStreamNonBlocking;
    cudaStream_t *stream = &the_run.streams[s->stream];
    int least, greatest;
    MUST(s, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    if (s->value >> 1)
        MUST(s, cudaStreamCreateWithPriority(stream, flags, s->value >> 1 == 1 ? least : greatest));
    else
        MUST(s, cudaStreamCreateWithFlags(stream, flags));
}

/* A query changes nothing in the order, so both answers are right. */
static void ask(const step_t *s)
{
    cudaError_t code = s->what == DO_EVENT_QUERY ? cudaEventQuery(the_run.events[s->event])
                                                 : cudaStreamQuery(the_run.streams[s->stream]);
    if (code != cudaSuccess && code != cudaErrorNotReady)
        fail_at(s, "a query answered %d", (int)code);
    if (code == cudaErrorNotReady)
        (void)cudaGetLastError();
}

static void order(const step_t *s)
{
    cudaStream_t stream = s->stream == NOBODY ? NULL : the_run.streams[s->stream];
    static cudaEvent_t none; /* of steps that have no event */
    cudaEvent_t *event = s->event == NOBODY ? &none : &the_run.events[s->event];
    switch (s->what) {
    case DO_RECORD:
        if (!*event)
            MUST(s, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
        MUST(s, cudaEventRecord(*event, stream));
        break;
    case DO_WAIT:
        if (s->op != the_run.settings->broken)
            MUST(s, cudaStreamWaitEvent(stream, *event, 0));
        break;
    case DO_EVENT_SYNC:
        MUST(s, cudaEventSynchronize(*event));
        break;
    case DO_EVENT_END:
        MUST(s, cudaEventDestroy(*event));
        break;
    case DO_STREAM_SYNC:
        MUST(s, cudaStreamSynchronize(stream));
        break;
    case DO_DEVICE_SYNC:
        MUST(s, cudaDeviceSynchronize());
        break;
    case DO_STREAM_NEW:
        stream_new(s);
        break;
    case DO_STREAM_END:
        MUST(s, cudaStreamDestroy(stream));
        break;
    default: /* DO_EVENT_QUERY, DO_STREAM_QUERY */
        ask(s);
    }
}

static void hand_over(const step_t *s)
{
    worker_t *to = &the_run.workers[s->what == DO_POST ? (int)s->value : s->thread];
    pthread_mutex_lock(&to->lock);
    if (s->what == DO_POST) {
        the_run.posted[s->buffer] = true;
        pthread_cond_signal(&to->changed);
    } else {
        while (!the_run.posted[s->buffer])
            pthread_cond_wait(&to->changed, &to->lock);
    }
    pthread_mutex_unlock(&to->lock);
}

static void host_fill(const step_t *s)
{
    content_t c = content_of((extent_t){.kind = PATTERN, .id = (uint32_t)s->value}, s->bytes);
    content_write(&c, 0, s->bytes, the_run.buffers[s->buffer]);
}

static void do_step(step_t *s)
{
    switch (s->what) {
    case DO_ALLOC:
    case DO_FREE:
    case DO_HOST_ALLOC:
    case DO_HOST_FREE:
    case DO_ALLOC_ASYNC:
    case DO_FREE_ASYNC:
    case DO_ALLOC_PITCHED:
        memory_step(s);
        break;
    case DO_ALIAS:
    case DO_TRIM:
    case DO_PIN:
        interface_step(s);
        break;
    case DO_GRAPH_BEGIN:
    case DO_GRAPH_COPY:
    case DO_GRAPH_END:
    case DO_GRAPH_LAUNCH:
    case DO_GRAPH_DESTROY:
    case DO_REFUSED:
        graph_step(s);
        break;
    case DO_SET:
    case DO_SET_2D:
    case DO_COPY:
    case DO_COPY_SYNC:
        transfer(s);
        break;
    case DO_CALL_CHECK:
    case DO_CALL_FILL:
    case DO_CALL_HOLD:
    case DO_CALL_PAUSE:
    case DO_OPEN:
        call_on_stream(s);
        break;
    case DO_CHECK:
        look_at(s);
        break;
    case DO_FILL:
        host_fill(s);
        break;
    case DO_POST:
    case DO_TAKE:
        hand_over(s);
        break;
    case DO_CTX_NEW:
    case DO_CTX_USE:
    case DO_CTX_END:
        context_step(s);
        break;
    case DO_BARRIER:
        pthread_barrier_wait(&the_run.barrier);
        break;
    case DO_RESET:
        reset_step(s);
        break;
    default:
        order(s);
    }
}

static void *work(void *argument)
{
    worker_t *w = argument;
    w->device = NOBODY;
    for (int i = the_run.p->first[w->number]; i != NOBODY;) {
        step_t *s = &the_run.p->steps.at[i];
        int device = s->device == NOBODY && w->device == NOBODY ? 0 : s->device;
        /* Not between the barriers of a reset: another thread would make its context again. */
        if (s->what != DO_BARRIER && device != NOBODY && device != w->device) {
            MUST(s, cudaSetDevice(device));
            w->device = device;
        }
        do_step(s);
        /* A reset, and what stands before and after it, leaves no device current. */
        if (s->what == DO_BARRIER || s->what == DO_RESET)
            w->device = NOBODY;
        i = s->next;
    }
    return NULL;
}

static void *table(int n, size_t each)
{
    void *t = calloc((size_t)n + 1, each);
    if (!t)
        abort();
    return t;
}

uint64_t execute(program_t *p, const settings_t *settings)
{
    run_t *run = &the_run;
    run->p = p;
    run->settings = settings;
    run->buffers = table(p->buffers.n, sizeof(*run->buffers));
    run->streams = table(p->streams.n, sizeof(*run->streams));
    run->events = table(p->events.n, sizeof(*run->events));
    run->contexts = table(p->ops_n, sizeof(*run->contexts));
    run->pitch = table(p->buffers.n, sizeof(*run->pitch));
    run->alias = table(p->buffers.n, sizeof(*run->alias));
    run->owner = table(p->buffers.n, sizeof(*run->owner));
    run->graphs = table(p->ops_n, sizeof(*run->graphs));
    run->posted = table(p->tokens.n, sizeof(*run->posted));
    run->open = table(p->ops_n, sizeof(*run->open));
    for (int d = 0; d < p->devices; d++) {
        run->streams[d] = cudaStreamLegacy;
        for (int t = 0; t < p->threads; t++)
            run->streams[per_thread_stream(t, d)] = cudaStreamPerThread;
    }
    pthread_barrier_init(&run->barrier, NULL, (unsigned)p->threads);
    start_devices();
    for (int t = 0; t < p->threads; t++) {
        worker_t *w = &run->workers[t];
        w->number = t;
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->changed, NULL);
    }
    if (p->threads == 1) /* in the program's only thread */
        work(&run->workers[0]);
    for (int t = 0; t < p->threads && p->threads > 1; t++)
        if (pthread_create(&run->workers[t].thread, NULL, work, &run->workers[t]) != 0)
            abort();
    for (int t = 0; t < p->threads && p->threads > 1; t++)
        pthread_join(run->workers[t].thread, NULL);
    /* Host functions that nobody waited for have looked at something as well. */
    const step_t none = {.op = NOBODY, .buffer = NOBODY};
    for (int d = 0; d < p->devices; d++) {
        MUST(&none, cudaSetDevice(d));
        MUST(&none, cudaDeviceSynchronize());
        end_kernels(&none, d);
    }
    uint64_t digest = 0;
    for (int i = 0; i < p->steps.n; i++)
        digest = mix64(digest + p->steps.at[i].result + (uint64_t)p->steps.at[i].what);
    return digest;
}
