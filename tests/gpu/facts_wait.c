/*
 * Waits: what cuCtxRecordEvent covers, and which calls of the plain API wait for work
 * in flight, at which sizes. The pool's epochs rely on the first, its promise not to wait for more
 * than the plain free on the second.
 *
 * A probe holds one stream busy, makes the call, and asks whether the call came back before the
 * helper thread released the stream.
 */
#include "facts.h"

#include <stdio.h>
#include <string.h>

#define HELD_MS 50

/* --- cuCtxRecordEvent ------------------------------------------------------------------------- */

static void cover(const place_t *p, holder_t how, record_ctx_fn record, CUcontext ctx, CUevent ev)
{
    CUresult started, recorded, held, after;
    uint64_t t;

    hold_open();
    started = hold_stream(how, p->ctx, p->stream);
    hold_begun(how);
    hold_for_ms(1000);
    t = now_ns();
    recorded = record(ctx, ev);
    t = now_ns() - t;
    sleep_ms(5);
    held = cuEventQuery(ev);
    hold_finish();
    place_drain(p);
    cuEventSynchronize(ev);
    after = cuEventQuery(ev);

    row_begin();
    row_str("work on", p->name);
    row_str("held by", holder_names[how]);
    row_bool("covered", started == CUDA_SUCCESS && held == CUDA_ERROR_NOT_READY);
    row_bool("record blocked", t > 500000000u);
    row_int("record_ns", (long long)t);
    row_drv("launch", started);
    row_drv("record", recorded);
    row_drv("query while held", held);
    row_drv("query afterwards", after);
    row_end();
}

void fact_record_covers(const char *arg)
{
    place_t places[PLACES_MAX];
    int n = places_make(places);
    CUcontext ctx = places[0].ctx;
    record_ctx_fn record = ctx_record();
    CUevent ev;

    (void)arg;
    if (!record) {
        row_note("this driver has no cuCtxRecordEvent");
        return;
    }
    cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING);
    for (int how = 0; how < HOLDERS; how++)
        for (int i = 0; hold_usable((holder_t)how) && i < n; i++)
            cover(&places[i], (holder_t)how, record, ctx, ev);
    if (place_make_peer(&places[n - 1]))
        for (int how = 0; how < HOLDERS; how++)
            if (hold_usable((holder_t)how))
                cover(&places[n - 1], (holder_t)how, record, ctx, ev);
}

static void rule(const char *what, CUresult r, bool yes)
{
    row_begin();
    row_str("question", what);
    row_bool("answer", yes);
    row_drv("code", r);
    row_end();
}

