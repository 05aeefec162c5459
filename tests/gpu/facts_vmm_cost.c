/*
 * Virtual memory: what its calls cost, for each handle or each call, with the device idle and at
 * work; whether memory that was dropped costs to be had again; how many mappings there can be.
 */
#include "facts_vmm.h"

#include "simcuda/simcuda.h"

#include <stdio.h>
#include <stdlib.h>

enum { HANDLES = 64, CALLS = 5 };

static const char *const calls[CALLS] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                         "cuMemRelease"};

typedef struct round {
    CUdeviceptr at;
    size_t each; /* bytes of a handle */
    int n;
    CUmemGenericAllocationHandle handle[HANDLES];
    double ns[CALLS][HANDLES];
    CUresult code[CALLS];
} round_t;

static CUresult do_call(round_t *r, int call, int i, size_t bytes)
{
    switch (call) {
    case 0:
        return vmm_create(&r->handle[i], r->each);
    case 1:
        return cuMemMap(r->at + (size_t)i * r->each, r->each, 0, r->handle[i], 0);
    case 2:
        return vmm_open(r->at + (size_t)i * r->each, bytes);
    case 3:
        return cuMemUnmap(r->at + (size_t)i * r->each, bytes);
    default:
        return cuMemRelease(r->handle[i]);
    }
}

static void timed(round_t *r, int call, int i, size_t bytes)
{
    uint64_t t = now_ns();
    CUresult code = do_call(r, call, i, bytes);

    r->ns[call][i] = (double)(now_ns() - t);
    if (code && !r->code[call])
        r->code[call] = code;
}

static void told(const round_t *r, int call, const char *state, int handles, bool held, bool waits)
{
    double samples[HANDLES];
    int n = handles == 1 ? r->n : 1;

    for (int i = 0; i < n; i++)
        samples[i] = r->ns[call][i];
    row_begin();
    row_str("call", calls[call]);
    row_int("bytes", (long long)r->each);
    row_str("state", state);
    row_int("handles", handles);
    row_int("samples", n);
    row_spread("call", spread_of(samples, n));
    row_drv("code", r->code[call]);
    if (held)
        row_bool("waits", waits);
    row_end();
}

/* Every call for each handle, or one for all where a call takes a range. */
static void one_round(size_t each, int n, const char *state, bool at_once, bool held)
{
    static round_t r;
    gate_t *g = held ? gate_closed() : NULL;
    bool waits[CALLS] = {false};

    r = (round_t){.each = each, .n = n};
    if (vmm_reserve(&r.at, (size_t)n * each))
        return;
    if (g && (gate_launch(g, vmm.stream) || !gate_begins(g, 500))) {
        row_note("void: the kernel has not begun");
        gate_open(g);
        return;
    }
    for (int call = 0; call < CALLS; call++) {
        bool ranged = at_once && (call == 2 || call == 3);
        bool before = g && gate_overran(g);
        for (int i = 0; i < (ranged ? 1 : n); i++)
            timed(&r, call, i, ranged ? (size_t)n * each : each);
        waits[call] = g && gate_overran(g) && !before;
    }
    if (g)
        gate_open(g);
    cuStreamSynchronize(vmm.stream);
    for (int call = 0; call < CALLS; call++)
        if (!at_once || call == 2 || call == 3)
            told(&r, call, state, at_once ? n : 1, held, waits[call]);
    cuMemAddressFree(r.at, (size_t)n * each);
}

static void reserving(size_t bytes)
{
    CUdeviceptr at[16];
    double take[16], give[16];
    CUresult r = CUDA_SUCCESS;
    int n = 0;

    while (n < 16 && !r) {
        uint64_t t = now_ns();
        r = vmm_reserve(&at[n], bytes);
        take[n] = (double)(now_ns() - t);
        n += !r;
    }
    for (int i = 0; i < n; i++) {
        uint64_t t = now_ns();
        cuMemAddressFree(at[i], bytes);
        give[i] = (double)(now_ns() - t);
    }
    for (int i = 0; i < 2 && n; i++) {
        row_begin();
        row_str("call", i ? "cuMemAddressFree" : "cuMemAddressReserve");
        row_int("bytes", (long long)bytes);
        row_str("state", "idle");
        row_int("samples", n);
        row_spread("call", spread_of(i ? give : take, n));
        row_drv("code", r);
        row_end();
    }
}

