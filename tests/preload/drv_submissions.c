/* The calls that submit work, as the shim wraps them.
 *
 * "drv_submissions each": every function of shim/hooks/submissions.def that the driver has is
 * called with arguments of 0, by its look-up and as a program linked with -lcuda calls it. It must
 * come by the driver's function of that name, once, and bring back what that answers: an error of
 * the simulator's.
 *
 * "drv_submissions CALL:STREAM...": makes those calls. A stream is `legacy`, `one` (the handle that
 * means it), `own` (the thread's, by its handle), `null` (the same in a per-thread twin), `a`, `b`,
 * or `other`, another thread's own. First of all `late:CONF` sets ALLOC_CONF, after a look-up, and
 * with `blind` the device tells nothing about itself. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include "check.h"
#include "simcuda/simcuda.h"

static const struct {
    const char *symbol, *name;
    int version, per_thread;
} entries[] = {
#define CA_SUBMISSION(symbol, name, version, per_thread, ...) {#symbol, name, version, per_thread},
#include "shim/hooks/submissions.def"
};
#define ENTRIES (sizeof(entries) / sizeof(entries[0]))

/* All of them take words, and no more of them than 11: those that are not given are 0. */
typedef CUresult (*entry_t)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                            uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static CUresult call(void *entry)
{
    return ((entry_t)entry)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

static void check(const char *symbol, void *entry, const char *how)
{
    const int error = CUDA_ERROR_LAUNCH_TIMEOUT;
    OK(simcuda_fail(symbol, NULL, 1, error));
    CUresult code = call(entry);
    uint64_t calls = simcuda_calls(symbol);
    OK(simcuda_fail(symbol, NULL, 0, error));
    if (calls != 1 || code != (CUresult)error)
        FAIL("%s, by %s: %d after %u calls", symbol, how, (int)code, (unsigned)calls);
}

static void each(void)
{
    unsigned found = 0, ours = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; i < ENTRIES; i++) {
        void *linked = dlsym(RTLD_DEFAULT, entries[i].symbol);
        void *named = dlsym(driver, entries[i].symbol), *queried = NULL;
        if (!named)
            continue; /* of a graphics library's header */
        OK(cuGetProcAddress_v2(entries[i].name, &queried, entries[i].version,
                               entries[i].per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                                     : CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                               NULL));
        CHECK(linked && queried);
        check(entries[i].symbol, linked, "the linker");
        check(entries[i].symbol, named, "dlsym");
        check(entries[i].symbol, queried, "cuGetProcAddress");
        found++;
        ours += named == queried;
    }
    printf("%u functions, %u the same by both look-ups\n", found, ours);
}

static CUdeviceptr memory;
static CUstream a, b;

static void set(CUstream stream)
{
    OK(cuMemsetD8Async(memory, 1, 64, stream));
}

static void *set_own(void *unused)
{
    CUcontext context = unused;
    OK(cuCtxSetCurrent(context));
    OK(cuMemsetD8Async_ptsz(memory, 1, 64, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
    return NULL;
}

static void set_other(void)
{
    CUcontext context;
    pthread_t thread;
    OK(cuCtxGetCurrent(&context));
    OK(pthread_create(&thread, NULL, set_own, context));
    OK(pthread_join(thread, NULL));
}

static void do_nothing(void *unused)
{
    (void)unused;
}

static CUstream stream_named(const char *name)
{
    static const struct {
        const char *name;
        CUstream *stream, handle;
    } streams[] = {{"legacy", NULL, NULL},
                   {"one", NULL, CU_STREAM_LEGACY},
                   {"own", NULL, CU_STREAM_PER_THREAD},
                   {"a", &a, NULL},
                   {"b", &b, NULL}};
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++)
        if (strcmp(streams[i].name, name) == 0)
            return streams[i].stream ? *streams[i].stream : streams[i].handle;
    FAIL("no stream %s", name);
}

static void make(const char *what)
{
    char host[64];
    const char *on = strchr(what, ':');
    size_t length = on ? (size_t)(on - what) : strlen(what);
#define IS(name) (strlen(name) == length && memcmp(what, name, length) == 0)
    if (IS("set") && strcmp(on, ":null") == 0) {
        OK(cuMemsetD8Async_ptsz(memory, 1, 64, NULL));
    } else if (IS("set") && strcmp(on, ":other") == 0) {
        set_other();
    } else if (IS("set")) {
        set(stream_named(on + 1));
    } else if (IS("copy")) { /* synchronous, on the legacy stream */
        OK(cuMemcpyDtoH_v2(host, memory, sizeof host));
    } else if (IS("copy_own")) {
        OK(cuMemcpyDtoH_v2_ptds(host, memory, sizeof host));
    } else if (IS("callback")) {
        OK(cuLaunchHostFunc(stream_named(on + 1), do_nothing, NULL));
    } else if (IS("refused")) {
        CHECK(cuMemcpyAsync(memory, 0, 64, stream_named(on + 1)) != CUDA_SUCCESS);
    } else if (IS("again")) { /* the handle may come again */
        OK(cuStreamDestroy_v2(a));
        OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    } else if (IS("context")) {
        CUcontext context;
        OK(cuCtxCreate_v2(&context, 0, 0));
    } else if (IS("late") || IS("blind")) {
        return; /* done, after the first look-up and before the first call */
    } else if (IS("open")) {
        CHECK(dlopen(on + 1, RTLD_NOW));
    } else if (IS("deep") || IS("shallow")) { /* a module with work() */
        void *opened = dlopen(on + 1, RTLD_LAZY | (IS("deep") ? RTLD_DEEPBIND : 0));
        CHECK(opened);
        int (*work)(CUdeviceptr) = (int (*)(CUdeviceptr))dlsym(opened, "work");
        OK(work(memory));
    } else if (IS("apart")) { /* in a namespace of its own */
        if (!dlmopen(LM_ID_NEWLM, on + 1, RTLD_NOW))
            FAIL("%s", dlerror());
    } else if (IS("module")) {
        CUmodule module;
        OK(cuModuleLoadData(&module, "image"));
    } else if (IS("attribute")) {
        unsigned long long id;
        OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, memory));
    } else if (IS("device_graph")) {
        CUgraph graph;
        CUgraphExec made;
        OK(cuGraphCreate(&graph, 0));
        (void)cuGraphInstantiateWithFlags(&made, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
    } else if (IS("peer")) {
        CHECK(cuCtxEnablePeerAccess(NULL, 0) != CUDA_SUCCESS);
    } else if (IS("table")) {
        const void *table;
        CUuuid id = {{1}};
        (void)cuGetExportTable(&table, &id);
    } else {
        FAIL("no call %s", what);
    }
}

int main(int argc, char **argv)
{
    CUcontext context;
    if (argc > 1 && strncmp(argv[1], "late:", 5) == 0) {
        CHECK(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2"));
        OK(setenv("ALLOC_CONF", argv[1] + 5, 1));
    }
    if (argc > 1 && strcmp(argv[1], "blind") == 0)
        OK(simcuda_fail("cuDeviceGetAttribute", "libcachealloc.so", 1, CUDA_ERROR_UNKNOWN));
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    if (argc == 2 && strcmp(argv[1], "each") == 0) {
        each();
        return 0;
    }
    OK(cuMemAlloc_v2(&memory, 64));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    for (int i = 1; i < argc; i++)
        make(argv[i]);
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(memory));
    return 0;
}