/* Work launched after the record: does the event wait for it, does it wait for the event's work? */
static void later_work(record_ctx_fn record, CUcontext ctx, CUevent ev, holder_t how)
{
    CUstream first, second, blocking;
    CUresult r, q;

    cuStreamCreate(&first, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
    cuCtxSynchronize();

    hold_open();
    r = record(ctx, ev);
    hold_stream(how, ctx, first);
    hold_for_ms(1000);
    sleep_ms(10);
    q = cuEventQuery(ev);
    rule("an event recorded before work was launched completes while that work runs", r,
         q == CUDA_SUCCESS);
    hold_finish();
    cuCtxSynchronize();

    hold_open();
    hold_stream(how, ctx, first);
    hold_begun(how);
    hold_for_ms(1000);
    r = record(ctx, ev);
    CUevent other;
    cuEventCreate(&other, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(other, second);
    sleep_ms(10);
    rule("another non-blocking stream runs on while a record waits", r,
         cuEventQuery(other) == CUDA_SUCCESS);
    cuEventRecord(other, blocking);
    sleep_ms(10);
    rule("a blocking stream runs on while a record waits", r, cuEventQuery(other) == CUDA_SUCCESS);
    hold_finish();
    cuCtxSynchronize();
}

void fact_record_rules(const char *arg)
{
    CUcontext ctx = use_primary(), other = NULL, old;
    record_ctx_fn record = ctx_record();
    CUevent ev, timed, foreign;
    CUresult r;

    (void)arg;
    if (!record) {
        row_note("this driver has no cuCtxRecordEvent");
        return;
    }
    cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&timed, CU_EVENT_DEFAULT);
    for (int how = 0; how < HOLDERS; how++)
        if (hold_usable((holder_t)how)) {
            row_note(holder_names[how]);
            later_work(record, ctx, ev, (holder_t)how);
        }
    r = record(ctx, timed);
    rule("an event with timing is accepted", r, r == CUDA_SUCCESS);
    r = record(NULL, ev);
    rule("a NULL context is accepted", r, r == CUDA_SUCCESS);
    r = record(ctx, NULL);
    rule("a NULL event is accepted", r, r == CUDA_SUCCESS);
    if (ctx_create(&other, 0) != CUDA_SUCCESS)
        return;
    r = record(ctx, ev);
    rule("another context may be current", r, r == CUDA_SUCCESS);
    cuEventCreate(&foreign, CU_EVENT_DISABLE_TIMING);
    r = record(ctx, foreign);
    rule("the event may belong to another context", r, r == CUDA_SUCCESS);
    cuCtxPopCurrent(&old);
    cuCtxSetCurrent(NULL);
    r = record(ctx, ev);
    rule("no context need be current", r, r == CUDA_SUCCESS);
    r = cuEventQuery(ev);
    rule("cuEventQuery needs no current context", r,
         r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY);
}

/* --- what waits ------------------------------------------------------------------------------- */

typedef struct probe {
    const char *call;
    size_t bytes;
    void *memory; /* what act frees; got before the hold */
    int (*act)(struct probe *);
    bool driver; /* act returns a CUresult */
} probe_t;

static void wait_probe(probe_t *q, const place_t *p, holder_t how)
{
    CUresult started;
    uint64_t begin, end, released;
    bool waits;
    int code;

    hold_open();
    started = hold_stream(how, p->ctx, p->stream);
    hold_begun(how);
    hold_for_ms(HELD_MS);
    begin = now_ns();
    code = q->act(q);
    end = now_ns();
    released = hold_finish();
    place_drain(p);
    waits = started == CUDA_SUCCESS && end >= released;

    row_begin();
    row_str("call", q->call);
    if (q->bytes)
        row_int("bytes", (long long)q->bytes);
    row_str("work on", p->name);
    row_str("held by", holder_names[how]);
    row_bool("waits", waits);
    if (!waits) /* else it is the time of the hold */
        row_num("call_us", (double)(end - begin) / 1000);
    if (started != CUDA_SUCCESS)
        row_drv("launch", started);
    if (q->driver)
        row_drv("code", (CUresult)code);
    else
        row_rt("code", (cudaError_t)code);
    row_end();
}

static int act_free(probe_t *q)
{
    return (int)cudaFree(q->memory);
}

static void free_waits_at(const place_t *p, holder_t how, size_t room)
{
    static const size_t sizes[] = {256,     4096,     65536,    1 << 20,
                                   2 << 20, 16 << 20, 64 << 20, (size_t)1 << 30};

    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        probe_t q = {.call = "cudaFree", .bytes = sizes[k], .act = act_free};
        if (sizes[k] <= room && cudaMalloc(&q.memory, sizes[k]) == cudaSuccess)
            wait_probe(&q, p, how);
    }
}

void fact_free_waits(const char *arg)
{
    place_t places[PLACES_MAX];
    int n = places_make(places);
    size_t room = may_take();

    (void)arg;
    for (int how = 0; how < HOLDERS; how++)
        for (int i = 0; hold_usable((holder_t)how) && i < n; i++)
            free_waits_at(&places[i], (holder_t)how, room);
    if (place_make_peer(&places[n - 1]))
        for (int how = 0; how < HOLDERS; how++)
            if (hold_usable((holder_t)how))
                free_waits_at(&places[n - 1], (holder_t)how, room);
}

static cudaStream_t side;

static int act_malloc(probe_t *q)
{
    return (int)cudaMalloc(&q->memory, q->bytes);
}

