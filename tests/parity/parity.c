/*
 * Error parity: makes one call in a prepared process and prints what it answered.
 *
 *   parity CASE       CODE LAST_ERROR OUTPUT, one line; exit status 0 whatever the answer is
 *   parity --list     the cases: name and lane
 *
 * OUTPUT is `-` where the call has none, `unchanged`, `NULL`, or by the pointer's attributes
 * `device-N`, `host` or `managed`; `pointer` where these cannot be had. Runs on the simulator and
 * on hardware, with and without the shim; only the sticky cases need the simulator, whose fills
 * reach their address when the device gets there, as kernels' stores do.
 *
 * Must not know: libcachealloc.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SENTINEL ((void *)0x5e5e5e5e5e00)
#define GARBAGE ((void *)0x123456789000)
#define TOO_LARGE ((size_t)1 << 46)
#define DPTR(p) ((CUdeviceptr)(uintptr_t)(p))
#define AT(p, offset) ((void *)((char *)(p) + (offset)))
#define MIB ((size_t)1 << 20)

/* What setups leave for the call. */
static struct {
    void *p, *q, *r; /* device memory, 1 MiB each; q stays live */
    void *pinned, *async, *managed, *heap, *on_stack;
    size_t pitch, left;
    CUcontext ctx;
} w;

/* A setup that fails would make the case meaningless: it ends the process instead. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        int code_ = (int)(call);                                                                   \
        if (code_ != 0) {                                                                          \
            fprintf(stderr, "parity: setup: %s: %d\n", #call, code_);                              \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

static void clear(void)
{
    cudaGetLastError();
}

static void in_thread(void *(*run)(void *), void *arg)
{
    pthread_t thread;

    MUST(pthread_create(&thread, NULL, run, arg));
    MUST(pthread_join(thread, NULL));
}

/* --- setups: runtime
 * -------------------------------------------------------------------------------- */

static void nothing(void)
{
}

static void context(void)
{
    MUST(cudaFree(NULL));
}

static void block(void)
{
    MUST(cudaMalloc(&w.p, MIB));
    MUST(cudaMalloc(&w.q, MIB));
}

static void freed(void)
{
    block();
    MUST(cudaFree(w.p));
}

static void block_no_context(void)
{
    block();
    MUST(cuCtxSetCurrent(NULL));
}

static void make_error(void)
{
    if (cudaMalloc(NULL, 64) == cudaSuccess)
        MUST(1);
}

static void block_with_error(void)
{
    block();
    make_error();
}

static void freed_with_error(void)
{
    freed();
    make_error();
}

static void mostly_full(void)
{
    size_t total;

    context();
    MUST(cudaMemGetInfo(&w.left, &total));
    MUST(cudaMalloc(&w.p, w.left - 64 * MIB));
    MUST(cudaMemGetInfo(&w.left, &total));
}

static void pinned(void)
{
    MUST(cudaMallocHost(&w.pinned, MIB));
}

static void async(void)
{
    MUST(cudaMallocAsync(&w.async, MIB, 0));
    MUST(cudaStreamSynchronize(0));
}

static void managed(void)
{
    MUST(cudaMallocManaged(&w.managed, MIB, cudaMemAttachGlobal));
}

static void pitched(void)
{
    MUST(cudaMallocPitch(&w.p, &w.pitch, 1000, 16));
}

static void second_device(void)
{
    block();
    MUST(cudaSetDevice(1));
}

static void second_device_first(void)
{
    MUST(cudaSetDevice(1));
}

static void second_device_after_cached(void)
{
    freed(); /* a pool that forgets to look at the device would serve this block */
    MUST(cudaSetDevice(1));
}

static void first_device_again(void)
{
    second_device_after_cached();
    MUST(cudaMalloc(&w.r, MIB));
    MUST(cudaFree(w.r));
    MUST(cudaSetDevice(0));
}

static void bad_device(void)
{
    block();
    if (cudaSetDevice(7) == cudaSuccess)
        MUST(1);
    clear();
}

