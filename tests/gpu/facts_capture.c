/*
 * Capture rules: which calls are allowed while a stream captures, from the capturing thread and
 * from another one, in each of the three modes; what code they return; and whether the capture
 * lives through them.
 */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>

typedef struct scene {
    CUcontext ctx;
    cudaStream_t capturing, other;
    CUevent recorded, scratch; /* recorded has completed before the capture began */
    void *device, *async, *pinned;
    CUdeviceptr driver;
    record_ctx_fn record;
} scene_t;

static int c_malloc(scene_t *s)
{
    void *p;

    (void)s;
    return (int)cudaMalloc(&p, 4096);
}

static int c_free(scene_t *s)
{
    return (int)cudaFree(s->device);
}

static int c_mem_alloc(scene_t *s)
{
    CUdeviceptr p;

    (void)s;
    return (int)cuMemAlloc(&p, 4096);
}

static int c_mem_free(scene_t *s)
{
    return (int)cuMemFree(s->driver);
}

static int c_malloc_host(scene_t *s)
{
    void *p;

    (void)s;
    return (int)cudaMallocHost(&p, 4096);
}

static int c_free_host(scene_t *s)
{
    return (int)cudaFreeHost(s->pinned);
}

static int c_malloc_async(scene_t *s)
{
    void *p;

    return (int)cudaMallocAsync(&p, 4096, s->other);
}

static int c_free_async(scene_t *s)
{
    return (int)cudaFreeAsync(s->async, s->other);
}

static int c_malloc_async_captured(scene_t *s)
{
    void *p;

    return (int)cudaMallocAsync(&p, 4096, s->capturing);
}

static int c_record_ctx(scene_t *s)
{
    return s->record ? (int)s->record(s->ctx, s->scratch) : (int)CUDA_ERROR_NOT_FOUND;
}

static int c_query(scene_t *s)
{
    return (int)cuEventQuery(s->recorded);
}

static int c_record_other(scene_t *s)
{
    return (int)cuEventRecord(s->scratch, s->other);
}

static int c_record_captured(scene_t *s)
{
    return (int)cuEventRecord(s->scratch, s->capturing);
}

static int c_query_captured(scene_t *s)
{
    cuEventRecord(s->scratch, s->capturing);
    return (int)cuEventQuery(s->scratch);
}

static int c_event_sync(scene_t *s)
{
    return (int)cuEventSynchronize(s->recorded);
}

static int c_ctx_sync(scene_t *s)
{
    (void)s;
    return (int)cuCtxSynchronize();
}

static int c_stream_query_other(scene_t *s)
{
    return (int)cuStreamQuery(s->other);
}

static int c_mem_info(scene_t *s)
{
    size_t a, b;

    (void)s;
    return (int)cuMemGetInfo(&a, &b);
}

static int c_event_create(scene_t *s)
{
    CUevent e;

    (void)s;
    return (int)cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
}

static int c_attribute(scene_t *s)
{
    unsigned type;

    return (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      (CUdeviceptr)s->device);
}

static int c_trim(scene_t *s)
{
    cudaMemPool_t pool;
    cudaError_t e = cudaDeviceGetDefaultMemPool(&pool, 0);

    (void)s;
    return (int)(e ? e : cudaMemPoolTrimTo(pool, 0));
}

static int c_stream_create(scene_t *s)
{
    cudaStream_t made;

    (void)s;
    return (int)cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
}

