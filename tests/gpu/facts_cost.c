/*
 * What calls cost on the host: the handful that the shim makes on its fast path, against the number
 * of streams and with work in flight; and the allocation pairs that the pool has to beat.
 */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 200, STREAMS_MAX = 128 };

typedef struct subject {
    CUcontext ctx;
    CUstream stream;
    CUevent done, busy, scratch; /* done has completed; busy has not while work is in flight */
    record_ctx_fn record;
    ctx_id_fn ctx_id;
    stream_id_fn stream_id;
} subject_t;

static CUresult record_ctx(subject_t *s)
{
    return s->record ? s->record(s->ctx, s->scratch) : CUDA_ERROR_NOT_FOUND;
}

static CUresult record_stream(subject_t *s)
{
    return cuEventRecord(s->scratch, s->stream);
}

static CUresult query_done(subject_t *s)
{
    return cuEventQuery(s->done);
}

static CUresult query_busy(subject_t *s)
{
    return cuEventQuery(s->busy);
}

static CUresult get_current(subject_t *s)
{
    CUcontext ctx;

    (void)s;
    return cuCtxGetCurrent(&ctx);
}

static CUresult get_ctx_id(subject_t *s)
{
    unsigned long long id;

    return s->ctx_id ? s->ctx_id(s->ctx, &id) : CUDA_ERROR_NOT_FOUND;
}

static CUresult get_stream_id(subject_t *s)
{
    unsigned long long id;

    return s->stream_id ? s->stream_id(s->stream, &id) : CUDA_ERROR_NOT_FOUND;
}

static CUresult get_stream_ctx(subject_t *s)
{
    CUcontext ctx;

    return cuStreamGetCtx(s->stream, &ctx);
}

static CUresult mem_info(subject_t *s)
{
    size_t free_bytes, total;

    (void)s;
    return cuMemGetInfo(&free_bytes, &total);
}

static CUresult stream_pair(subject_t *s)
{
    CUstream stream;
    CUresult r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);

    (void)s;
    return r ? r : cuStreamDestroy(stream);
}

static CUresult event_pair(subject_t *s)
{
    CUevent e;
    CUresult r = cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);

    (void)s;
    return r ? r : cuEventDestroy(e);
}

/* Calls that put work on the device are few per sample: a full queue would block them. */
static const struct cost {
    const char *call;
    CUresult (*run)(subject_t *);
    int batch;
    bool only_busy;
} costs[] = {
    {"cuCtxRecordEvent", record_ctx, 1, false},
    {"cuEventRecord", record_stream, 1, false},
    {"cuEventQuery, done", query_done, 16, false},
    {"cuEventQuery, not done", query_busy, 16, true},
    {"cuCtxGetCurrent", get_current, 64, false},
    {"cuCtxGetId", get_ctx_id, 64, false},
    {"cuStreamGetId", get_stream_id, 64, false},
    {"cuStreamGetCtx", get_stream_ctx, 64, false},
    {"cuEventCreate + cuEventDestroy", event_pair, 4, false},
    {"cuStreamCreate + cuStreamDestroy", stream_pair, 1, false},
    {"cuMemGetInfo", mem_info, 1, false}, /* before the pool grows */
};

static void measure(subject_t *s, const struct cost *c, int streams, const char *state)
{
    double samples[SAMPLES];
    int n = 0;
    CUresult r = CUDA_SUCCESS;
    uint64_t end = now_ns() + 300000000u;

    for (int i = 0; i < 8; i++) /* warm */
        r = c->run(s);
    while (n < SAMPLES && now_ns() < end) {
        uint64_t t = now_ns();
        for (int i = 0; i < c->batch; i++)
            r = c->run(s);
        samples[n++] = (double)(now_ns() - t) / c->batch;
    }
    row_begin();
    row_str("call", c->call);
    row_int("streams", streams);
    row_str("state", state);
    row_int("samples", n);
    row_spread("call", spread_of(samples, n));
    row_drv("code", r);
    row_end();
}

static void measure_all(subject_t *s, int streams, bool busy, const char *state)
{
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (busy || !costs[i].only_busy)
            measure(s, &costs[i], streams, state);
}

/* Work in flight on each of the streams, by one hold; the calls must fit into its limit. */
static void measure_busy(subject_t *s, CUstream *streams, int count, holder_t how)
{
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        hold_open();
        for (int k = 0; k < count; k++)
            hold_stream(how, s->ctx, streams[k]);
        if (count == 0)
            hold_stream(how, s->ctx, s->stream);
        cuEventRecord(s->busy, count ? streams[0] : s->stream);
        hold_begun(how);
        hold_for_ms(1500);
        measure(s, &costs[i], count, how == BY_KERNEL ? "kernels in flight" : "host functions");
        hold_finish();
        cuCtxSynchronize();
    }
}

