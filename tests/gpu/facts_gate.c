/*
 * See facts_gate.h. Three things keep a fact from running without end: the watchdog opens what was
 * closed for too long, the kernel ends by itself a little later, and the fact script ends the
 * process after the fact's limit; the rows before that stand.
 */
#include "facts_gate.h"

#include "simcuda/simcuda.h"

#include <pthread.h>
#include <string.h>

static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .entry gate(.param .u64 job)\n"
                          "{\n"
                          " .reg .pred %p; .reg .u32 %v, %one;\n"
                          " .reg .u64 %j, %w, %n, %l, %t0, %t1;\n"
                          " ld.param.u64 %j, [job];\n"
                          " mov.u32 %one, 1;\n"
                          " ld.volatile.global.u64 %w, [%j+8];\n"
                          " ld.volatile.global.u64 %n, [%j+16];\n"
                          " ld.volatile.global.u64 %l, [%j+24];\n"
                          " st.volatile.global.u32 [%j+4], %one;\n"
                          " mov.u64 %t0, %globaltimer;\n"
                          "AGAIN:\n"
                          " ld.volatile.global.u32 %v, [%j];\n"
                          " setp.ne.u32 %p, %v, 0;\n"
                          " @%p bra OPEN;\n"
                          " mov.u64 %t1, %globaltimer;\n"
                          " sub.u64 %t1, %t1, %t0;\n"
                          " setp.lt.u64 %p, %t1, %l;\n"
                          " @%p bra AGAIN;\n"
                          "OPEN:\n"
                          " ld.volatile.global.u32 %v, [%j+32];\n"
                          "FILL:\n"
                          " setp.eq.u64 %p, %n, 0;\n"
                          " @%p bra DONE;\n"
                          " st.volatile.global.u8 [%w], %v;\n"
                          " add.u64 %w, %w, 1;\n"
                          " sub.u64 %n, %n, 1;\n"
                          " bra FILL;\n"
                          "DONE:\n"
                          " membar.sys;\n"
                          " st.volatile.global.u32 [%j+36], %one;\n"
                          " ret;\n"
                          "}\n";

_Static_assert(offsetof(gate_t, where) == 8 && offsetof(gate_t, bytes) == 16 &&
                   offsetof(gate_t, limit_ns) == 24 && offsetof(gate_t, value) == 32 &&
                   offsetof(gate_t, over) == 36,
               "as the kernel reads it");

enum { CLOSED_MOST = 16, KERNEL_LIMIT_MS = 2 * GATE_LIMIT_MS };

static gate_t *gates; /* pinned and mapped */
static int last;
static CUfunction kernel;

static pthread_mutex_t closed_lock = PTHREAD_MUTEX_INITIALIZER;
static gate_t *closed[CLOSED_MOST];

/* --- on the simulator --------------------------------------------------------------------------
 */

static void body(void *job)
{
    gate_t *g = job;
    uint64_t end = now_ns() + g->limit_ns;
    uint8_t fill[4096];

    atomic_store(&g->begun, 1);
    while (!atomic_load(&g->open) && now_ns() < end)
        sleep_ms(1);
    memset(fill, (int)g->value, sizeof fill);
    for (uint64_t at = 0; at < g->bytes; at += sizeof fill) {
        uint64_t left = g->bytes - at;
        simcuda_store(g->where + at, fill, left < sizeof fill ? left : sizeof fill);
    }
    atomic_store(&g->over, 1);
}

/* --- gates -------------------------------------------------------------------------------------
 */

static gate_t *take(bool open)
{
    gate_t *g = &gates[last = (last + 1) % GATES];

    memset(g, 0, sizeof *g);
    g->limit_ns = KERNEL_LIMIT_MS * 1000000ull;
    atomic_store(&g->open, open);
    return g;
}

gate_t *gate_marking(void)
{
    return take(true);
}

gate_t *gate_closed(void)
{
    gate_t *g = take(false);
    int i = 0;

    g->closed_at = now_ns();
    pthread_mutex_lock(&closed_lock);
    while (i < CLOSED_MOST - 1 && closed[i])
        i++;
    closed[i] = g;
    pthread_mutex_unlock(&closed_lock);
    return g;
}

void gate_open(gate_t *g)
{
    pthread_mutex_lock(&closed_lock);
    for (int i = 0; i < CLOSED_MOST; i++)
        if (closed[i] == g)
            closed[i] = NULL;
    pthread_mutex_unlock(&closed_lock);
    atomic_store(&g->open, 1);
}

static void *watchdog_main(void *unused)
{
    (void)unused;
    for (;;) {
        sleep_ms(20);
        pthread_mutex_lock(&closed_lock);
        for (int i = 0; i < CLOSED_MOST; i++)
            if (closed[i] && now_ns() - closed[i]->closed_at > GATE_LIMIT_MS * 1000000ull) {
                atomic_store(&closed[i]->overran, true);
                atomic_store(&closed[i]->open, 1);
                closed[i] = NULL;
            }
        pthread_mutex_unlock(&closed_lock);
    }
    return NULL;
}

bool gate_overran(const gate_t *g)
{
    return atomic_load(&g->overran);
}

CUresult gate_launch(gate_t *g, CUstream stream)
{
    void *args[] = {&g};

    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

bool flag_set(const _Atomic uint32_t *flag, int ms)
{
    uint64_t end = now_ns() + (uint64_t)ms * 1000000u;

    while (!atomic_load(flag)) {
        if (now_ns() >= end)
            return false;
        struct timespec t = {0, 100000};
        nanosleep(&t, NULL);
    }
    return true;
}

bool gate_begins(const gate_t *g, int ms)
{
    return flag_set(&g->begun, ms);
}

bool gate_ends(const gate_t *g, int ms)
{
    return flag_set(&g->over, ms);
}

bool gates_ready(void)
{
    CUmodule module;
    pthread_t thread;
    void *p = NULL;
    CUresult r = cuModuleLoadData(&module, ptx);

    if (!r && !(r = cuModuleGetFunction(&kernel, module, "gate")) && simcuda_body)
        simcuda_body(kernel, body);
    if (!r)
        r = cuMemHostAlloc(&p, GATES * sizeof *gates,
                           CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    gates = p;
    /* The first launch may load code, which waits for work in flight. */
    if (!r && !(r = gate_launch(gate_marking(), NULL)))
        r = cuCtxSynchronize();
    if (!r && gate_ends(&gates[last], 0) && !pthread_create(&thread, NULL, watchdog_main, NULL)) {
        pthread_detach(thread);
        return true;
    }
    row_begin();
    row_str("note", "unavailable: kernels that wait to be opened");
    row_drv("code", r);
    row_end();
    return false;
}

/* --- opening in time ---------------------------------------------------------------------------
 */

static pthread_t opener;
static gate_t *to_open;
static int open_ms;
static bool opener_runs;

static void *opener_main(void *unused)
{
    uint64_t end = now_ns() + (uint64_t)open_ms * 1000000u;

    (void)unused;
    while (!atomic_load(&to_open->open) && now_ns() < end)
        sleep_ms(1);
    gate_open(to_open);
    return NULL;
}

void gate_open_after(gate_t *g, int ms)
{
    to_open = g;
    open_ms = ms;
    opener_runs = pthread_create(&opener, NULL, opener_main, NULL) == 0;
    if (!opener_runs)
        gate_open(g);
}

void gate_join(void)
{
    if (opener_runs)
        pthread_join(opener, NULL);
    opener_runs = false;
}
