/*
 * Work that stays in flight until it is released, on any stream of any context.
 *
 * A host function waits for an atomic word, a kernel for a word of pinned memory. Host functions
 * may be scheduled apart from device work, so whatever depends on "the device is busy" is asked
 * with both; where PTX cannot be loaded (the simulator) the kernel is reported as unavailable.
 * Every hold takes a fresh word: a straggler of the last one cannot be held by the next.
 */
#include "facts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

const char *const holder_names[HOLDERS] = {"host_function", "kernel"};

enum { WORDS = 8192, CONTEXTS = 8 };

static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .entry hold(.param .u64 word, .param .u64 limit_ns)\n"
                          "{\n"
                          " .reg .pred %p; .reg .u32 %v; .reg .u64 %f, %l, %t0, %t1;\n"
                          " ld.param.u64 %f, [word];\n"
                          " ld.param.u64 %l, [limit_ns];\n"
                          " mov.u64 %t0, %globaltimer;\n"
                          "AGAIN:\n"
                          " ld.volatile.global.u32 %v, [%f];\n"
                          " setp.ne.u32 %p, %v, 0;\n"
                          " @%p bra DONE;\n"
                          " mov.u64 %t1, %globaltimer;\n"
                          " sub.u64 %t1, %t1, %t0;\n"
                          " setp.lt.u64 %p, %t1, %l;\n"
                          " @%p bra AGAIN;\n"
                          "DONE: ret;\n"
                          "}\n"
                          ".visible .entry poke(.param .u64 where)\n"
                          "{\n"
                          " .reg .u64 %a; .reg .u32 %v;\n"
                          " ld.param.u64 %a, [where];\n"
                          " mov.u32 %v, 1;\n"
                          " st.global.u32 [%a], %v;\n"
                          " ret;\n"
                          "}\n";

static struct {
    CUcontext ctx;
    CUfunction hold, poke;
} modules[CONTEXTS];
static int modules_used;

static _Atomic uint32_t *words; /* pinned and mapped; host functions and kernels watch it */
static int word;
static _Atomic int begun;
static _Atomic uint64_t released_at;

/* --- the helper that releases ------------------------------------------------------------------
 */

static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t helper_wake = PTHREAD_COND_INITIALIZER;
static pthread_t helper;
static bool helper_runs, helper_hurry;
static int helper_ms;

static void release(void)
{
    uint64_t none = 0;

    if (atomic_compare_exchange_strong(&released_at, &none, now_ns()))
        atomic_store(&words[word], 1);
}

static void *helper_main(void *unused)
{
    uint64_t end = now_ns() + (uint64_t)helper_ms * 1000000u;

    (void)unused;
    pthread_mutex_lock(&helper_lock);
    while (!helper_hurry && now_ns() < end) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 1000000;
        if (t.tv_nsec >= 1000000000) {
            t.tv_sec++;
            t.tv_nsec -= 1000000000;
        }
        pthread_cond_timedwait(&helper_wake, &helper_lock, &t);
    }
    pthread_mutex_unlock(&helper_lock);
    release();
    return NULL;
}

/* --- the work ----------------------------------------------------------------------------------
 */

static void CUDA_CB hold_on_host(void *data)
{
    _Atomic uint32_t *w = data;
    uint64_t end = now_ns() + HOLD_LIMIT_MS * 1000000ull;

    atomic_fetch_add(&begun, 1);
    while (atomic_load(w) == 0 && now_ns() < end)
        sleep_ms(1);
}

static CUresult load(CUcontext ctx, CUfunction *hold, CUfunction *poke)
{
    CUmodule module;
    CUresult r;

    for (int i = 0; i < modules_used; i++)
        if (modules[i].ctx == ctx) {
            *hold = modules[i].hold;
            *poke = modules[i].poke;
            return CUDA_SUCCESS;
        }
    if ((r = cuModuleLoadData(&module, ptx)) != CUDA_SUCCESS ||
        (r = cuModuleGetFunction(hold, module, "hold")) != CUDA_SUCCESS ||
        (r = cuModuleGetFunction(poke, module, "poke")) != CUDA_SUCCESS)
        return r;
    if (modules_used < CONTEXTS) {
        modules[modules_used].ctx = ctx;
        modules[modules_used].hold = *hold;
        modules[modules_used++].poke = *poke;
    }
    return CUDA_SUCCESS;
}

