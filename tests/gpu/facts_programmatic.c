/*
 * Programmatic launches: a kernel may begin while the one before it in its stream goes on, if that
 * one allows it, and waits for it at its grid sync. What comes between the two ends that, or does
 * not: a block that is freed and allocated in the order of a stream is written too early where
 * neither call ends it.
 */
#include "facts_gate.h"

#include "simcuda/simcuda.h"

#include <string.h>

#if CUDA_VERSION >= 11080

/* For compute capability 9.0, which brought programmatic launches. */
static const char ptx[] = ".version 7.8\n"
                          ".target sm_90\n"
                          ".address_size 64\n"
                          ".visible .entry primary(.param .u64 job)\n"
                          "{\n"
                          " .reg .pred %p; .reg .u32 %v, %one; .reg .u64 %j, %l, %t0, %t1;\n"
                          " ld.param.u64 %j, [job];\n"
                          " mov.u32 %one, 1;\n"
                          " ld.volatile.global.u64 %l, [%j+24];\n"
                          " st.volatile.global.u32 [%j+4], %one;\n"
                          " griddepcontrol.launch_dependents;\n"
                          " mov.u64 %t0, %globaltimer;\n"
                          "AGAIN:\n"
                          " ld.volatile.global.u32 %v, [%j];\n"
                          " setp.ne.u32 %p, %v, 0;\n"
                          " @%p bra DONE;\n"
                          " mov.u64 %t1, %globaltimer;\n"
                          " sub.u64 %t1, %t1, %t0;\n"
                          " setp.lt.u64 %p, %t1, %l;\n"
                          " @%p bra AGAIN;\n"
                          "DONE:\n"
                          " membar.sys;\n"
                          " st.volatile.global.u32 [%j+36], %one;\n"
                          " ret;\n"
                          "}\n"
                          ".visible .entry secondary(.param .u64 job)\n"
                          "{\n"
                          " .reg .u32 %one; .reg .u64 %j;\n"
                          " ld.param.u64 %j, [job];\n"
                          " mov.u32 %one, 1;\n"
                          " st.volatile.global.u32 [%j+4], %one;\n"
                          " griddepcontrol.wait;\n"
                          " membar.sys;\n"
                          " st.volatile.global.u32 [%j+36], %one;\n"
                          " ret;\n"
                          "}\n";

enum { RUN_MS = 250, END_MS = 2000, BLOCK = 1 << 20 };

static struct {
    CUcontext ctx;
    CUstream stream;
    CUfunction primary, secondary;
    CUevent passed, fence;
    CUdeviceptr block, memory, plain;
    void *pinned;
    bool same; /* the allocated block is the one that was freed */
} w;

/* --- on the simulator --------------------------------------------------------------------------
 */

static void primary_body(void *job)
{
    gate_t *g = job;
    uint64_t end = now_ns() + g->limit_ns;

    atomic_store(&g->begun, 1);
    simcuda_trigger();
    while (!atomic_load(&g->open) && now_ns() < end)
        sleep_ms(1);
    atomic_store(&g->over, 1);
}

static void secondary_body(void *job)
{
    gate_t *g = job;

    atomic_store(&g->begun, 1);
    simcuda_grid_sync();
    atomic_store(&g->over, 1);
}

/* --- what comes between ------------------------------------------------------------------------
 */

static CUresult nothing(void)
{
    return CUDA_SUCCESS;
}

static CUresult wait_passed(void)
{
    return cuStreamWaitEvent(w.stream, w.passed, 0);
}

static CUresult context_record(void)
{
    return ctx_record() ? ctx_record()(w.ctx, w.fence) : CUDA_ERROR_NOT_FOUND;
}

static CUresult wait_fence(void)
{
    CUresult r = context_record();

    return r ? r : cuStreamWaitEvent(w.stream, w.fence, 0);
}

static CUresult event_record(void)
{
    return cuEventRecord(w.fence, w.stream);
}

static CUresult stream_query(void)
{
    CUresult r = cuStreamQuery(w.stream);

    return r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r;
}

static CUresult take(void)
{
    return cuMemAllocAsync(&w.memory, BLOCK, w.stream);
}

static CUresult give(void)
{
    return cuMemFreeAsync(w.block, w.stream);
}

static CUresult give_and_take(void)
{
    CUresult r = give();

    return r ? r : take();
}

static CUresult plain_alloc(void)
{
    CUdeviceptr p;

    return cuMemAlloc(&p, BLOCK);
}

static CUresult set(void)
{
    return cuMemsetD8Async(w.plain, 0, 256, w.stream);
}

static CUresult copy(void)
{
    return cuMemcpyHtoDAsync(w.plain, w.pinned, 256, w.stream);
}

static void CUDA_CB on_host(void *unused)
{
    (void)unused;
}

