/*
 * Codes of bad calls: through runtime and driver, before initialisation, without a context, from
 * another context, after a device reset and after a sticky error; with the last error afterwards
 * and what became of the output. The parity table (tests/parity) takes its "pending" rows from
 * here.
 */
#include "facts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SENTINEL ((void *)0x5e5e5e5e5e00)
#define GARBAGE ((void *)0x123456789000)
#define TOO_LARGE ((size_t)1 << 46)

static const char *output_of(const void *p)
{
    return p == SENTINEL ? "unchanged" : p ? "pointer" : "NULL";
}

/* Arguments are evaluated before the row begins: `call` is made exactly once, first of all. */
static void runtime_row(const char *text, cudaError_t e, void **out)
{
    cudaError_t peek = cudaPeekAtLastError(), last = cudaGetLastError();

    row_begin();
    row_str("call", text);
    row_rt("code", e);
    row_rt("peek", peek);
    row_rt("last error", last);
    if (out)
        row_str("output", output_of(*out));
    row_end();
    if (out)
        *out = SENTINEL;
}

static void driver_row(const char *text, CUresult r, void **out)
{
    row_begin();
    row_str("call", text);
    row_drv("code", r);
    if (out)
        row_str("output", output_of(*out));
    row_end();
    if (out)
        *out = SENTINEL;
}

#define RT(call) runtime_row(#call, call, NULL)
#define RT_OUT(call) runtime_row(#call, call, &out)
#define DRV(call) driver_row(#call, call, NULL)
#define DRV_OUT(call) driver_row(#call, call, &out)
#define RT_AS(text, call) runtime_row(text, call, NULL)
#define DRV_AS(text, call) driver_row(text, call, NULL)
#define DPTR(p) ((CUdeviceptr)(p))

/* --- the first call of a process
 * ------------------------------------------------------------------ */

static void first_runtime(const char *arg)
{
    void *out = SENTINEL;

    if (!strcmp(arg, "cudaFree-NULL"))
        RT(cudaFree(NULL));
    else if (!strcmp(arg, "cudaFree-garbage"))
        RT(cudaFree(GARBAGE));
    else if (!strcmp(arg, "cudaMalloc"))
        RT_OUT(cudaMalloc(&out, 64));
    else if (!strcmp(arg, "cudaMalloc-0"))
        RT_OUT(cudaMalloc(&out, 0));
    else if (!strcmp(arg, "cudaMalloc-NULL"))
        RT(cudaMalloc(NULL, 64));
    else if (!strcmp(arg, "cudaMallocHost"))
        RT_OUT(cudaMallocHost(&out, 64));
    else if (!strcmp(arg, "cudaFreeHost-NULL"))
        RT(cudaFreeHost(NULL));
    else if (!strcmp(arg, "cudaMallocAsync"))
        RT_OUT(cudaMallocAsync(&out, 64, 0));
    else if (!strcmp(arg, "cudaFreeAsync-garbage"))
        RT(cudaFreeAsync(GARBAGE, 0));
    else if (!strcmp(arg, "cudaGetLastError"))
        RT(cudaGetLastError());
}

static void first_driver(const char *arg)
{
    void *out = SENTINEL;
    CUcontext ctx;

    if (!strcmp(arg, "cuMemAlloc"))
        DRV_OUT(cuMemAlloc((CUdeviceptr *)&out, 64));
    else if (!strcmp(arg, "cuMemAlloc-0"))
        DRV_OUT(cuMemAlloc((CUdeviceptr *)&out, 0));
    else if (!strcmp(arg, "cuMemAlloc-NULL"))
        DRV(cuMemAlloc(NULL, 64));
    else if (!strcmp(arg, "cuMemAllocAsync"))
        DRV_OUT(cuMemAllocAsync((CUdeviceptr *)&out, 64, NULL));
    else if (!strcmp(arg, "cuMemFreeHost-NULL"))
        DRV(cuMemFreeHost(NULL));
    else if (!strcmp(arg, "cuMemFree"))
        DRV(cuMemFree(DPTR(GARBAGE)));
    else if (!strcmp(arg, "cuMemFree-0"))
        DRV(cuMemFree(0));
    else if (!strcmp(arg, "cuMemAllocHost"))
        DRV_OUT(cuMemAllocHost(&out, 64));
    else if (!strcmp(arg, "cuCtxGetCurrent"))
        DRV(cuCtxGetCurrent(&ctx));
    else if (!strcmp(arg, "cuEventQuery"))
        DRV(cuEventQuery(NULL));
}