static CUresult launch_hold(CUcontext ctx, CUstream stream)
{
    CUfunction hold, poke;
    uint64_t limit = HOLD_LIMIT_MS * 1000000ull;
    void *address = (void *)&words[word];
    void *args[] = {&address, &limit};
    CUresult r = load(ctx, &hold, &poke);

    return r ? r : cuLaunchKernel(hold, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

CUresult hold_poke(CUcontext ctx, CUdeviceptr where, CUstream stream)
{
    CUfunction hold, poke;
    void *args[] = {&where};
    CUresult r = load(ctx, &hold, &poke);

    return r ? r : cuLaunchKernel(poke, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

void hold_open(void)
{
    if (!words) {
        void *p = NULL;
        if (cuMemHostAlloc(&p, WORDS * sizeof *words,
                           CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
            cuMemAllocHost(&p, WORDS * sizeof *words);
        words = p;
    }
    word = (word + 1) % WORDS;
    atomic_store(&words[word], 0);
    atomic_store(&begun, 0);
    atomic_store(&released_at, 0);
}

CUresult hold_stream(holder_t how, CUcontext ctx, CUstream stream)
{
    CUcontext old;
    CUresult r = cuCtxPushCurrent(ctx);

    if (r != CUDA_SUCCESS)
        return r;
    if (how == BY_KERNEL)
        r = launch_hold(ctx, stream);
    else
        r = cuLaunchHostFunc(stream, hold_on_host, (void *)&words[word]);
    cuCtxPopCurrent(&old);
    return r;
}

void hold_begun(holder_t how)
{
    uint64_t end = now_ns() + 200000000u;

    if (how == BY_KERNEL)
        sleep_ms(3);
    else
        while (atomic_load(&begun) == 0 && now_ns() < end)
            sleep_ms(1);
}

void hold_for_ms(int ms)
{
    helper_ms = ms;
    helper_hurry = false;
    helper_runs = pthread_create(&helper, NULL, helper_main, NULL) == 0;
    if (!helper_runs)
        release();
}

uint64_t hold_finish(void)
{
    if (helper_runs) {
        pthread_mutex_lock(&helper_lock);
        helper_hurry = true;
        pthread_cond_signal(&helper_wake);
        pthread_mutex_unlock(&helper_lock);
        pthread_join(helper, NULL);
        helper_runs = false;
    }
    release();
    return atomic_load(&released_at);
}

bool hold_usable(holder_t how)
{
    static int known[HOLDERS]; /* 0 not tried, 1 no, 2 yes */
    CUcontext ctx;
    CUstream stream;

    if (known[how])
        return known[how] == 2;
    known[how] = 1;
    if (cuCtxGetCurrent(&ctx) || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))
        return false;
    hold_open();
    if (words && hold_stream(how, ctx, stream) == CUDA_SUCCESS) {
        sleep_ms(20);
        if (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
            known[how] = 2;
    }
    if (words)
        hold_finish();
    cuStreamSynchronize(stream);
    cuStreamDestroy(stream);
    if (known[how] == 1) {
        char text[80];
        snprintf(text, sizeof text, "unavailable: work in flight by %s", holder_names[how]);
        row_note(text);
    }
    return known[how] == 2;
}

/* --- places --------------------------------------------------------------------------------------
 */

static int place_add(place_t *out, int n, const char *name, CUcontext ctx, CUstream stream)
{
    out[n] = (place_t){name, ctx, stream};
    return n + 1;
}

static int places_elsewhere(place_t *out, int n)
{
    CUcontext other, old;
    CUstream stream;
    int devices = 0;

    if (ctx_create(&other, 0) == CUDA_SUCCESS) {
        if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
            n = place_add(out, n, "other context, same device", other, stream);
        cuCtxPopCurrent(&old);
    }
    cudaGetDeviceCount(&devices);
    if (devices > 1 && cudaSetDevice(1) == cudaSuccess && cudaFree(NULL) == cudaSuccess) {
        cuCtxGetCurrent(&other);
        if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
            n = place_add(out, n, "other device", other, stream);
        cudaSetDevice(0);
    }
    return n;
}

int places_make(place_t *out)
{
    CUcontext ctx = use_primary();
    CUstream stream;
    int n = 0, low = 0, high = 0;

    n = place_add(out, n, "legacy stream", ctx, CU_STREAM_LEGACY);
    n = place_add(out, n, "per-thread default stream", ctx, CU_STREAM_PER_THREAD);
    if (cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS)
        n = place_add(out, n, "blocking stream", ctx, stream);
    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS)
        n = place_add(out, n, "non-blocking stream", ctx, stream);
    cuCtxGetStreamPriorityRange(&low, &high);
    if (cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, high) == CUDA_SUCCESS)
        n = place_add(out, n, "non-blocking stream of high priority", ctx, stream);
    return places_elsewhere(out, n);
}

bool place_make_peer(place_t *p)
{
    bool ok;

    if (strcmp(p->name, "other device") != 0)
        return false;
    ok = cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess && cudaSetDevice(1) == cudaSuccess &&
         cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess;
    cudaSetDevice(0);
    cudaGetLastError();
    if (ok)
        p->name = "other device, peer access both ways";
    return ok;
}

void place_drain(const place_t *p)
{
    CUcontext old;

    cuCtxPushCurrent(p->ctx);
    cuStreamSynchronize(p->stream);
    cuCtxPopCurrent(&old);
}