static CUresult host_function(void)
{
    return cuLaunchHostFunc(w.stream, on_host, NULL);
}

static CUresult launch(void)
{
    return gate_launch(gate_marking(), w.stream);
}

static const struct {
    const char *name;
    CUresult (*act)(void);
} betweens[] = {
    {"nothing", nothing},
    {"cuStreamWaitEvent of an event that has passed", wait_passed},
    {"cuCtxRecordEvent", context_record},
    {"cuCtxRecordEvent, cuStreamWaitEvent of it", wait_fence},
    {"cuEventRecord", event_record},
    {"cuStreamQuery", stream_query},
    {"cuMemAllocAsync", take},
    {"cuMemFreeAsync", give},
    {"cuMemFreeAsync, cuMemAllocAsync", give_and_take},
    {"cuMemAlloc", plain_alloc},
    {"cuMemsetD8Async", set},
    {"cuMemcpyHtoDAsync", copy},
    {"cuLaunchHostFunc", host_function},
    {"a plain launch", launch},
};

static CUresult launch_early(gate_t *g)
{
    void *args[] = {&g};
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 1,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = w.stream,
                             .attrs = &early,
                             .numAttrs = 1};

    early.value.programmaticStreamSerializationAllowed = 1;
    return cuLaunchKernelEx(&config, w.secondary, args, NULL);
}

static void overlap_row(const char *name, CUresult (*between)(void))
{
    gate_t *first = gate_closed(), *second = gate_marking();
    void *args[] = {&first};
    CUdeviceptr freed = 0;

    cuMemAllocAsync(&w.block, BLOCK, w.stream);
    cuStreamSynchronize(w.stream);
    freed = w.block;
    w.memory = 0;
    CUresult r = cuLaunchKernel(w.primary, 1, 1, 1, 1, 1, 1, 0, w.stream, args, NULL);
    bool began = gate_begins(first, 500);
    if (!r && !(r = between()))
        r = launch_early(second);
    bool early = gate_begins(second, RUN_MS);
    bool past = atomic_load(&second->over);
    gate_open(first);
    bool ends = gate_ends(second, END_MS);
    cuCtxSynchronize();

    row_begin();
    row_str("between", name);
    row_bool("begins early", early);
    row_bool("is past its grid sync early", past);
    row_bool("ends", ends);
    if (between == give_and_take)
        row_bool("takes the block that was freed", w.memory == freed);
    if (r)
        row_drv("code", r);
    if (!began || gate_overran(first))
        row_str("void", began ? "the watchdog has opened the kernel" : "the kernel did not begin");
    row_end();
}

static CUresult prepare(void)
{
    CUmodule module;
    CUresult r = cuModuleLoadData(&module, ptx);

    if (r || (r = cuModuleGetFunction(&w.primary, module, "primary")) ||
        (r = cuModuleGetFunction(&w.secondary, module, "secondary")))
        return r;
    if (simcuda_body) {
        simcuda_body(w.primary, primary_body);
        simcuda_body(w.secondary, secondary_body);
    }
    if ((r = cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING)) ||
        (r = cuEventCreate(&w.passed, CU_EVENT_DISABLE_TIMING)) ||
        (r = cuEventCreate(&w.fence, CU_EVENT_DISABLE_TIMING)) ||
        (r = cuMemAlloc(&w.plain, 4096)) || (r = cuMemAllocHost(&w.pinned, 4096)))
        return r;
    /* A call's first time may load code and wait; the event has passed since. */
    for (size_t i = 0; i < sizeof betweens / sizeof *betweens; i++)
        if ((r = cuMemAllocAsync(&w.block, BLOCK, w.stream)) || (r = betweens[i].act()) ||
            (r = cuCtxSynchronize()))
            return r;
    gate_t *first = gate_marking(), *second = gate_marking();
    void *args[] = {&first};
    if ((r = cuLaunchKernel(w.primary, 1, 1, 1, 1, 1, 1, 0, w.stream, args, NULL)) ||
        (r = launch_early(second)) || (r = cuEventRecord(w.passed, w.stream)))
        return r;
    return cuCtxSynchronize();
}

void fact_order_programmatic(const char *arg)
{
    CUresult r;

    (void)arg;
    w.ctx = use_primary();
    if (!gates_ready())
        return;
    if ((r = prepare()) != CUDA_SUCCESS) {
        row_begin();
        row_str("note", "unavailable: programmatic launches");
        row_drv("code", r);
        row_end();
        return;
    }
    for (size_t i = 0; i < sizeof betweens / sizeof *betweens; i++)
        overlap_row(betweens[i].name, betweens[i].act);
}
#else
void fact_order_programmatic(const char *arg)
{
    (void)arg;
    row_note("unavailable: programmatic launches, of CUDA 11.8");
}
#endif