static const struct call {
    const char *name;
    int (*run)(scene_t *);
    bool driver;
} calls[] = {
    {"cudaMalloc", c_malloc, false},
    {"cudaFree", c_free, false},
    {"cuMemAlloc", c_mem_alloc, true},
    {"cuMemFree", c_mem_free, true},
    {"cudaMallocHost", c_malloc_host, false},
    {"cudaFreeHost", c_free_host, false},
    {"cudaMallocAsync, other stream", c_malloc_async, false},
    {"cudaFreeAsync, other stream", c_free_async, false},
    {"cudaMallocAsync, capturing stream", c_malloc_async_captured, false},
    {"cuCtxRecordEvent", c_record_ctx, true},
    {"cuEventQuery, recorded before", c_query, true},
    {"cuEventQuery, recorded in the capture", c_query_captured, true},
    {"cuEventRecord, other stream", c_record_other, true},
    {"cuEventRecord, capturing stream", c_record_captured, true},
    {"cuEventSynchronize, recorded before", c_event_sync, true},
    {"cuEventCreate", c_event_create, true},
    {"cuCtxSynchronize", c_ctx_sync, true},
    {"cuStreamQuery, other stream", c_stream_query_other, true},
    {"cudaStreamCreateWithFlags", c_stream_create, false},
    {"cuMemGetInfo", c_mem_info, true},
    {"cuPointerGetAttribute", c_attribute, true},
    {"cudaMemPoolTrimTo", c_trim, false},
};

typedef struct turn {
    scene_t *scene;
    const struct call *call;
    bool relaxed; /* the caller exchanges its own mode to relaxed around the call */
    int code;
} turn_t;

static void *take_turn(void *data)
{
    turn_t *t = data;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    cuCtxSetCurrent(t->scene->ctx);
    if (t->relaxed)
        cuThreadExchangeStreamCaptureMode(&mode);
    t->code = t->call->run(t->scene);
    if (t->relaxed)
        cuThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

static void scene_fill(scene_t *s)
{
    cudaMalloc(&s->device, 4096);
    cuMemAlloc(&s->driver, 4096);
    cudaMallocHost(&s->pinned, 4096);
    cudaMallocAsync(&s->async, 4096, s->other);
    cuEventRecord(s->recorded, s->other);
    cudaDeviceSynchronize();
}

static void try_call(scene_t *s, const struct call *c, int mode, bool other_thread, bool relaxed)
{
    static const char *const modes[] = {"global", "thread-local", "relaxed"};
    turn_t turn = {s, c, relaxed, 0};
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = NULL;
    cudaError_t begin, during, end;

    scene_fill(s);
    begin = cudaStreamBeginCapture(s->capturing, (enum cudaStreamCaptureMode)mode);
    if (other_thread) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, take_turn, &turn) == 0)
            pthread_join(thread, NULL);
    } else {
        take_turn(&turn);
    }
    during = cudaStreamIsCapturing(s->capturing, &status);
    end = cudaStreamEndCapture(s->capturing, &graph);
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();

    row_begin();
    row_str("call", c->name);
    row_str("capture mode", modes[mode]);
    row_str("from", other_thread ? "another thread" : "the capturing thread");
    row_bool("in relaxed mode", relaxed);
    if (begin != cudaSuccess)
        row_rt("begin capture", begin);
    if (c->driver)
        row_drv("code", (CUresult)turn.code);
    else
        row_rt("code", (cudaError_t)turn.code);
    row_bool("capture survives", end == cudaSuccess && status == cudaStreamCaptureStatusActive);
    row_rt("is capturing", during);
    row_rt("end capture", end);
    row_end();
    cudaDeviceSynchronize();
    cudaGetLastError();
}

void fact_capture(const char *arg)
{
    scene_t s = {.ctx = use_primary(), .record = ctx_record()};

    (void)arg;
    cudaStreamCreateWithFlags(&s.capturing, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&s.other, cudaStreamNonBlocking);
    cuEventCreate(&s.recorded, CU_EVENT_DISABLE_TIMING);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int mode = 0; mode < 3; mode++)
            for (int way = 0; way < 4; way++) {
                /* a captured event may not be used again outside: each try has its own */
                cuEventCreate(&s.scratch, CU_EVENT_DISABLE_TIMING);
                try_call(&s, &calls[i], mode, way & 1, way & 2);
            }
}