void fact_call_cost(const char *arg)
{
    static const int counts[] = {0, 1, 8, 32, 128};
    CUstream streams[STREAMS_MAX];
    subject_t s = {.ctx = use_primary(), .record = ctx_record()};
    int made = 0;
    holder_t how = hold_usable(BY_KERNEL) ? BY_KERNEL : BY_HOST_FUNCTION;

    (void)arg;
    s.ctx_id = ctx_id();
    s.stream_id = stream_id();
    cuStreamCreate(&s.stream, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&s.done, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&s.busy, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&s.scratch, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(s.done, s.stream);
    cuStreamSynchronize(s.stream);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        while (made < counts[c] &&
               cuStreamCreate(&streams[made], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
            made++;
        measure_all(&s, made, false, "idle");
        cuCtxSynchronize();
        if (hold_usable(how))
            measure_busy(&s, streams, made, how);
    }
}

/* --- allocation pairs
 * ----------------------------------------------------------------------------- */

static const size_t sizes[] = {
    256, 4096, 65536, 1 << 20, 2 << 20, 16 << 20, 64 << 20, (size_t)256 << 20, (size_t)1 << 30};

typedef struct pair {
    const char *name;
    cudaError_t (*get)(void **, size_t);
    cudaError_t (*put)(void *);
    size_t most;
} pair_t;

static cudaStream_t async_stream;

static cudaError_t get_device(void **p, size_t n)
{
    return cudaMalloc(p, n);
}

static cudaError_t put_device(void *p)
{
    return cudaFree(p);
}

static cudaError_t get_async(void **p, size_t n)
{
    return cudaMallocAsync(p, n, async_stream);
}

static cudaError_t put_async(void *p)
{
    return cudaFreeAsync(p, async_stream);
}

static cudaError_t get_host(void **p, size_t n)
{
    return cudaMallocHost(p, n);
}

static cudaError_t put_host(void *p)
{
    return cudaFreeHost(p);
}

static void measure_pair(const pair_t *pair, size_t bytes, int live)
{
    double got[SAMPLES], freed[SAMPLES];
    int n = 0;
    void *p = NULL;
    cudaError_t e = pair->get(&p, bytes); /* the first of a size may map memory */
    uint64_t end = now_ns() + 400000000u;

    if (e == cudaSuccess)
        pair->put(p);
    while (e == cudaSuccess && n < SAMPLES && (n < 5 || now_ns() < end)) {
        uint64_t t0 = now_ns();
        e = pair->get(&p, bytes);
        uint64_t t1 = now_ns();
        if (e == cudaSuccess)
            e = pair->put(p);
        uint64_t t2 = now_ns();
        got[n] = (double)(t1 - t0);
        freed[n++] = (double)(t2 - t1);
    }
    row_begin();
    row_str("pair", pair->name);
    row_int("bytes", (long long)bytes);
    row_int("live", live);
    row_int("samples", n);
    row_spread("get", spread_of(got, n));
    row_spread("free", spread_of(freed, n));
    row_rt("code", e);
    row_end();
}

static bool keep_async_memory(void)
{
    cudaMemPool_t pool;
    uint64_t threshold = UINT64_MAX;

    return cudaStreamCreateWithFlags(&async_stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaDeviceGetDefaultMemPool(&pool, 0) == cudaSuccess &&
           cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) ==
               cudaSuccess;
}

void fact_alloc_cost(const char *arg)
{
    static const pair_t pairs[] = {
        {"cudaMalloc / cudaFree", get_device, put_device, SIZE_MAX},
        {"cudaMallocAsync / cudaFreeAsync, release threshold max", get_async, put_async, SIZE_MAX},
        {"cudaMallocHost / cudaFreeHost", get_host, put_host, (size_t)64 << 20},
    };
    static void *live[1000];
    int count = 0;
    size_t room;

    (void)arg;
    use_primary();
    room = may_take();
    if (!keep_async_memory())
        row_note("the release threshold could not be set");
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (sizes[i] <= pairs[k].most && sizes[i] <= room)
                measure_pair(&pairs[k], sizes[i], 0);
    cudaStreamSynchronize(async_stream);
    while (count < 1000 && cudaMalloc(&live[count], 65536) == cudaSuccess)
        count++;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] <= room / 2)
            measure_pair(&pairs[0], sizes[i], count);
}
