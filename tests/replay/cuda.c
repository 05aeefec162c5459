/* Replays a trace call by call through CUDA, and so through the preloaded shim where there is one.
 *
 * With several threads an allocation and its free belong to one of them, by the number of the
 * allocation, and each does its own in trace order. What a pass leaves live is freed before the
 * next. The shim's figures are those of the whole process: one trace for each process. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "tests/replay/policy.h"
#define CACHEALLOC_WEAK
#include "include/cachealloc.h"

#define KERNEL_EVERY 16 /* operations */
#define KERNELS_MOST 8  /* in flight of each thread: the host must not run ahead without end */

typedef struct run {
    const trace_t *trace;
    const how_t *how;
    void **live; /* by slot */
    cudaKernel_t kernel;
    pthread_barrier_t begin;
    _Atomic size_t live_bytes, live_peak;
} run_t;

typedef struct worker {
    run_t *run;
    const step_t **steps;
    size_t count;
    cudaStream_t streams[STREAMS_MOST];
    cudaStream_t work;
    cudaEvent_t done[KERNELS_MOST];
    unsigned launched;
    int status;
    pthread_t thread;
} worker_t;

uint64_t replay_now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void note_live(run_t *run, const step_t *step)
{
    if (!step->allocates) {
        atomic_fetch_sub(&run->live_bytes, step->bytes);
        return;
    }
    size_t now = atomic_fetch_add(&run->live_bytes, step->bytes) + step->bytes;
    size_t peak = atomic_load(&run->live_peak);
    while (now > peak && !atomic_compare_exchange_weak(&run->live_peak, &peak, now))
        ;
}

static cudaError_t keep_busy(worker_t *worker)
{
    unsigned at = worker->launched++ % KERNELS_MOST;
    cudaError_t code = cudaEventSynchronize(worker->done[at]);
    if (code == cudaSuccess)
        code = cudaLaunchKernel((const void *)worker->run->kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1},
                                NULL, 0, worker->work);
    return code == cudaSuccess ? cudaEventRecord(worker->done[at], worker->work) : code;
}

static cudaError_t do_step(worker_t *worker, const step_t *step)
{
    void **live = &worker->run->live[step->slot];
    unsigned streams = worker->run->how->streams;
    if (streams == 0)
        return step->allocates ? cudaMalloc(live, step->bytes) : cudaFree(*live);
    cudaStream_t stream = worker->streams[step->slot / worker->run->how->threads % streams];
    return step->allocates ? cudaMallocAsync(live, step->bytes, stream)
                           : cudaFreeAsync(*live, stream);
}

static void *work(void *arg)
{
    worker_t *worker = arg;
    run_t *run = worker->run;
    bool alone = run->how->threads == 1;
    pthread_barrier_wait(&run->begin);
    for (size_t i = 0; i < worker->count; i++) {
        const step_t *step = worker->steps[i];
        cudaError_t code = do_step(worker, step);
        if (code == cudaSuccess && run->how->busy && i % KERNEL_EVERY == 0)
            code = keep_busy(worker);
        if (code != cudaSuccess) {
            worker->status =
                trace_complain(run->trace, step->line, step->allocates ? "cudaMalloc" : "cudaFree",
                               cudaGetErrorString(code));
            break;
        }
        if (!step->allocates)
            run->live[step->slot] = NULL;
        if (!alone)
            note_live(run, step);
    }
    return NULL;
}

/* The shim's figures; false where there is no shim. */
static bool ask_shim(cachealloc_stats_t *stats)
{
    *stats = (cachealloc_stats_t){.size = sizeof(*stats)};
    return cachealloc_stats && cachealloc_stats(stats) == 0;
}