void fact_first_call(const char *arg)
{
    CUcontext ctx = NULL;

    first_runtime(arg);
    first_driver(arg);
    CUresult r = cuCtxGetCurrent(&ctx);
    row_begin();
    row_str("call", "cuCtxGetCurrent afterwards");
    row_drv("code", r);
    row_str("output", ctx ? "a context" : "NULL");
    row_end();
}

/* --- runtime
 * -------------------------------------------------------------------------------------- */

static void runtime_arguments(void)
{
    void *out = SENTINEL;
    size_t pitch = 77;
    cudaStream_t stream = 0;

    RT(cudaMalloc(NULL, 64));
    RT(cudaMalloc(NULL, 0));
    RT_OUT(cudaMalloc(&out, 0));
    RT_OUT(cudaMalloc(&out, TOO_LARGE));
    RT_OUT(cudaMalloc(&out, SIZE_MAX));
    RT(cudaMallocHost(NULL, 64));
    RT_OUT(cudaMallocHost(&out, 0));
    RT_OUT(cudaMallocHost(&out, TOO_LARGE));
    RT_OUT(cudaHostAlloc(&out, 64, 0xffffffu));
    RT(cudaHostAlloc(NULL, 64, 0));
    RT(cudaMallocManaged(NULL, 64, cudaMemAttachGlobal));
    RT_OUT(cudaMallocManaged(&out, 0, cudaMemAttachGlobal));
    RT_OUT(cudaMallocManaged(&out, 64, 0));
    RT_OUT(cudaMallocManaged(&out, 64, 0xffu));
    RT(cudaMallocPitch(NULL, &pitch, 64, 4));
    RT_OUT(cudaMallocPitch(&out, &pitch, 0, 4));
    RT_OUT(cudaMallocPitch(&out, &pitch, 64, 0));
    RT_OUT(cudaMallocPitch(&out, &pitch, SIZE_MAX / 2, 4));
    RT(cudaMallocAsync(NULL, 64, stream));
    RT_OUT(cudaMallocAsync(&out, 0, stream));
    RT_OUT(cudaMallocAsync(&out, TOO_LARGE, stream));
    RT(cudaFreeAsync(NULL, stream));
    RT_OUT(cudaMallocPitch(&out, NULL, 64, 4)); /* last: it may crash */
}

static void runtime_frees(void)
{
    char *memory = malloc(4096), on_stack[64];
    char *p = NULL, *q = NULL, *pinned = NULL, *async = NULL, *managed = NULL;

    cudaMalloc((void **)&p, 1 << 20);
    cudaMalloc((void **)&q, 1 << 20);
    cudaMallocHost((void **)&pinned, 1 << 20);
    cudaMallocAsync((void **)&async, 1 << 20, 0);
    cudaMallocManaged((void **)&managed, 4096, cudaMemAttachGlobal);
    cudaDeviceSynchronize();
    RT(cudaFree(NULL));
    RT(cudaFree(GARBAGE));
    RT(cudaFree(memory));
    RT(cudaFree((void *)on_stack));
    RT(cudaFree(p + 512));
    RT(cudaFree(p));
    RT_AS("cudaFree(p), a second time", cudaFree(p));
    RT(cudaFree(pinned));
    RT(cudaFree(async));
    RT_AS("cudaFree(async), a second time", cudaFree(async));
    RT(cudaFree(managed));
    RT_AS("cudaFree(managed), a second time", cudaFree(managed));
    RT(cudaFreeHost(NULL));
    RT(cudaFreeHost(q));
    RT(cudaFreeHost(memory));
    RT(cudaFreeHost(pinned + 512));
    RT(cudaFreeHost(pinned));
    RT_AS("cudaFreeHost(pinned), a second time", cudaFreeHost(pinned));
    RT(cudaFreeAsync(GARBAGE, 0));
    RT(cudaFreeAsync(memory, 0));
    RT(cudaFreeAsync(q + 512, 0));
    RT(cudaFreeAsync(q, 0)); /* and not again: that breaks the driver's heap (580, H200) */
    RT(cudaDeviceSynchronize());
    free(memory);
}