static int act_malloc_async(probe_t *q)
{
    return (int)cudaMallocAsync(&q->memory, q->bytes, side);
}

static int act_free_async(probe_t *q)
{
    return (int)cudaFreeAsync(q->memory, side);
}

static int act_malloc_host(probe_t *q)
{
    return (int)cudaMallocHost(&q->memory, q->bytes);
}

static int act_free_host(probe_t *q)
{
    return (int)cudaFreeHost(q->memory);
}

static int act_mem_free(probe_t *q)
{
    return (int)cuMemFree((CUdeviceptr)q->memory);
}

static int act_mem_info(probe_t *q)
{
    size_t free_bytes, total;

    (void)q;
    return (int)cuMemGetInfo(&free_bytes, &total);
}

static int act_managed(probe_t *q)
{
    return (int)cudaMallocManaged(&q->memory, q->bytes, cudaMemAttachGlobal);
}

static int act_stream_create(probe_t *q)
{
    (void)q;
    return (int)cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
}

static int act_unregister(probe_t *q)
{
    return (int)cudaHostUnregister(q->memory);
}

static int act_trim(probe_t *q)
{
    cudaMemPool_t pool;
    cudaError_t e = cudaDeviceGetDefaultMemPool(&pool, 0);

    (void)q;
    return (int)(e ? e : cudaMemPoolTrimTo(pool, 0));
}

static void need_device(probe_t *q)
{
    cudaMalloc(&q->memory, q->bytes);
}

static void need_async(probe_t *q)
{
    cudaMallocAsync(&q->memory, q->bytes, side);
    cudaStreamSynchronize(side);
}

static void need_host(probe_t *q)
{
    cudaMallocHost(&q->memory, q->bytes);
}

static void need_managed(probe_t *q)
{
    cudaMallocManaged(&q->memory, q->bytes, cudaMemAttachGlobal);
}

static void need_registered(probe_t *q)
{
    static char block[1 << 20] __attribute__((aligned(4096)));

    q->memory = block;
    q->bytes = sizeof block;
    cudaHostRegister(block, sizeof block, cudaHostRegisterDefault);
}

static void need_cached(probe_t *q)
{
    need_async(q);
    cudaFreeAsync(q->memory, side);
    cudaStreamSynchronize(side);
}

static const struct other {
    const char *call;
    void (*need)(probe_t *);
    int (*act)(probe_t *);
    bool driver;
} others[] = {
    {"cudaMalloc", NULL, act_malloc, false},
    {"cudaMallocAsync on an idle stream", NULL, act_malloc_async, false},
    {"cudaFreeAsync on an idle stream", need_async, act_free_async, false},
    {"cudaFreeAsync of cudaMalloc memory", need_device, act_free_async, false},
    {"cudaFree of async memory", need_async, act_free, false},
    {"cudaFree of managed memory", need_managed, act_free, false},
    {"cudaMallocHost", NULL, act_malloc_host, false},
    {"cudaFreeHost", need_host, act_free_host, false},
    {"cudaMallocManaged", NULL, act_managed, false},
    {"cudaHostUnregister", need_registered, act_unregister, false},
    {"cudaMemPoolTrimTo", need_cached, act_trim, false},
    {"cudaStreamCreateWithFlags", NULL, act_stream_create, false},
    {"cuMemFree", need_device, act_mem_free, true},
    {"cuMemGetInfo", NULL, act_mem_info, true},
};

void fact_others_wait(const char *arg)
{
    static const size_t sizes[] = {4096, 16 << 20};
    place_t places[PLACES_MAX];
    int n = places_make(places);

    (void)arg;
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    for (int how = 0; how < HOLDERS; how++)
        for (int i = 0; hold_usable((holder_t)how) && i < n; i++)
            for (size_t k = 0; k < 2 * (sizeof others / sizeof *others); k++) {
                const struct other *o = &others[k / 2];
                probe_t q = {o->call, sizes[k % 2], NULL, o->act, o->driver};
                if (o->need)
                    o->need(&q);
                wait_probe(&q, &places[i], (holder_t)how);
            }
}
