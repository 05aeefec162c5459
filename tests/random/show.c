/* A program as text, for those who have to understand a failure. */
#include "random.h"
#include <stdio.h>

static const char *const names[] = {
#define X(name, text) [OP_##name] = text,
    OPERATIONS(X)
#undef X
};

static const char *const calls[] = {
    [DO_ALLOC] = "cudaMalloc",
    [DO_FREE] = "cudaFree",
    [DO_ALLOC_ASYNC] = "cudaMallocAsync",
    [DO_FREE_ASYNC] = "cudaFreeAsync",
    [DO_ALLOC_PITCHED] = "cudaMallocPitch",
    [DO_ALIAS] = "cachealloc_alias",
    [DO_HOST_ALLOC] = "cudaMallocHost",
    [DO_HOST_FREE] = "cudaFreeHost",
    [DO_SET] = "cudaMemsetAsync",
    [DO_SET_2D] = "cudaMemset2DAsync",
    [DO_COPY] = "cudaMemcpyAsync",
    [DO_COPY_SYNC] = "cudaMemcpy",
    [DO_RECORD] = "cudaEventRecord",
    [DO_WAIT] = "cudaStreamWaitEvent",
    [DO_EVENT_SYNC] = "cudaEventSynchronize",
    [DO_EVENT_QUERY] = "cudaEventQuery",
    [DO_EVENT_END] = "cudaEventDestroy",
    [DO_STREAM_SYNC] = "cudaStreamSynchronize",
    [DO_STREAM_QUERY] = "cudaStreamQuery",
    [DO_DEVICE_SYNC] = "cudaDeviceSynchronize",
    [DO_STREAM_NEW] = "cudaStreamCreate",
    [DO_STREAM_END] = "cudaStreamDestroy",
    [DO_CALL_CHECK] = "host function: check",
    [DO_CALL_FILL] = "host function: fill",
    [DO_CALL_HOLD] = "host function: hold",
    [DO_CALL_PAUSE] = "host function: pause",
    [DO_OPEN] = "let go",
    [DO_CHECK] = "check",
    [DO_FILL] = "fill",
    [DO_POST] = "post",
    [DO_TAKE] = "take",
    [DO_CTX_NEW] = "cuCtxCreate",
    [DO_CTX_USE] = "work in a context",
    [DO_CTX_END] = "cuCtxDestroy",
    [DO_TRIM] = "cachealloc_trim",
    [DO_PIN] = "cachealloc_set_pin_mode",
    [DO_GRAPH_BEGIN] = "cudaStreamBeginCapture",
    [DO_GRAPH_COPY] = "cudaMallocAsync, copies, cudaFreeAsync",
    [DO_GRAPH_END] = "cudaStreamEndCapture",
    [DO_GRAPH_LAUNCH] = "cudaGraphLaunch",
    [DO_GRAPH_DESTROY] = "cudaGraphExecDestroy",
    [DO_REFUSED] = "what a capture forbids",
    [DO_BARRIER] = "barrier",
    [DO_RESET] = "cudaDeviceReset",
};

typedef struct line {
    char *at;
    size_t left;
} line_t;

__attribute__((format(printf, 2, 3))) static void say(line_t *line, const char *format, ...)
{
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    int n = vsnprintf(line->at, line->left, format, arguments);
    __builtin_va_end(arguments);
    if (n > 0 && (size_t)n < line->left) {
        line->at += n;
        line->left -= (size_t)n;
    }
}

static void say_stream(line_t *line, int stream, const program_t *p)
{
    if (stream < MAX_DEVICES) {
        say(line, " on legacy");
    } else if (stream < FIRST_OWN_STREAM) {
        say(line, " on per-thread");
    } else {
        bool blocking = p && p->streams.at[stream].blocking;
        say(line, " on s%d%s", stream - FIRST_OWN_STREAM, blocking ? " (blocking)" : "");
    }
}

static void say_buffer(line_t *line, int buffer, uint64_t offset, uint64_t bytes,
                       const program_t *p)
{
    if (buffer < p->ops_n)
        say(line, " %s%d", p->buffers.at[buffer].host ? "h" : "b", buffer);
    else
        say(line, " stage%d", buffer - p->ops_n);
    if (bytes)
        say(line, "[%llu, +%llu)", (unsigned long long)offset, (unsigned long long)bytes);
}

void show_step(const step_t *s, const program_t *p, char *out, size_t room)
{
    line_t line = {out, room};
    say(&line, "t%d: %s", s->thread, calls[s->what]);
    bool memory = (s->what <= DO_COPY_SYNC || s->what == DO_CALL_CHECK || s->what == DO_CALL_FILL ||
                   s->what == DO_GRAPH_COPY || s->what == DO_CHECK || s->what == DO_FILL) &&
                  s->buffer != NOBODY;
    if (memory)
        say_buffer(&line, s->buffer, s->offset, s->bytes, p);
    else if (s->buffer != NOBODY)
        say(&line, " #%d", s->buffer);
    if (s->from != NOBODY) {
        say(&line, " from");
        say_buffer(&line, s->from, s->from_offset, s->bytes, p);
    }
    if ((s->what == DO_FREE || s->what == DO_FREE_ASYNC || s->what == DO_HOST_FREE) &&
        s->value & ONLY_NAME)
        say(&line, " (a name)");
    if (s->what == DO_PIN || (s->what == DO_GRAPH_END && !s->value))
        say(&line, s->value ? " on" : s->what == DO_PIN ? " off" : " and destroy it");
    if (s->what == DO_SET)
        say(&line, " = 0x%02x", (unsigned)s->value);
    if (s->event != NOBODY)
        say(&line, " e%d", s->event);
    if (s->stream != NOBODY)
        say_stream(&line, s->stream, p);
    if (s->device != NOBODY)
        say(&line, ", device %d", s->device);
}

void show_op(int index, const op_t *op)
{
    char text[200];
    line_t line = {text, sizeof(text)};
    say(&line, "#%d t%d %s", index, op->thread, names[op->kind]);
    if (op->a != NOBODY)
        say(&line, " %d", op->a);
    if (op->b != NOBODY)
        say(&line, ", %d", op->b);
    if (op->bytes)
        say(&line, " of %llu bytes", (unsigned long long)op->bytes);
    if (op->stream != NOBODY)
        say_stream(&line, op->stream, NULL);
    puts(text);
}
