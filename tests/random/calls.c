/* Host functions, which run on streams: they look at pinned memory, write it, take a moment, or
 * hold their stream until the program has come to a later point, but never for long: so no call
 * that waits for the stream can wait for ever. */
#include "execute.h"
#include <stdatomic.h>
#include <time.h>

static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_changed = PTHREAD_COND_INITIALIZER;

void look_at(step_t *s)
{
    uint64_t hash = (uint64_t)s->op;
    int expected = 0;
    const unsigned char *data = the_run.buffers[s->buffer];
    int64_t wrong = content_check(s->content, 0, s->bytes, data, &hash, &expected);
    if (wrong >= 0)
        fail_at(s, "wrong byte: at %lld of %llu is 0x%02x, must be 0x%02x", (long long)wrong,
                (unsigned long long)s->bytes, data[wrong], (unsigned)expected);
    s->result = hash;
}

static void CUDART_CB check(void *argument)
{
    look_at(argument);
}

static void CUDART_CB fill(void *argument)
{
    const step_t *s = argument;
    content_t c = content_of((extent_t){.kind = PATTERN, .id = (uint32_t)s->value}, s->bytes);
    content_write(&c, 0, s->bytes, the_run.buffers[s->buffer]);
}

static void CUDART_CB take_a_moment(void *argument)
{
    const step_t *s = argument;
    struct timespec time = {0, (long)s->value * 1000};
    if (s->value)
        nanosleep(&time, NULL);
}

static void CUDART_CB hold(void *argument)
{
    const step_t *s = argument;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)s->value * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&hold_lock);
    while (!atomic_load(&the_run.open[s->buffer]) &&
           pthread_cond_timedwait(&hold_changed, &hold_lock, &until) == 0) {
    }
    pthread_mutex_unlock(&hold_lock);
}

void call_on_stream(step_t *s)
{
    cudaStream_t stream = s->stream == NOBODY ? NULL : the_run.streams[s->stream];
    switch (s->what) {
    case DO_CALL_CHECK:
        MUST(s, cudaLaunchHostFunc(stream, check, s));
        break;
    case DO_CALL_FILL:
        MUST(s, cudaLaunchHostFunc(stream, fill, s));
        break;
    case DO_CALL_PAUSE:
        MUST(s, cudaLaunchHostFunc(stream, take_a_moment, s));
        break;
    case DO_CALL_HOLD:
        MUST(s, cudaLaunchHostFunc(stream, hold, s));
        break;
    default: /* DO_OPEN */
        pthread_mutex_lock(&hold_lock);
        atomic_store(&the_run.open[s->buffer], true);
        pthread_cond_broadcast(&hold_changed);
        pthread_mutex_unlock(&hold_lock);
    }
}
