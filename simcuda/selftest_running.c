/* SIM: what kernels with bodies do, and when; see selftest.c. */
#include "selftest_bodies.h"

#include <stdatomic.h>

static CUstream s;
static CUdeviceptr p;

static void start(void)
{
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, 16));
}

static void adds_one(void *arg)
{
    unsigned char v;
    CHECK(simcuda_load(&v, *(CUdeviceptr *)arg, 1) == 0);
    v++;
    CHECK(simcuda_store(*(CUdeviceptr *)arg, &v, 1) == 0);
}

static _Atomic int refused;

static void is_refused(void *arg)
{
    unsigned char v;
    atomic_store(&refused, simcuda_load(&v, *(CUdeviceptr *)arg, 1) == -1);
}

static void until(_Atomic int *flag)
{
    while (!atomic_load(flag)) {
    }
}

void a_kernel_does_what_its_body_says(void)
{
    unsigned char seen = 0, v = 1;
    CUgraph graph;
    CUgraphExec x;
    start();
    CUfunction f = kernel("adds_one", adds_one);
    CHECK(simcuda_body(s, adds_one) == -1);
    CHECK(simcuda_store(p, &v, 1) == -1); /* no kernel runs here */
    OK(cuMemsetD8Async(p, 40, 1, s));
    launches(f, &p, s);
    launches_programmatically(f, &p, s); /* after the end of the first: that triggers nothing */
    OK(cuLaunchHostFunc(s, adds_one, &p));
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    launches(f, &p, s);
    OK(cuStreamEndCapture(s, &graph));
    OK(cuGraphInstantiate(&x, graph, 0));
    OK(cuGraphLaunch(x, s));
    OK(cuGraphLaunch(x, s));
    OK(cuMemcpyDtoHAsync(&seen, p, 1, s));
    OK(cuStreamSynchronize(s));
    CHECK(seen == 45);
    OK(cuGraphExecDestroy(x));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree(p));
    launches(kernel("is_refused", is_refused), &p, s);
    until(&refused);
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
}

/* --- programmatic launches ---------------------------------------------------------------------*/
static _Atomic int begun[4], over[4];

static void first_triggers(void *arg)
{
    (void)arg;
    simcuda_trigger();
    until(&begun[1]);
    atomic_store(&over[0], 1);
}

static void first_waits(void *arg)
{
    (void)arg;
    until(&begun[1]);
    atomic_store(&over[0], 1);
}

static void second_syncs(void *arg)
{
    (void)arg;
    atomic_store(&begun[1], 1);
    simcuda_grid_sync();
    CHECK(atomic_load(&over[0]));
    atomic_store(&over[1], 1);
}

static void third(void *arg)
{
    (void)arg;
    CHECK(atomic_load(&over[0]) && atomic_load(&over[1]));
    atomic_store(&over[2], 1);
}

static void overlap(void (*first)(void *))
{
    start();
    launches(kernel("first", first), NULL, s);
    launches_programmatically(kernel("second", second_syncs), NULL, s);
    launches(kernel("third", third), NULL, s);
    OK(cuStreamSynchronize(s));
    CHECK(atomic_load(&over[2]));
}

void a_programmatic_launch_begins_after_the_trigger(void)
{
    overlap(first_triggers);
}

void a_programmatic_launch_begins_with_every_kernel(void) /* SIM: programmatic:early */
{
    overlap(first_waits);
}

static void chained(void *arg)
{
    atomic_store(&begun[(intptr_t)arg], 1);
    until(&begun[3]); /* all of them run */
    simcuda_grid_sync();
    CHECK(arg == NULL || atomic_load(&over[(intptr_t)arg - 1]));
    atomic_store(&over[(intptr_t)arg], 1);
}

void programmatic_launches_form_a_chain(void)
{
    start();
    CUfunction f = kernel("chained", chained);
    launches(f, NULL, s);
    for (intptr_t i = 1; i < 4; i++) {
        launches_programmatically(f, (void *)i, s);
    }
    OK(cuStreamSynchronize(s));
    CHECK(atomic_load(&over[3]));
}

static void first_alone(void *arg)
{
    (void)arg;
    CHECK(!atomic_load(&begun[1]));
    atomic_store(&over[0], 1);
}

static void second_alone(void *arg)
{
    (void)arg;
    CHECK(atomic_load(&over[0]));
}

void other_work_ends_the_overlap(void)
{
    static gate_t g = GATE;
    start();
    gate_hold(&g, s);
    launches(kernel("first", first_alone), NULL, s);
    OK(cuMemsetD8Async(p, 0, 1, s));
    launches_programmatically(kernel("second", second_alone), NULL, s);
    gate_open(&g);
    OK(cuStreamSynchronize(s));
}
