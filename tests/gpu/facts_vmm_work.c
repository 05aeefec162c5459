/*
 * Virtual memory under work: whether two addresses of one memory show the same bytes to the next
 * kernel or copy; whether calls wait for a kernel, and what becomes of it; captures; contexts that
 * end; other devices.
 */
#include "facts_vmm.h"

#include "simcuda/simcuda.h"

#include <stdio.h>
#include <string.h>

/* --- two addresses -----------------------------------------------------------------------------
 */

/* Words from one place to another, or one value. The loads go through the nearest cache. */
static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .entry relay(.param .u64 job)\n"
                          "{\n"
                          " .reg .pred %p, %q; .reg .u32 %n, %v; .reg .u64 %j, %f, %t;\n"
                          " ld.param.u64 %j, [job];\n"
                          " ld.volatile.global.u64 %f, [%j];\n"
                          " ld.volatile.global.u64 %t, [%j+8];\n"
                          " ld.volatile.global.u32 %n, [%j+16];\n"
                          " ld.volatile.global.u32 %v, [%j+20];\n"
                          " setp.eq.u64 %q, %f, 0;\n"
                          "NEXT:\n"
                          " setp.eq.u32 %p, %n, 0;\n"
                          " @%p bra DONE;\n"
                          " @%q bra STORE;\n"
                          " ld.global.ca.u32 %v, [%f];\n"
                          " add.u64 %f, %f, 4;\n"
                          "STORE:\n"
                          " st.global.u32 [%t], %v;\n"
                          " add.u64 %t, %t, 4;\n"
                          " sub.u32 %n, %n, 1;\n"
                          " bra NEXT;\n"
                          "DONE:\n"
                          " ret;\n"
                          "}\n";

typedef struct job { /* in pinned memory, as the kernel knows it */
    uint64_t from, to;
    uint32_t words, value;
} job_t;

enum { WORDS = 1024, BYTES = WORDS * 4, ROUNDS = 20, JOBS = 4 };

static CUfunction relay;

static void relay_body(void *at)
{
    const job_t *j = at;
    uint32_t words[WORDS];

    for (uint32_t i = 0; i < j->words; i++)
        words[i] = j->value;
    if (j->from && simcuda_load(words, j->from, j->words * 4u))
        return;
    simcuda_store(j->to, words, j->words * 4u);
}

static bool relay_ready(void)
{
    CUmodule module;
    CUresult r = cuModuleLoadData(&module, ptx);

    if (!r)
        r = cuModuleGetFunction(&relay, module, "relay");
    if (r)
        row_call("a kernel that copies", "loaded", r);
    else if (simcuda_body)
        simcuda_body(relay, relay_body);
    return !r;
}