static void reset_here(void)
{
    void *cached;

    block();
    MUST(cudaMalloc(&cached, MIB));
    MUST(cudaFree(cached));
    MUST(cudaDeviceReset());
}

static void reset_pinned(void)
{
    pinned();
    MUST(cudaDeviceReset());
}

static void *reset_device(void *unused)
{
    MUST(cudaSetDevice(0));
    MUST(cudaDeviceReset());
    return unused;
}

static void reset_elsewhere(void)
{
    void *cached;

    block();
    MUST(cudaMalloc(&cached, MIB));
    MUST(cudaFree(cached));
    in_thread(reset_device, NULL);
}

/* A fill far away from all memory; the stream finds out, the calls after it are told. */
static void fill_nowhere(void)
{
    cuMemsetD8Async(DPTR(w.q) + ((size_t)1 << 38), 1, 64, NULL);
    cuCtxSynchronize();
}

static void sticky(void)
{
    void *cached;

    block();
    MUST(cudaMalloc(&cached, MIB));
    MUST(cudaFree(cached));
    fill_nowhere();
    clear();
}

static void sticky_pinned(void)
{
    void *cached;

    pinned();
    MUST(cudaMallocHost(&cached, MIB));
    MUST(cudaFreeHost(cached));
    sticky();
}

static void sticky_reset(void)
{
    sticky();
    cudaDeviceReset();
    clear();
}

/* --- setups: driver
 * --------------------------------------------------------------------------------- */

static void initialised(void)
{
    MUST(cuInit(0));
}

static void drv_context(void)
{
    initialised();
    MUST(cuDevicePrimaryCtxRetain(&w.ctx, 0));
    MUST(cuCtxSetCurrent(w.ctx));
}

static void drv_block(void)
{
    drv_context();
    MUST(cuMemAlloc((CUdeviceptr *)&w.p, MIB));
    MUST(cuMemAlloc((CUdeviceptr *)&w.q, MIB));
}

static void drv_block_no_context(void)
{
    drv_block();
    MUST(cuCtxSetCurrent(NULL));
}

static void drv_pinned(void)
{
    drv_context();
    MUST(cuMemAllocHost(&w.pinned, MIB));
}

static void drv_pinned_no_context(void)
{
    drv_pinned();
    MUST(cuCtxSetCurrent(NULL));
}

static void make_context(CUcontext *ctx)
{
#if CUDA_VERSION >= 13000
    MUST(cuCtxCreate(ctx, NULL, 0, 0));
#else
    MUST(cuCtxCreate(ctx, 0, 0));
#endif
}

static void drv_other_context(void)
{
    CUcontext other;

    drv_block();
    make_context(&other);
}

static void drv_destroyed_context(void)
{
    CUcontext other;

    drv_context();
    make_context(&other);
    MUST(cuMemAlloc((CUdeviceptr *)&w.p, MIB));
    MUST(cuCtxDestroy(other));
    MUST(cuCtxSetCurrent(w.ctx));
}

static void drv_pinned_other_context(void)
{
    CUcontext other;

    drv_pinned();
    make_context(&other);
}

static void drv_pinned_destroyed_context(void)
{
    CUcontext other;

    drv_context();
    make_context(&other);
    MUST(cuMemAllocHost(&w.pinned, MIB));
    MUST(cuCtxDestroy(other));
    MUST(cuCtxSetCurrent(w.ctx));
}

static void *drv_reset_device(void *unused)
{
    MUST(cuDevicePrimaryCtxReset(0));
    return unused;
}

static void drv_reset_elsewhere(void)
{
    CUdeviceptr cached;

    drv_block();
    MUST(cuMemAlloc(&cached, MIB));
    MUST(cuMemFree(cached));
    in_thread(drv_reset_device, NULL);
}

static void drv_sticky(void)
{
    drv_block();
    fill_nowhere();
}

#include "tracked.h"

/* --- calls that need more than an expression
 * --------------------------------------------------------- */

typedef struct job {
    void *p;
    CUcontext ctx;
    int code;
} job_t;