void fact_codes_runtime(const char *arg)
{
    use_primary();
    if (!strcmp(arg, "frees"))
        runtime_frees();
    else
        runtime_arguments();
}

/* --- driver -------------------------------------------------------------------------------------
 */

static void driver_arguments(void)
{
    void *out = SENTINEL;
    CUdeviceptr *dev = (CUdeviceptr *)&out;
    size_t pitch = 77;

    DRV(cuMemAlloc(NULL, 64));
    DRV_OUT(cuMemAlloc(dev, 0));
    DRV_OUT(cuMemAlloc(dev, TOO_LARGE));
    DRV_OUT(cuMemAlloc(dev, SIZE_MAX));
    DRV(cuMemAllocHost(NULL, 64));
    DRV_OUT(cuMemAllocHost(&out, 0));
    DRV_OUT(cuMemAllocHost(&out, TOO_LARGE));
    DRV_OUT(cuMemHostAlloc(&out, 64, 0xffffffu));
    DRV_OUT(cuMemHostAlloc(&out, 0, 0));
    DRV(cuMemAllocManaged(NULL, 64, CU_MEM_ATTACH_GLOBAL));
    DRV_OUT(cuMemAllocManaged(dev, 0, CU_MEM_ATTACH_GLOBAL));
    DRV_OUT(cuMemAllocManaged(dev, 64, 0));
    DRV(cuMemAllocPitch(NULL, &pitch, 64, 4, 4));
    DRV_OUT(cuMemAllocPitch(dev, NULL, 64, 4, 4));
    DRV_OUT(cuMemAllocPitch(dev, &pitch, 0, 4, 4));
    DRV_OUT(cuMemAllocPitch(dev, &pitch, 64, 0, 4));
    DRV_OUT(cuMemAllocPitch(dev, &pitch, 64, 4, 5));
    DRV(cuMemAllocAsync(NULL, 64, NULL));
    DRV_OUT(cuMemAllocAsync(dev, 0, NULL));
    DRV_OUT(cuMemAllocAsync(dev, TOO_LARGE, NULL));
}

static void driver_frees(void)
{
    char *memory = malloc(4096), on_stack[64];
    void *pinned = NULL;
    CUdeviceptr p = 0, q = 0, async = 0;

    cuMemAlloc(&p, 1 << 20);
    cuMemAlloc(&q, 1 << 20);
    cuMemAllocHost(&pinned, 1 << 20);
    cuMemAllocAsync(&async, 1 << 20, NULL);
    cuCtxSynchronize();
    DRV(cuMemFree(0));
    DRV(cuMemFree(DPTR(GARBAGE)));
    DRV(cuMemFree(DPTR(memory)));
    DRV(cuMemFree(DPTR(on_stack)));
    DRV(cuMemFree(p + 512));
    DRV(cuMemFree(p));
    DRV_AS("cuMemFree(p), a second time", cuMemFree(p));
    DRV(cuMemFree(DPTR(pinned)));
    DRV(cuMemFree(async));
    DRV_AS("cuMemFree(async), a second time", cuMemFree(async));
    DRV(cuMemFreeHost(NULL));
    DRV(cuMemFreeHost((void *)q));
    DRV(cuMemFreeHost(memory));
    DRV(cuMemFreeHost((char *)pinned + 512));
    DRV(cuMemFreeHost(pinned));
    DRV_AS("cuMemFreeHost(pinned), a second time", cuMemFreeHost(pinned));
    DRV(cuMemFreeAsync(0, NULL));
    DRV(cuMemFreeAsync(DPTR(GARBAGE), NULL));
    DRV(cuMemFreeAsync(q + 512, NULL));
    DRV(cuMemFreeAsync(q, NULL)); /* see runtime_frees */
    DRV(cuCtxSynchronize());
    free(memory);
}

void fact_codes_driver(const char *arg)
{
    use_primary();
    if (!strcmp(arg, "frees"))
        driver_frees();
    else
        driver_arguments();
}

/* --- contexts
 * ------------------------------------------------------------------------------------- */

