/* SIM: the race check against kernels that learn an address while they run, also before their grid
 * sync; selftest_race.c runs them. */
#include "selftest_bodies.h"
#include "selftest_race.h"

#define ORDERED(name, keys) void name(void);
#define RACY(name, keys) void name(void);
#include "selftest_race_deferred.def"
#undef ORDERED
#undef RACY

static gate_t g = GATE;

static void stores(void *arg)
{
    char bytes[8] = {0};
    CHECK(simcuda_store(*(CUdeviceptr *)arg, bytes, sizeof(bytes)) == 0);
}

static void stores_deferred(void *arg)
{
    gate_fn(&g);
    stores(arg);
}

static void loads_deferred(void *arg)
{
    char bytes[8];
    gate_fn(&g);
    CHECK(simcuda_load(bytes, *(CUdeviceptr *)arg, sizeof(bytes)) == 0);
}

static void stores_after_sync(void *arg)
{
    simcuda_grid_sync();
    stores(arg);
}

static void b_waits_for_a(void)
{
    OK(cuEventRecord(e, a));
    OK(cuStreamWaitEvent(b, e, 0));
}

static void ends(void)
{
    gate_open(&g);
    OK(cuStreamSynchronize(a));
}

void a_kernel_that_stores_after_another_streams_set(void)
{
    start();
    launches(kernel("late", stores_deferred), &p, a);
    writes(b);
    ends();
}

void a_set_beside_a_kernel_that_stored(void)
{
    start();
    launches(kernel("now", stores), &p, a);
    launches(kernel("late", stores_deferred), &p,
             a); /* the first is over when this one is reached */
    pthread_mutex_lock(&g.mu);
    while (!g.reached) {
        pthread_cond_wait(&g.cv, &g.mu);
    }
    pthread_mutex_unlock(&g.mu);
    writes(b);
    ends();
}

void a_kernel_that_loads_after_another_streams_set(void)
{
    start();
    launches(kernel("late", loads_deferred), &p, a);
    writes(b);
    ends();
}

void a_kernel_that_stores_before_what_waits_for_it(void)
{
    start();
    launches(kernel("late", stores_deferred), &p, a);
    b_waits_for_a();
    writes(b);
    reads(b);
    ends();
    OK(cuCtxSynchronize());
    writes(c);
}

void a_kernel_that_stores_behind_what_it_waited_for(void)
{
    start();
    writes(b);
    OK(cuEventRecord(e, b));
    OK(cuStreamWaitEvent(a, e, 0));
    launches(kernel("late", stores_deferred), &p, a);
    ends();
}

void a_kernel_that_stores_between_sets_of_its_stream(void)
{
    start();
    writes(a);
    launches(kernel("late", stores_deferred), &p, a);
    writes(a);
    ends();
}

void a_read_before_the_store_of_a_kernel_that_no_thread_waits_for(void)
{
    start();
    launches(kernel("late", stores_deferred), &p, a);
    reads(b);
    ends();
}

/* The second stream's wait covers what came before the kernel. */
void a_set_behind_one_that_waits_for_the_kernel_only_in_part(void)
{
    start();
    OK(cuEventRecord(e, a));
    launches(kernel("late", stores_deferred), &p, a);
    OK(cuStreamWaitEvent(b, e, 0));
    writes(b);
    ends();
}

void a_host_function_that_stores_beside_another_stream(void)
{
    start();
    OK(cuLaunchHostFunc(a, stores_deferred, &p));
    writes(b);
    ends();
}

/* That it runs says nothing of what it does. */
void a_host_function_that_stores_while_others_know_it_runs(void)
{
    start();
    OK(cuLaunchHostFunc(a, stores_deferred, &p));
    pthread_mutex_lock(&g.mu);
    while (!g.reached) {
        pthread_cond_wait(&g.cv, &g.mu);
    }
    pthread_mutex_unlock(&g.mu);
    writes(b);
    ends();
}

void a_kernel_of_a_graph_that_stores_beside_another_stream(void)
{
    CUgraph graph;
    CUgraphExec x;
    start();
    OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
    launches(kernel("late", stores_deferred), &p, a);
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphInstantiate(&x, graph, 0));
    OK(cuGraphLaunch(x, a));
    writes(b);
    ends();
}

/* --- before the grid sync ----------------------------------------------------------------------*/
void a_programmatic_kernel_before_its_sync(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    launches_programmatically(kernel("second", stores), &p, a);
    ends();
}

static void stores_and_tells(void *arg)
{
    stores(arg);
    gate_open(&g);
}

void a_kernel_that_stores_after_a_programmatic_one_did(void) /* SIM: programmatic:early */
{
    start();
    launches(kernel("first", stores_deferred), &p, a);
    launches_programmatically(kernel("second", stores_and_tells), &p, a);
    OK(cuStreamSynchronize(a));
}

void a_programmatic_kernel_after_its_sync(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    launches_programmatically(kernel("second", stores_after_sync), &p, a);
    ends();
}

void a_plain_kernel_behind_a_programmatic_one(void)
{
    start();
    launches_programmatically(kernel("first", stores), &p, a);
    launches(kernel("second", stores), &p, a);
    b_waits_for_a();
    writes(b);
    ends();
}

void a_programmatic_kernel_behind_a_set(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    writes(a);
    launches_programmatically(kernel("second", stores), &p, a);
    ends();
}

/* The wait is for an event behind the first kernel. */
void a_programmatic_kernel_behind_a_wait(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    OK(cuCtxRecordEvent(ctx, e));
    OK(cuStreamWaitEvent(a, e, 0));
    launches_programmatically(kernel("second", stores), &p, a);
    ends();
}

void a_programmatic_kernel_behind_a_free(void)
{
    CUdeviceptr other;
    start();
    OK(cuMemAllocAsync(&other, 256, a));
    launches(kernel("first", stores), &p, a);
    OK(cuMemFreeAsync(other, a));
    OK(cuMemAllocAsync(&other, 256, a));
    launches_programmatically(kernel("second", stores), &p, a);
    ends();
}

static void nothing(void *arg)
{
    (void)arg;
}

/* The one between has not waited for the first either. */
void a_programmatic_kernel_behind_two(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    launches_programmatically(kernel("between", nothing), NULL, a);
    launches_programmatically(kernel("last", stores), &p, a);
    ends();
}

void a_programmatic_kernel_behind_a_plain_one_behind_it(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    launches(kernel("between", nothing), NULL, a);
    launches_programmatically(kernel("last", stores), &p, a);
    ends();
}

void a_programmatic_kernel_after_the_host_has_waited(void)
{
    start();
    launches(kernel("first", stores), &p, a);
    OK(cuStreamSynchronize(a));
    launches_programmatically(kernel("second", stores), &p, a);
    ends();
}

void many_programmatic_kernels(void)
{
    start();
    CUfunction f = kernel("one", stores_after_sync);
    for (int i = 0; i < 500; i++) {
        launches_programmatically(f, &p, a);
        if (i % 50 == 0) {
            OK(cuStreamSynchronize(a));
        }
    }
    b_waits_for_a();
    writes(b);
    ends();
}