void fact_vmm_cost(const char *arg)
{
    static const size_t sizes[] = {2, 8, 32}; /* MiB */

    (void)arg;
    if (!vmm_ready())
        return;
    one_round(vmm.unit, 1, "the first of the process", false, false);
    if (!gates_ready())
        return;
    reserving(1024 * MIB);
    reserving(64 * 1024 * MIB);
    for (int i = 0; i < 3; i++) {
        size_t each = sizes[i] * MIB;
        size_t room = may_take() / 2 / each;
        int n = room < HANDLES ? (int)room : HANDLES;
        if (n < 2 || each % vmm.unit)
            continue;
        one_round(each, n, "idle", false, false);
        one_round(each, n, "idle", true, false);
        one_round(each, n, "at work", false, true);
        one_round(each, n, "at work", true, true);
    }
}

/* --- memory that comes again -------------------------------------------------------------------
 */

enum { LARGE_MIB = 1024 };

static void comes(const char *state)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    uint64_t t;
    double create, open;
    CUresult r = vmm_reserve(&at, LARGE_MIB * MIB);

    if (r)
        return;
    t = now_ns();
    r = vmm_create(&handle, LARGE_MIB * MIB);
    create = (double)(now_ns() - t);
    t = now_ns();
    if (!r && !(r = cuMemMap(at, LARGE_MIB * MIB, 0, handle, 0)) &&
        !(r = vmm_open(at, LARGE_MIB * MIB)) && !(r = cuMemsetD8(at, 1, 4096)))
        r = cuCtxSynchronize();
    open = (double)(now_ns() - t);
    row_begin();
    row_str("call", "1 GiB in one handle");
    row_str("state", state);
    row_num("create_ns", create);
    row_num("open_ns", open);
    row_drv("code", r);
    row_end();
    cuMemUnmap(at, LARGE_MIB * MIB);
    cuMemRelease(handle);
    cuMemAddressFree(at, LARGE_MIB * MIB);
}

void fact_vmm_again(const char *arg)
{
    (void)arg;
    if (!vmm_ready() || may_take() < 2 * LARGE_MIB * MIB)
        return;
    comes("never used by this process");
    comes("just dropped");
    comes("just dropped, again");
    sleep_ms(300);
    comes("dropped a while ago");
}

/* --- how many mappings -------------------------------------------------------------------------
 */

enum { MOST = 300000, MOST_SIMULATED = 4000, FOR_S = 25, LOT = 1000 };

/* One handle, mapped again and again. */
void fact_vmm_many(const char *arg)
{
    int most = simcuda_body ? MOST_SIMULATED : MOST, n = 0;
    uint64_t begin = now_ns(), lot = begin;
    double first = 0, last = 0;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    const char *at_call = "none";
    CUresult r;

    (void)arg;
    if (!vmm_ready() || (r = vmm_create(&handle, vmm.unit)) ||
        (r = vmm_reserve(&at, (size_t)most * vmm.unit)))
        return;
    for (; n < most && now_ns() - begin < FOR_S * 1000000000ull; n++) {
        CUdeviceptr here = at + (size_t)n * vmm.unit;
        at_call = "cuMemMap";
        if ((r = cuMemMap(here, vmm.unit, 0, handle, 0)))
            break;
        at_call = "cuMemSetAccess";
        if ((r = vmm_open(here, vmm.unit)))
            break;
        at_call = "none";
        if (n % LOT == LOT - 1) {
            last = (double)(now_ns() - lot) / LOT;
            first = first ? first : last;
            lot = now_ns();
        }
    }
    row_begin();
    row_str("question", "one handle has as many mappings as were asked for");
    row_bool("answer", n == most);
    row_int("mappings", n);
    row_str("stopped by", at_call);
    row_drv("code", r);
    row_num("each of the first 1000_ns", first);
    row_num("each of the last 1000_ns", last);
    row_end();
    if (n)
        row_call("cuMemsetD8", "by the last of many mappings",
                 cuMemsetD8(at + (size_t)(n - 1) * vmm.unit, 1, 4096));
}