static CUresult relay_launch(job_t *j, CUdeviceptr from, CUdeviceptr to, uint32_t value,
                             CUstream stream)
{
    void *args[] = {&j};

    *j = (job_t){from, to, WORDS, value};
    return cuLaunchKernel(relay, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

typedef struct alias {
    CUdeviceptr one, two, plain; /* one and two are the same bytes */
    job_t *jobs;
    uint32_t *host; /* 2 x WORDS, pinned */
    CUevent done;
} alias_t;

static const char *const writers[] = {"kernel", "set", "copy"};
static const char *const readers[] = {"kernel", "copy"};
static const char *const orders[] = {"the same stream", "another, behind an event",
                                     "another, behind cuStreamSynchronize"};

static CUresult writes(const alias_t *a, int how, uint32_t value)
{
    if (how == 0)
        return relay_launch(&a->jobs[0], 0, a->one, value, vmm.stream);
    if (how == 1)
        return cuMemsetD32Async(a->one, value, WORDS, vmm.stream);
    for (int i = 0; i < WORDS; i++)
        a->host[WORDS + i] = value;
    return cuMemcpyHtoDAsync(a->one, a->host + WORDS, BYTES, vmm.stream);
}

static CUresult reads(const alias_t *a, int how, CUstream stream)
{
    CUresult r = how == 0 ? relay_launch(&a->jobs[1], a->two, a->plain, 0, stream)
                          : cuMemcpyDtoHAsync(a->host, a->two, BYTES, stream);

    return r || how ? r : cuMemcpyDtoHAsync(a->host, a->plain, BYTES, stream);
}

static CUresult ordered(const alias_t *a, int how, CUstream *then)
{
    CUresult r;

    *then = how == 0 ? vmm.stream : vmm.other;
    if (how == 2)
        return cuStreamSynchronize(vmm.stream);
    if (how == 0 || (r = cuEventRecord(a->done, vmm.stream)))
        return how ? r : CUDA_SUCCESS;
    return cuStreamWaitEvent(vmm.other, a->done, 0);
}

static void ask_alias(const alias_t *a, int writer, int reader, int order)
{
    CUresult r = CUDA_SUCCESS;
    CUstream then = order == 0 ? vmm.stream : vmm.other;
    int stale = 0, round = 0;

    for (; round < ROUNDS && !r; round++) {
        uint32_t value = (uint32_t)(1 + round) * 0x01010101u;
        /* What was there before is in the caches of the second address. */
        if ((r = relay_launch(&a->jobs[2], a->two, a->plain, 0, then)) ||
            (r = cuCtxSynchronize()) || (r = writes(a, writer, value)) ||
            (r = ordered(a, order, &then)) || (r = reads(a, reader, then)) ||
            (r = cuStreamSynchronize(then)))
            break;
        for (int i = 0; i < WORDS; i++)
            if (a->host[i] != value) {
                stale++;
                break;
            }
    }
    row_begin();
    row_str("work", writers[writer]);
    row_str("then", readers[reader]);
    row_str("on", orders[order]);
    row_int("rounds", round);
    row_int("stale", stale);
    row_drv("code", r);
    row_end();
}

void fact_vmm_alias(const char *arg)
{
    alias_t a = {0};
    CUmemGenericAllocationHandle handle;
    void *p;

    (void)arg;
    if (!vmm_ready() || !relay_ready() || vmm_reserve(&a.one, 2 * vmm.unit) ||
        vmm_create(&handle, vmm.unit))
        return;
    a.two = a.one + vmm.unit;
    if (cuMemMap(a.one, vmm.unit, 0, handle, 0) || cuMemMap(a.two, vmm.unit, 0, handle, 0) ||
        vmm_open(a.one, 2 * vmm.unit) || cuMemAlloc(&a.plain, BYTES) ||
        cuEventCreate(&a.done, CU_EVENT_DISABLE_TIMING) ||
        cuMemHostAlloc(&p, 2 * BYTES + JOBS * sizeof *a.jobs, CU_MEMHOSTALLOC_DEVICEMAP)) {
        row_note("one handle cannot be mapped twice");
        return;
    }
    a.host = p;
    a.jobs = (job_t *)((char *)p + 2 * BYTES);
    cuMemsetD8(a.one, 0, BYTES);
    cuCtxSynchronize();
    for (int writer = 0; writer < 3; writer++)
        for (int reader = 0; reader < 2; reader++)
            for (int order = 0; order < 3; order++)
                ask_alias(&a, writer, reader, order);
}

/* --- while a kernel is at work -----------------------------------------------------------------
 */

/* A handle at three addresses in a row, the first of which the kernel writes to; then a free one.
 */
typedef struct scene {
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle, more;
} scene_t;

static CUresult unmap_its_own(const scene_t *s)
{
    return cuMemUnmap(s->at, vmm.unit);
}

static CUresult unmap_another_address(const scene_t *s)
{
    return cuMemUnmap(s->at + vmm.unit, vmm.unit);
}

static CUresult map_beside(const scene_t *s)
{
    return cuMemMap(s->at + 3 * vmm.unit, vmm.unit, 0, s->more, 0);
}

static CUresult map_and_open_beside(const scene_t *s)
{
    CUresult r = map_beside(s);

    return r ? r : vmm_open(s->at + 3 * vmm.unit, vmm.unit);
}

static CUresult open_again(const scene_t *s)
{
    return vmm_open(s->at, vmm.unit);
}

static CUresult take_access(const scene_t *s)
{
    return vmm_grant(s->at, vmm.unit, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

static CUresult release(const scene_t *s)
{
    return cuMemRelease(s->handle);
}

static CUresult create_one(const scene_t *s)
{
    CUmemGenericAllocationHandle one;

    (void)s;
    return vmm_create(&one, vmm.unit);
}

static const struct {
    const char *name, *call;
    CUresult (*act)(const scene_t *);
} acts[] = {
    {"unmap", "cuMemUnmap of what it writes to", unmap_its_own},
    {"unmap-alias", "cuMemUnmap of another address of it", unmap_another_address},
    {"map", "cuMemMap beside it", map_beside},
    {"map-open", "cuMemMap and cuMemSetAccess beside it", map_and_open_beside},
    {"open", "cuMemSetAccess of it, again", open_again},
    {"close", "cuMemSetAccess of it, to none", take_access},
    {"release", "cuMemRelease of its handle", release},
    {"create", "cuMemCreate", create_one},
};

enum { CALL_MS = 300 };

/* One in a process: the context may be broken afterwards. */
void fact_vmm_busy(const char *arg)
{
    scene_t s;
    gate_t *g;
    CUresult r, end;
    bool returned;
    size_t i = 0;

    while (i < sizeof acts / sizeof *acts && strcmp(acts[i].name, arg) != 0)
        i++;
    if (i == sizeof acts / sizeof *acts || !vmm_ready() || !gates_ready() ||
        vmm_reserve(&s.at, 4 * vmm.unit) || vmm_create(&s.handle, vmm.unit) ||
        vmm_create(&s.more, vmm.unit))
        return;
    for (size_t k = 0; k < 3; k++)
        cuMemMap(s.at + k * vmm.unit, vmm.unit, 0, s.handle, 0);
    vmm_open(s.at, 3 * vmm.unit);
    cuMemsetD8(s.at, 0, vmm.unit);
    cuCtxSynchronize();
    g = gate_closed();
    g->where = s.at;
    g->bytes = 4096;
    g->value = 7;
    if (gate_launch(g, vmm.stream) || !gate_begins(g, 500)) {
        row_note("void: the kernel has not begun");
        gate_open(g);
        return;
    }
    gate_open_after(g, CALL_MS);
    r = acts[i].act(&s);
    returned = !atomic_load(&g->open);
    gate_open(g);
    gate_join();
    end = cuStreamSynchronize(vmm.stream);
    row_begin();
    row_str("call", acts[i].call);
    row_bool("returns while the kernel is at work", returned);
    row_drv("code", r);
    row_drv("the kernel", end);
    row_drv("cuCtxSynchronize afterwards", cuCtxSynchronize());
    row_end();
}

/* --- captures ----------------------------------------------------------------------------------
 */

static CUresult in_capture(int call, CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
    CUmemGenericAllocationHandle one;
    CUdeviceptr more;
    size_t unit = vmm.unit;

    switch (call) { /* at: a mapping, a free place */
    case 0:
        return vmm_create(&one, unit);
    case 1:
        return vmm_reserve(&more, unit);
    case 2:
        return cuMemMap(at + unit, unit, 0, handle, 0);
    case 3:
        return vmm_open(at, unit);
    case 4:
        return cuMemUnmap(at, unit);
    default:
        return cuMemRelease(handle);
    }
}

void fact_vmm_capture(const char *arg)
{
    static const char *const modes[] = {"global", "thread local", "relaxed"};
    static const char *const calls[] = {"cuMemCreate",    "cuMemAddressReserve", "cuMemMap",
                                        "cuMemSetAccess", "cuMemUnmap",          "cuMemRelease"};

    (void)arg;
    if (!vmm_ready())
        return;
    for (int mode = 0; mode < 3; mode++)
        for (int call = 0; call < 6; call++) {
            CUmemGenericAllocationHandle handle;
            CUdeviceptr at;
            CUgraph graph = NULL;
            CUresult r, end;
            if (vmm_reserve(&at, 2 * vmm.unit) || vmm_put(at, vmm.unit, vmm.unit) ||
                vmm_create(&handle, vmm.unit))
                return;
            cuStreamBeginCapture(vmm.stream, (CUstreamCaptureMode)mode);
            r = in_capture(call, at, handle);
            end = cuStreamEndCapture(vmm.stream, &graph);
            row_begin();
            row_str("call", calls[call]);
            row_str("capture mode", modes[mode]);
            row_drv("code", r);
            row_bool("the capture lives", end == CUDA_SUCCESS && graph);
            row_end();
            if (graph)
                cuGraphDestroy(graph);
        }
}

/* --- contexts that end -------------------------------------------------------------------------
 */

static size_t free_bytes(void)
{
    size_t free = 0, total = 0;

    cuMemGetInfo(&free, &total);
    return free;
}

/* "reset": the primary context; "destroyed": one of cuCtxCreate; in either case another one sees
 * what is left. */
void fact_vmm_gone(const char *arg)
{
    bool reset = !strcmp(arg, "reset");
    CUcontext ctx = use_primary(), own = NULL;
    CUdeviceptr at;
    size_t before, unit;
    uint8_t seen = 0;
    CUresult r = CUDA_SUCCESS;

    if (!reset && (ctx_create(&own, 0) || cuCtxSetCurrent(own))) {
        row_note("no second context");
        return;
    }
    if (!vmm_ready_in(reset ? ctx : own))
        return;
    before = free_bytes();
    if (!(at = vmm_pair(0)))
        return;
    unit = vmm.unit;
    cuMemsetD8(at, 7, 2 * unit);
    cuCtxSynchronize();
    row_call(reset ? "cuDevicePrimaryCtxReset" : "cuCtxDestroy", "with mappings",
             reset ? cuDevicePrimaryCtxReset(0) : cuCtxDestroy(own));
    if (cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
        return;
    row_answer("bytes are taken still", before > free_bytes());
    r = cuMemcpyDtoH(&seen, at + unit, 1);
    row_call("cuMemcpyDtoH", "from the mapping", r);
    row_answer("the bytes are the same", seen == 7);
    cuCtxSetCurrent(NULL);
    row_call("cuMemUnmap", "with no context current", cuMemUnmap(at, 2 * unit));
    row_call("cuMemAddressFree", "with no context current", cuMemAddressFree(at, 2 * unit));
    cuCtxSetCurrent(ctx);
    row_answer("the memory is free again", free_bytes() >= before);
}

/* --- another device ----------------------------------------------------------------------------
 */

/* "copy": cuMemcpyPeer; "enabled": a set by the other device, with peer access enabled; "given":
 * the same with cuMemSetAccess. One in a process, as the others may break a context. */
void fact_vmm_peers(const char *arg)
{
    CUcontext first, second;
    CUdeviceptr at, there;
    CUresult r;
    int devices = 0, can = 0;

    cuInit(0);
    cuDeviceGetCount(&devices);
    if (devices < 2) {
        row_note("one device");
        return;
    }
    if (!vmm_ready() || !(at = vmm_pair(0)))
        return;
    first = vmm.ctx;
    cuDeviceCanAccessPeer(&can, 1, 0);
    row_answer("the second device can access the first", can);
    if (cuDevicePrimaryCtxRetain(&second, 1) || cuCtxSetCurrent(second) ||
        cuMemAlloc(&there, vmm.unit))
        return;
    if (!strcmp(arg, "copy")) {
        r = cuMemcpyPeer(there, second, at, first, 2 * MIB);
        row_call("cuMemcpyPeer", "without access", r ? r : cuCtxSynchronize());
        return;
    }
    if (!strcmp(arg, "given")) {
        cuCtxSetCurrent(first);
        row_call("cuMemSetAccess", "for the second device",
                 vmm_grant(at, 2 * vmm.unit, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        cuCtxSetCurrent(second);
    } else {
        row_call("cuCtxEnablePeerAccess", "of the first", cuCtxEnablePeerAccess(first, 0));
    }
    r = cuMemsetD8(at, 3, 4096);
    row_call("cuMemsetD8", arg, r ? r : cuCtxSynchronize());
}
