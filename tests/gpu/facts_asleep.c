/*
 * While a thread sleeps in a plain cudaFree behind a kernel that goes on: which calls of other
 * threads of the context return, and does what they submit run? Where they do not, a program's
 * other threads hang there with plain CUDA too, and reuse in order may let them wait as long.
 *
 * "nobody" asks the same without a sleeping thread: a call that waits then waits for the kernel.
 */
#include "facts_gate.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, RETURN_MS = 400, RUN_MS = 400, ASLEEP_MS = 5, END_MS = 2000 };

static struct {
    CUcontext ctx;
    CUstream held, idle;
    CUdeviceptr memory; /* written by what the calls submit */
    void *pinned;
    CUevent passed, any;
} world;

typedef struct call {
    const char *name;
    CUresult (*act)(struct call *);
    CUdeviceptr block; /* what act frees, got before the kernel */
    gate_t *mark;      /* launched by act where that submits, behind what it submits */
    CUresult code;
    uint64_t begun_ns, ended_ns;
    _Atomic uint32_t ready, go, calls, done;
} call_t;

/* --- the calls ---------------------------------------------------------------------------------
 */

static CUresult marked(call_t *c, CUresult r, CUstream stream)
{
    return r ? r : gate_launch(c->mark, stream);
}

static CUresult launch_idle(call_t *c)
{
    return gate_launch(c->mark, world.idle);
}

static CUresult launch_held(call_t *c)
{
    return gate_launch(c->mark, world.held);
}

static CUresult launch_legacy(call_t *c)
{
    return gate_launch(c->mark, CU_STREAM_LEGACY);
}

static CUresult launch_per_thread(call_t *c)
{
    return gate_launch(c->mark, CU_STREAM_PER_THREAD);
}

static CUresult launch_and_wait(call_t *c)
{
    CUresult r = gate_launch(c->mark, world.idle);

    return r ? r : cuStreamSynchronize(world.idle);
}

static CUresult set_async(call_t *c)
{
    return marked(c, cuMemsetD8Async(world.memory, 1, 4096, world.idle), world.idle);
}

static CUresult copy_async(call_t *c)
{
    return marked(c, cuMemcpyHtoDAsync(world.memory, world.pinned, 4096, world.idle), world.idle);
}

static CUresult copy_to(call_t *c)
{
    return marked(c, cuMemcpyHtoD(world.memory, world.pinned, 4096), world.idle);
}

static CUresult copy_from(call_t *c)
{
    return marked(c, cuMemcpyDtoH(world.pinned, world.memory, 4096), world.idle);
}

static CUresult stream_sync(call_t *c)
{
    (void)c;
    return cuStreamSynchronize(world.idle);
}

static CUresult stream_query(call_t *c)
{
    (void)c;
    return cuStreamQuery(world.idle);
}

static CUresult stream_wait(call_t *c)
{
    return marked(c, cuStreamWaitEvent(world.idle, world.passed, 0), world.idle);
}

static CUresult event_record(call_t *c)
{
    (void)c;
    return cuEventRecord(world.any, world.idle);
}

static CUresult event_query(call_t *c)
{
    (void)c;
    return cuEventQuery(world.passed);
}

static CUresult event_sync(call_t *c)
{
    (void)c;
    return cuEventSynchronize(world.passed);
}

static CUresult context_record(call_t *c)
{
    (void)c;
    return ctx_record() ? ctx_record()(world.ctx, world.any) : CUDA_ERROR_NOT_FOUND;
}

static CUresult alloc_small(call_t *c)
{
    return cuMemAlloc(&c->block, 4096);
}

static CUresult alloc_large(call_t *c)
{
    return cuMemAlloc(&c->block, 64 << 20);
}

static CUresult alloc_async(call_t *c)
{
    return marked(c, cuMemAllocAsync(&c->block, BLOCK, world.idle), world.idle);
}

static CUresult alloc_host(call_t *c)
{
    void *p;

    (void)c;
    return cuMemAllocHost(&p, BLOCK);
}

static CUresult memory_info(call_t *c)
{
    size_t free_bytes, total;

    (void)c;
    return cuMemGetInfo(&free_bytes, &total);
}

static CUresult stream_create(call_t *c)
{
    CUstream stream;

    (void)c;
    return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
}

static CUresult context_sync(call_t *c)
{
    (void)c;
    return cuCtxSynchronize();
}

static CUresult free_block(call_t *c)
{
    return cuMemFree(c->block);
}

static const struct {
    const char *name;
    CUresult (*act)(call_t *);
    bool submits, frees;
} calls[] = {
    {"launch on an idle stream", launch_idle, true, false},
    {"launch on the kernel's stream", launch_held, true, false},
    {"launch on the legacy stream", launch_legacy, true, false},
    {"launch on the per-thread stream", launch_per_thread, true, false},
    {"launch on an idle stream, cuStreamSynchronize", launch_and_wait, true, false},
    {"cuMemsetD8Async on an idle stream", set_async, true, false},
    {"cuMemcpyHtoDAsync on an idle stream", copy_async, true, false},
    {"cuStreamWaitEvent of a passed event", stream_wait, true, false},
    {"cuMemAllocAsync on an idle stream", alloc_async, true, false},
    {"cuStreamSynchronize of an idle stream", stream_sync, false, false},
    {"cuStreamQuery of an idle stream", stream_query, false, false},
    {"cuEventRecord on an idle stream", event_record, false, false},
    {"cuEventQuery of a passed event", event_query, false, false},
    {"cuEventSynchronize of a passed event", event_sync, false, false},
    {"cuCtxRecordEvent", context_record, false, false},
    {"cuMemAlloc of 4 KiB", alloc_small, false, false},
    {"cuMemAlloc of 64 MiB", alloc_large, false, false},
    {"cuMemAllocHost", alloc_host, false, false},
    {"cuMemGetInfo", memory_info, false, false},
    {"cuStreamCreate", stream_create, false, false},
    {"cuMemcpyHtoD", copy_to, true, false},
    {"cuMemcpyDtoH", copy_from, true, false},
    {"cuMemFree", free_block, false, true},
    {"cuCtxSynchronize", context_sync, false, false},
};