static void *free_in_thread(void *p)
{
    /* A new thread has no current context; the driver's free may take it from the pointer. */
    driver_row("cuMemFree of a live block, in a thread without a context", cuMemFree(DPTR(p)),
               NULL);
    return NULL;
}

static void *runtime_free_in_thread(void *p)
{
    runtime_row("cudaFree of a live block, in a thread that made no CUDA call", cudaFree(p), NULL);
    return NULL;
}

static void in_thread(void *(*run)(void *), void *p)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, run, p) == 0)
        pthread_join(thread, NULL);
}

static void without_context(CUdeviceptr p, CUevent done)
{
    void *out = SENTINEL;
    size_t a, b;

    cuCtxSetCurrent(NULL);
    DRV_OUT(cuMemAlloc((CUdeviceptr *)&out, 64));
    DRV_OUT(cuMemAllocHost(&out, 64));
    DRV(cuMemAlloc(NULL, 64));
    DRV(cuMemFree(0));
    DRV(cuMemFree(DPTR(GARBAGE)));
    DRV(cuMemFree(p));
    DRV(cuMemFreeHost(NULL));
    DRV(cuMemGetInfo(&a, &b));
    DRV(cuEventQuery(done));
    DRV(cuEventSynchronize(done));
    DRV(cuEventDestroy(done));
}