static void *run_free(void *data)
{
    job_t *job = data;

    job->code = (int)cudaFree(job->p);
    return NULL;
}

static void *run_drv_free(void *data)
{
    job_t *job = data;

    if (job->ctx)
        MUST(cuCtxSetCurrent(job->ctx));
    job->code = (int)cuMemFree(DPTR(job->p));
    return NULL;
}

static void *run_malloc(void *data)
{
    job_t *job = data;

    job->code = (int)cudaMalloc(&job->p, 64);
    return NULL;
}

static cudaError_t free_in_thread(void *p)
{
    job_t job = {.p = p};

    in_thread(run_free, &job);
    return (cudaError_t)job.code;
}

static CUresult drv_free_in_thread(void *p, CUcontext ctx)
{
    job_t job = {.p = p, .ctx = ctx};

    in_thread(run_drv_free, &job);
    return (CUresult)job.code;
}

static cudaError_t malloc_in_thread(void **out)
{
    job_t job = {.p = *out};

    in_thread(run_malloc, &job);
    *out = job.p;
    return (cudaError_t)job.code;
}

/* --- the cases
 * ----------------------------------------------------------------------------------------- */

static union {
    void *pointer;
    CUdeviceptr address;
} output = {.pointer = SENTINEL};
#define out output.pointer
#define dev output.address

#define RT(name, setup, call)                                                                      \
    static int call_##name(void)                                                                   \
    {                                                                                              \
        return (int)(call);                                                                        \
    }
#define RT_OUT RT
#define DRV RT
#define DRV_OUT RT
#include "cases.def"
#undef RT
#undef RT_OUT
#undef DRV
#undef DRV_OUT
#undef out
#undef dev

static const struct parity_case {
    const char *name, *lane;
    void (*setup)(void);
    int (*call)(void);
    int has_output;
} cases[] = {
#define RT(name, setup, call) {#name, "runtime", setup, call_##name, 0},
#define RT_OUT(name, setup, call) {#name, "runtime", setup, call_##name, 1},
#define DRV(name, setup, call) {#name, "driver", setup, call_##name, 0},
#define DRV_OUT(name, setup, call) {#name, "driver", setup, call_##name, 1},
#include "cases.def"
};

static const char *output_name(char *buffer, size_t bytes)
{
    CUdeviceptr p = DPTR(output.pointer);
    unsigned type = 0, is_managed = 0;
    int ordinal = -1;

    if (output.pointer == SENTINEL)
        return "unchanged";
    if (!output.pointer)
        return "NULL";
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) != CUDA_SUCCESS ||
        cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) != CUDA_SUCCESS)
        return "pointer";
    cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p);
    if (is_managed)
        return "managed";
    if (type == CU_MEMORYTYPE_HOST)
        return "host";
    snprintf(buffer, bytes, "device-%d", ordinal);
    return buffer;
}

static const char *driver_code(int code)
{
    const char *name = NULL;

    return cuGetErrorName((CUresult)code, &name) == CUDA_SUCCESS && name ? name : "?";
}

static void run_case(const struct parity_case *c)
{
    char buffer[32], on_stack[64];
    int runtime = strcmp(c->lane, "runtime") == 0;
    cudaError_t last = cudaSuccess;
    int code;

    w.heap = malloc(4096);
    w.on_stack = on_stack;
    c->setup();
    code = c->call();
    if (runtime)
        last = cudaPeekAtLastError();
    printf("%s %s %s\n", runtime ? cudaGetErrorName((cudaError_t)code) : driver_code(code),
           runtime ? cudaGetErrorName(last) : "-",
           c->has_output ? output_name(buffer, sizeof buffer) : "-");
    free(w.heap);
}

int main(int argc, char **argv)
{
    size_t count = sizeof cases / sizeof *cases;

    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++)
            printf("%s %s\n", cases[i].name, cases[i].lane);
        return 0;
    }
    for (size_t i = 0; argc == 2 && i < count; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            run_case(&cases[i]);
            return 0;
        }
    fprintf(stderr, "usage: parity CASE | --list\n");
    return 2;
}