/* One pass. The calling thread is the first worker. */
static int run_pass(run_t *run, worker_t *workers, pass_t *pass)
{
    unsigned threads = run->how->threads, started = 1;
    int status = 0;
    run->live_bytes = run->live_peak = 0;
    if (pthread_barrier_init(&run->begin, NULL, threads) != 0)
        return trace_complain(run->trace, 1, "out of host memory", NULL);
    for (; started < threads; started++)
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]) != 0) {
            fprintf(stderr, "replay: cannot start %u threads\n", threads);
            exit(1);
        }
    uint64_t begin = replay_now_ns();
    work(&workers[0]);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    pass->ns = replay_now_ns() - begin;
    pthread_barrier_destroy(&run->begin);
    pass->live_peak = threads == 1 ? run->trace->live_peak : run->live_peak;
    for (unsigned i = 0; i < threads; i++)
        status |= workers[i].status;
    for (uint32_t i = 0; i < run->trace->slots && status == 0; i++) {
        if (run->live[i] && cudaFree(run->live[i]) != cudaSuccess)
            status =
                trace_complain(run->trace, run->trace->count + 1, "cudaFree of what is left", NULL);
        run->live[i] = NULL;
    }
    return status;
}

static int run_passes(run_t *run, worker_t *workers, figures_t *figures)
{
    int status = 0;
    for (unsigned i = 0; i < run->how->passes && status == 0; i++) {
        cachealloc_stats_t before, after;
        pass_t *pass = &figures->pass[i];
        ask_shim(&before);
        status = run_pass(run, workers, pass);
        figures->counted = ask_shim(&after);
        pass->upstream_peak = after.reserved_peak_bytes;
        pass->upstream_calls = after.upstream_allocs - before.upstream_allocs +
                               after.upstream_frees - before.upstream_frees;
        pass->hits = after.hits - before.hits;
        pass->waits = after.fence_waits - before.fence_waits;
    }
    return status;
}

static cudaError_t prepare_worker(worker_t *worker, const how_t *how)
{
    cudaError_t code = cudaSuccess;
    for (unsigned i = 0; i < how->streams && code == cudaSuccess; i++)
        code = cudaStreamCreateWithFlags(&worker->streams[i], cudaStreamNonBlocking);
    if (code == cudaSuccess && how->busy)
        code = cudaStreamCreateWithFlags(&worker->work, cudaStreamNonBlocking);
    for (unsigned i = 0; i < KERNELS_MOST && how->busy && code == cudaSuccess; i++)
        code = cudaEventCreateWithFlags(&worker->done[i], cudaEventDisableTiming);
    return code;
}

/* The context is made here, so that the first operation does not pay for it. */
static cudaError_t prepare(run_t *run, worker_t *workers)
{
    cudaLibrary_t library;
    cudaError_t code = cudaFree(NULL);
    if (code == cudaSuccess && run->how->busy) {
        code = cudaLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0);
        if (code == cudaSuccess)
            code = cudaLibraryGetKernel(&run->kernel, library, "kernel");
    }
    for (unsigned i = 0; i < run->how->threads && code == cudaSuccess; i++)
        code = prepare_worker(&workers[i], run->how);
    return code;
}

/* Deals the steps out. */
static void deal(const trace_t *trace, worker_t *workers, unsigned threads, const step_t **steps)
{
    for (unsigned i = 0; i < threads; i++) {
        workers[i].steps = steps;
        for (size_t at = 0; at < trace->count; at++)
            if (trace->steps[at].slot % threads == i)
                *steps++ = &trace->steps[at];
        workers[i].count = (size_t)(steps - workers[i].steps);
    }
}

int replay_cuda(const trace_t *trace, const how_t *how, figures_t *figures)
{
    run_t run = {.trace = trace, .how = how};
    worker_t *workers = calloc(how->threads, sizeof(*workers));
    const step_t **steps = calloc(trace->count + 1, sizeof(*steps));
    int status = -1;
    run.live = calloc(trace->slots + 1, sizeof(*run.live));
    if (!workers || !steps || !run.live) {
        trace_complain(trace, 1, "out of host memory", NULL);
    } else {
        for (unsigned i = 0; i < how->threads; i++)
            workers[i] = (worker_t){.run = &run};
        deal(trace, workers, how->threads, steps);
        cudaError_t code = prepare(&run, workers);
        if (code != cudaSuccess)
            fprintf(stderr, "replay: no device: %s\n", cudaGetErrorString(code));
        else
            status = run_passes(&run, workers, figures);
    }
    free(workers);
    free(steps);
    free(run.live);
    return status;
}