void fact_codes_context(const char *arg)
{
    CUcontext primary = use_primary(), other = NULL, now = NULL;
    CUdeviceptr p[5];
    void *pinned = NULL;
    CUevent done, foreign;

    (void)arg;
    for (int i = 0; i < 5; i++)
        cuMemAlloc(&p[i], 1 << 20);
    cuMemAllocHost(&pinned, 4096);
    cuEventCreate(&done, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&foreign, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(done, NULL);
    cuEventRecord(foreign, NULL);
    cuCtxSynchronize();
    in_thread(free_in_thread, (void *)p[0]);
    in_thread(runtime_free_in_thread, (void *)p[1]);
    if (ctx_create(&other, 0) == CUDA_SUCCESS) {
        row_note("from here another context of the device is current");
        DRV(cuMemFree(p[2]));
        RT(cudaFree((void *)p[3]));
        DRV(cuMemFreeHost(pinned));
        DRV(cuEventQuery(foreign));
        cuCtxDestroy(other);
        cuCtxGetCurrent(&now);
        row_note(now == primary ? "destroying it made the one below current again"
                                : "destroying it left another context current");
        row_note("a block of a destroyed context:");
        CUdeviceptr gone = 0;
        cuCtxSetCurrent(primary);
        if (ctx_create(&other, 0) == CUDA_SUCCESS) {
            cuMemAlloc(&gone, 4096);
            cuCtxDestroy(other);
            cuCtxSetCurrent(primary);
            DRV(cuMemFree(gone));
            RT(cudaFree((void *)gone));
        }
    }
    row_note("from here no context is current");
    without_context(p[4], done);
}

/* --- after a reset, after a sticky error -------------------------------------------------------
 */

static void old_things(CUdeviceptr p, CUdeviceptr q, void *pinned, CUcontext old)
{
    void *out = SENTINEL, *fresh = NULL;
    CUcontext ctx = NULL;
    CUdeviceptr base;
    size_t bytes;

    DRV(cuCtxGetCurrent(&ctx));
    row_note(ctx == old ? "the old primary handle is current"
             : ctx      ? "another handle is current"
                        : "no context is current");
    DRV(cuMemGetAddressRange(&base, &bytes, p));
    DRV(cuMemFree(p));
    DRV_OUT(cuMemAlloc((CUdeviceptr *)&out, 64));
    RT(cudaFree((void *)q));
    RT(cudaFreeHost(pinned));
    runtime_row("cudaMalloc(&fresh, 64)", cudaMalloc(&fresh, 64), NULL);
    if (fresh == (void *)p)
        row_note("the new block has the old block's address, which is freed next");
    cuCtxGetCurrent(&ctx);
    row_note(ctx == old ? "the primary handle is the same as before the reset"
                        : "the primary handle differs from the one before the reset");
    DRV_AS("cuMemFree(p), a second time", cuMemFree(p));
    RT_AS("cudaFree((void *)q), a second time", cudaFree((void *)q));
    /* Not the event: its handle dangles, and cuEventQuery of it crashed (580, H200). */
}

/* A thread that made no CUDA call before may be said to have no device to reset. */
static void *reset_device(void *how)
{
    if (!strcmp(how, "other-thread-set"))
        RT(cudaSetDevice(0));
    if (!strcmp(how, "other-thread-used"))
        RT(cudaFree(NULL));
    if (!strcmp(how, "other-thread-driver"))
        driver_row("cuDevicePrimaryCtxReset in another thread", cuDevicePrimaryCtxReset(0), NULL);
    else
        runtime_row("cudaDeviceReset() in another thread", cudaDeviceReset(), NULL);
    return NULL;
}

/* Whether there was a reset at all. */
static void primary_row(const char *when)
{
    CUcontext ctx = NULL;
    unsigned flags;
    unsigned long long id = 0;
    int active = -1;
    ctx_id_fn id_of = ctx_id();

    cuDevicePrimaryCtxGetState(0, &flags, &active);
    cuCtxGetCurrent(&ctx);
    CUresult r = id_of ? id_of(ctx, &id) : CUDA_ERROR_NOT_FOUND;
    row_begin();
    row_str("when", when);
    row_bool("primary of device 0 active", active == 1);
    row_drv("id code", r);
    row_int("id", (long long)id);
    row_end();
}

void fact_after_reset(const char *arg)
{
    CUcontext ctx = use_primary();
    CUdeviceptr p, q;
    void *pinned = NULL;

    cuMemAlloc(&p, 1 << 20);
    cuMemAlloc(&q, 1 << 20);
    cuMemAllocHost(&pinned, 4096);
    cuCtxSynchronize();
    primary_row("before the reset");
    if (!strncmp(arg, "other-thread", 12))
        in_thread(reset_device, (void *)(uintptr_t)arg);
    else
        RT(cudaDeviceReset());
    primary_row("after the reset");
    old_things(p, q, pinned, ctx);
}

static cudaError_t break_context(CUcontext ctx, const char *arg)
{
    void *p = NULL, *q = NULL;

    if (!strcmp(arg, "kernel")) {
        CUresult r = hold_poke(ctx, DPTR(GARBAGE), NULL);
        driver_row("launch of a kernel that writes to an illegal address", r, NULL);
        return cudaDeviceSynchronize();
    }
    cudaMalloc(&p, 64 << 20);
    cudaMalloc(&q, 64 << 20);
    cudaFree(p);
    runtime_row("copy from freed memory", cudaMemcpy(q, p, 64 << 20, cudaMemcpyDeviceToDevice),
                NULL);
    return cudaDeviceSynchronize();
}

void fact_sticky(const char *arg)
{
    CUcontext ctx = use_primary();
    void *out = SENTINEL, *p = NULL, *pinned = NULL, *p2 = NULL;
    CUevent ev;
    size_t a, b;

    if (!strcmp(arg, "kernel") && !hold_usable(BY_KERNEL))
        return;
    cudaMalloc(&p, 4096);
    cudaMalloc(&p2, 4096);
    cudaMallocHost(&pinned, 4096);
    cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(ev, NULL);
    cudaDeviceSynchronize();
    runtime_row("cudaDeviceSynchronize()", break_context(ctx, arg), NULL);
    RT(cudaGetLastError());
    RT_OUT(cudaMalloc(&out, 64));
    RT(cudaMalloc(NULL, 64));
    RT_OUT(cudaMallocHost(&out, 64));
    RT(cudaFree(p));
    RT(cudaFree(NULL));
    RT(cudaFree(GARBAGE));
    RT(cudaFreeHost(pinned));
    DRV_OUT(cuMemAlloc((CUdeviceptr *)&out, 64));
    DRV(cuMemFree(DPTR(p2)));
    DRV(cuMemGetInfo(&a, &b));
    DRV(cuEventQuery(ev));
    if (ctx_record())
        driver_row("cuCtxRecordEvent(ctx, ev)", ctx_record()(ctx, ev), NULL);
    DRV(cuCtxSynchronize());
    RT(cudaDeviceReset());
    RT_OUT(cudaMalloc(&out, 64));
}
