/* Launches that may begin before the kernel in front of them has ended, and memory that is freed
 * and allocated again in the order of their stream. For the race check, under which kernels do what
 * their bodies say; on hardware there is nothing to see.
 *
 * both_overlap LANE STREAM HOW
 *   LANE    runtime or driver: whose stream-ordered calls allocate and free; plain: those of
 *           cudaMalloc and cudaFree
 *   STREAM  made, legacy or own
 *   HOW     next    the launch behind a reuse gets the memory
 *           later   another one comes between
 *           many    each launch gets memory of the one before it
 *           large   the memory is larger than what threads keep
 *           attrs   among many attributes
 *           fails   a launch fails before it
 *           again   the launch behind the next one begins early: prints whether it did */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include "check.h"
#include "simcuda/simcuda.h"

#define MANY 40u /* attributes */

static const char image[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                            ".visible .entry stores(.param .u64 at) { ret; }\n"
                            ".visible .entry tells(.param .u64 at) { ret; }\n"
                            ".visible .entry waits(.param .u64 at) { ret; }\n";

static bool by_driver, plain;
static CUstream stream;
static size_t bytes = 4096;
static unsigned attributes = 1;
static CUmodule module;
static _Atomic bool begun;

static void *take(void)
{
    void *memory = NULL;
    if (plain)
        OK(cudaMalloc(&memory, bytes));
    else if (by_driver)
        OK(cuMemAllocAsync((CUdeviceptr *)(void *)&memory, bytes, stream));
    else
        OK(cudaMallocAsync(&memory, bytes, stream));
    return memory;
}

static void give(void *memory)
{
    if (plain)
        OK(cudaFree(memory));
    else if (by_driver)
        OK(cuMemFreeAsync((CUdeviceptr)(uintptr_t)memory, stream));
    else
        OK(cudaFreeAsync(memory, stream));
}

/* Before its grid sync. */
static void stores(void *at)
{
    char some[8] = {0};
    simcuda_trigger();
    CHECK(!at || simcuda_store((uint64_t)(uintptr_t)at, some, sizeof some) == 0);
}

static void tells(void *at)
{
    (void)at;
    atomic_store(&begun, true);
}

/* Half a second at most. */
static void waits(void *seen)
{
    simcuda_trigger();
    for (int tries = 0; !atomic_load(&begun) && tries < 500; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    *(bool *)seen = atomic_load(&begun);
}

static CUfunction kernel(const char *name, void (*body)(void *))
{
    CUfunction function;
    OK(cuModuleGetFunction(&function, module, name));
    CHECK(simcuda_body(function, body) == 0);
    return function;
}

static int launch_on(CUfunction function, void *at, bool early, unsigned blocks)
{
    CUlaunchAttribute list[MANY] = {{.id = CU_LAUNCH_ATTRIBUTE_IGNORE}};
    CUlaunchConfig config = {blocks, 1, 1, 1, 1, 1, 0, stream, list, early ? attributes : 0};
    void *params[] = {&at};
    list[attributes - 1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    list[attributes - 1].value.programmaticStreamSerializationAllowed = 1;
    const CUlaunchAttribute before = list[attributes - 1];
    int code = (int)cuLaunchKernelEx(&config, function, params, NULL);
    CHECK(memcmp(&before, &list[attributes - 1], sizeof before) == 0);
    return code;
}

static void launch(CUfunction function, void *at, bool early)
{
    OK(launch_on(function, at, early, 1));
}

static void *reused(void *memory)
{
    give(memory);
    void *again = take();
    CHECK(again == memory);
    return again;
}

/* What the first calls obtain is there. */
static void *warmed_up(void)
{
    for (unsigned i = 0; i < 20; i++)
        give(take());
    return reused(take());
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    const char *how = argv[3];
    by_driver = strcmp(argv[1], "driver") == 0;
    plain = strcmp(argv[1], "plain") == 0;
    OK(cudaFree(NULL));
    if (!simcuda_body)
        return 0;
    if (strcmp(argv[2], "made") == 0)
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    else
        stream = strcmp(argv[2], "own") == 0 ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    OK(cuModuleLoadData(&module, image));
    CUfunction function = kernel("stores", stores);
    if (strcmp(how, "large") == 0 || stream == CU_STREAM_LEGACY) /* which keeps no small one */
        bytes = (size_t)16 << 20;
    if (strcmp(how, "attrs") == 0)
        attributes = MANY;
    void *memory = warmed_up();
    if (!plain)
        launch(function, NULL, true); /* what has been reused so far has not been used */
    launch(function, memory, false);
    memory = reused(memory);
    if (strcmp(how, "fails") == 0)
        CHECK(launch_on(function, memory, true, 0) != 0);
    if (strcmp(how, "later") == 0)
        launch(function, NULL, true);
    if (strcmp(how, "again") == 0) {
        bool seen = false;
        launch(kernel("waits", waits), &seen, true);
        launch(kernel("tells", tells), NULL, true);
        OK(cuStreamSynchronize(stream));
        printf("%d\n", seen);
    } else {
        launch(function, memory, true);
    }
    for (unsigned i = 0; strcmp(how, "many") == 0 && i < 20; i++) {
        memory = reused(memory);
        launch(function, memory, true);
    }
    give(memory);
    OK(cuStreamSynchronize(stream));
    return 0;
}