/* --- the threads -------------------------------------------------------------------------------
 */

static void *thread_main(void *arg)
{
    call_t *c = arg;

    cuCtxSetCurrent(world.ctx);
    atomic_store(&c->ready, 1);
    while (!flag_set(&c->go, 1000)) {
    }
    c->begun_ns = now_ns();
    atomic_store(&c->calls, 1);
    c->code = c->act(c);
    c->ended_ns = now_ns();
    atomic_store(&c->done, 1);
    return NULL;
}

static pthread_t begin(call_t *c)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, thread_main, c) != 0)
        _exit(3);
    while (!flag_set(&c->ready, 1000)) {
    }
    return thread;
}

static CUresult free_host(call_t *c)
{
    return cuMemFreeHost((void *)(uintptr_t)c->block);
}

static CUresult sleeper_free(call_t *c)
{
    return (CUresult)cudaFree((void *)c->block);
}

static CUresult sleeper_sync(call_t *c)
{
    (void)c;
    return (CUresult)cudaDeviceSynchronize();
}

static CUdeviceptr host_block(void)
{
    void *p = NULL;

    cuMemAllocHost(&p, BLOCK);
    return (CUdeviceptr)(uintptr_t)p;
}

/* False where a thread did not come back: nothing more can be asked of this process. */
static bool ask(const char *who, CUresult (*sleeps)(call_t *), int which)
{
    call_t sleeper = {.act = sleeps}, c = {.act = calls[which].act};
    pthread_t threads[2] = {0};
    gate_t *kernel = gate_closed();
    bool asleep = false, returned, ran, back;
    CUresult launched;

    if (sleeps == free_host)
        sleeper.block = host_block();
    else if (sleeps == sleeper_free)
        cuMemAlloc(&sleeper.block, BLOCK);
    if (calls[which].frees)
        cuMemAlloc(&c.block, BLOCK);
    c.mark = gate_marking();
    if (sleeps)
        threads[0] = begin(&sleeper);
    threads[1] = begin(&c);
    launched = gate_launch(kernel, world.held);
    bool began = gate_begins(kernel, 500);
    if (sleeps) {
        atomic_store(&sleeper.go, 1);
        asleep = flag_set(&sleeper.calls, 500) && !flag_set(&sleeper.done, ASLEEP_MS);
    }
    atomic_store(&c.go, 1);
    returned = flag_set(&c.done, RETURN_MS);
    ran = calls[which].submits && gate_ends(c.mark, returned ? RUN_MS : 0);
    asleep = asleep && !atomic_load(&sleeper.done);
    gate_open(kernel);
    back = flag_set(&c.done, END_MS) && (!sleeps || flag_set(&sleeper.done, END_MS));

    row_begin();
    row_str("when", who);
    row_str("call", calls[which].name);
    if (sleeps)
        row_bool("it sleeps", asleep);
    row_bool("returns", returned);
    if (calls[which].submits)
        row_bool("runs", ran);
    if (returned)
        row_num("call_us", (double)(c.ended_ns - c.begun_ns) / 1000);
    row_bool("returns when the kernel has ended", back);
    row_drv("code", back ? c.code : CUDA_ERROR_NOT_READY);
    if (launched || !began || gate_overran(kernel))
        row_str("void", launched ? "the kernel was refused"
                        : !began ? "the kernel did not begin"
                                 : "the watchdog has opened the kernel");
    row_end();
    if (!back)
        return false;
    for (int i = sleeps ? 0 : 1; i < 2; i++)
        pthread_join(threads[i], NULL);
    cuCtxSynchronize();
    return true;
}

static const struct {
    const char *arg, *who;
    CUresult (*act)(call_t *);
} sleepers[] = {
    {"nobody", "nobody sleeps", NULL},
    {"cudaFree", "a thread sleeps in cudaFree", sleeper_free},
    {"cudaFreeHost", "a thread sleeps in cuMemFreeHost", free_host},
    {"cudaDeviceSynchronize", "a thread sleeps in cudaDeviceSynchronize", sleeper_sync},
};

/* A call's first time may load code, which waits for work in flight. */
static void warm_up(void)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        call_t c = {.mark = gate_marking()};
        if (calls[i].frees)
            cuMemAlloc(&c.block, BLOCK);
        calls[i].act(&c);
        cuCtxSynchronize();
    }
}

void fact_order_asleep(const char *arg)
{
    world.ctx = use_primary();
    if (!gates_ready())
        return;
    cuStreamCreate(&world.held, CU_STREAM_NON_BLOCKING);
    cuStreamCreate(&world.idle, CU_STREAM_NON_BLOCKING);
    cuMemAlloc(&world.memory, 4096);
    cuMemAllocHost(&world.pinned, 4096);
    cuEventCreate(&world.passed, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&world.any, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(world.passed, world.idle);
    cuCtxSynchronize();
    warm_up();
    for (size_t s = 0; s < sizeof sleepers / sizeof *sleepers; s++)
        for (int i = 0; !strcmp(sleepers[s].arg, arg) && i < (int)(sizeof calls / sizeof *calls);
             i++)
            if (!ask(sleepers[s].who, sleepers[s].act, i)) {
                row_note("a thread has not come back: what is left was not asked");
                _exit(3);
            }
}
