/*
 * Lives of handles and of the process: do context and stream handles come again and do their ids
 * differ, what cudaSetDevice makes current, which calls still answer in exit handlers, destructors
 * and libraries' destructors.
 */
#include "facts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- handles
 * ---------------------------------------------------------------------------------------- */

static void handle_row(const char *what, int round, const void *handle, const void *before,
                       CUresult id_code, unsigned long long id)
{
    row_begin();
    row_str("handle", what);
    row_int("round", round);
    row_bool("same as in the round before", round > 0 && handle == before);
    row_drv("id code", id_code);
    row_int("id", (long long)id);
    row_end();
}

static void context_handles(ctx_id_fn id_of)
{
    CUcontext ctx, before = NULL;

    for (int i = 0; i < 4; i++) {
        unsigned long long id = 0;
        if (ctx_create(&ctx, 0) != CUDA_SUCCESS)
            return;
        CUresult r = id_of ? id_of(ctx, &id) : CUDA_ERROR_NOT_FOUND;
        handle_row("created context", i, ctx, before, r, id);
        before = ctx;
        cuCtxDestroy(ctx);
    }
}

static void stream_handles(stream_id_fn id_of)
{
    CUstream stream, before = NULL;
    static const struct {
        const char *name;
        CUstream stream;
    } fixed[] = {{"stream 0", NULL},
                 {"legacy stream", CU_STREAM_LEGACY},
                 {"per-thread stream", CU_STREAM_PER_THREAD}};

    for (int i = 0; i < 4; i++) {
        unsigned long long id = 0;
        if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            return;
        CUresult r = id_of ? id_of(stream, &id) : CUDA_ERROR_NOT_FOUND;
        handle_row("created stream", i, stream, before, r, id);
        before = stream;
        cuStreamDestroy(stream);
    }
    for (int i = 0; i < 3; i++) {
        unsigned long long id = 0;
        CUresult r = id_of ? id_of(fixed[i].stream, &id) : CUDA_ERROR_NOT_FOUND;
        handle_row(fixed[i].name, 0, fixed[i].stream, NULL, r, id);
    }
}

static void *thread_stream(void *id_of)
{
    unsigned long long id = 0;
    CUresult r;

    use_primary();
    r = id_of ? ((stream_id_fn)id_of)(CU_STREAM_PER_THREAD, &id) : CUDA_ERROR_NOT_FOUND;
    handle_row("per-thread stream, in another thread", 0, CU_STREAM_PER_THREAD, NULL, r, id);
    return NULL;
}

static void primary_handles(ctx_id_fn id_of)
{
    CUcontext ctx, before = NULL;

    for (int i = 0; i < 3; i++) {
        unsigned long long id = 0;
        ctx = use_primary();
        CUresult r = id_of ? id_of(ctx, &id) : CUDA_ERROR_NOT_FOUND;
        handle_row("primary context across cudaDeviceReset", i, ctx, before, r, id);
        before = ctx;
        cudaDeviceReset();
    }
    before = NULL;
    cuCtxSetCurrent(NULL);
    for (int i = 0; i < 3; i++) {
        unsigned long long id = 0;
        if (cuDevicePrimaryCtxRetain(&ctx, 0) != CUDA_SUCCESS)
            return;
        CUresult r = id_of ? id_of(ctx, &id) : CUDA_ERROR_NOT_FOUND;
        handle_row("primary context across retain and release", i, ctx, before, r, id);
        before = ctx;
        cuDevicePrimaryCtxRelease(0);
    }
}

static void address_again(void)
{
    void *p = NULL, *q = NULL;

    cudaMalloc(&p, 1 << 20);
    cudaFree(p);
    cudaMalloc(&q, 1 << 20);
    row_note(p == q ? "a freed address comes again with the next cudaMalloc of its size"
                    : "a freed address does not come at once with the next cudaMalloc of its size");
    cudaFree(q);
}

void fact_handles(const char *arg)
{
    pthread_t thread;

    (void)arg;
    use_primary();
    context_handles(ctx_id());
    stream_handles(stream_id());
    if (pthread_create(&thread, NULL, thread_stream, (void *)stream_id()) == 0)
        pthread_join(thread, NULL);
    address_again();
    primary_handles(ctx_id());
}

/* --- cudaSetDevice ------------------------------------------------------------------------------
 */

static void current_row(const char *after, cudaError_t e)
{
    CUcontext ctx = NULL;
    CUdevice dev = -1;
    CUresult r = cuCtxGetCurrent(&ctx);
    unsigned flags = 0;
    int active = -1;

    if (ctx)
        cuCtxGetDevice(&dev);
    row_begin();
    row_str("after", after);
    row_rt("code", e);
    row_drv("cuCtxGetCurrent", r);
    row_bool("a context is current", ctx != NULL);
    row_int("its device", dev);
    if (cuDevicePrimaryCtxGetState(0, &flags, &active) == CUDA_SUCCESS)
        row_bool("primary of device 0 active", active == 1);
    row_end();
}

void fact_set_device(const char *arg)
{
    int devices = 0;
    void *p = NULL;
    int ordinal = -1;

    (void)arg;
    current_row("nothing but cuInit", cuInit(0) ? cudaErrorUnknown : cudaSuccess);
    current_row("cudaGetDeviceCount", cudaGetDeviceCount(&devices));
    current_row("cudaSetDevice(0), first runtime call of its kind", cudaSetDevice(0));
    current_row("cudaFree(NULL)", cudaFree(NULL));
    if (devices < 2) {
        row_note("one device: the second half is unavailable");
        return;
    }
    current_row("cudaSetDevice(1)", cudaSetDevice(1));
    current_row("cudaMalloc", cudaMalloc(&p, 4096));
    cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)p);
    row_begin();
    row_str("after", "cudaMalloc");
    row_int("memory is on device", ordinal);
    row_end();
    current_row("cudaSetDevice(0)", cudaSetDevice(0));
}

/* --- teardown
 * ------------------------------------------------------------------------------------- */

static void *late_memory;
static CUevent late_event;
static bool teardown_wanted;

static void late_row(const char *when)
{
    CUcontext ctx = NULL;
    CUdeviceptr p = 0;
    void *q = NULL;
    size_t a = 0, b = 0;

    row_begin();
    row_str("when", when);
    row_drv("cuCtxGetCurrent", cuCtxGetCurrent(&ctx));
    row_drv("cuEventQuery", cuEventQuery(late_event));
    row_drv("cuMemAlloc", cuMemAlloc(&p, 4096));
    row_drv("cuMemGetInfo", cuMemGetInfo(&a, &b));
    row_rt("cudaMalloc", cudaMalloc(&q, 4096));
    row_rt("cudaFree", cudaFree(q));
    row_drv("cuMemFree", cuMemFree(p));
    row_rt("cudaGetLastError", cudaGetLastError());
    row_end();
}

static void at_exit_early(void)
{
    late_row("atexit handler registered before the first CUDA call");
}

static void at_exit_late(void)
{
    late_row("atexit handler registered after the first CUDA call");
}

__attribute__((destructor)) static void main_destructor(void)
{
    if (teardown_wanted)
        late_row("destructor of the main program");
}

/* A library whose destructor asks the driver: loaded late, or preloaded as the shim is. It is
 * compiled on the spot; without a compiler the row says so. */
#define WHEN_MARK "@when@"
static const char library_source[] =
    "#define _GNU_SOURCE\n"
    "#include <dlfcn.h>\n"
    "#include <stdio.h>\n"
    "#include <unistd.h>\n"
    "static int ask1(const char *n, void *a) {\n"
    "  int (*f)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, n); return f ? f(a) : -1; }\n"
    "__attribute__((destructor)) static void late(void) {\n"
    "  char t[400]; void *p = 0, *q = 0;\n"
    "  int (*alloc)(void **, unsigned long) =\n"
    "    (int (*)(void **, unsigned long))dlsym(RTLD_DEFAULT, \"cudaMalloc\");\n"
    "  int c = ask1(\"cuCtxGetCurrent\", &p), m = alloc ? alloc(&q, 4096) : -1;\n"
    "  int r = ask1(\"cudaFree\", q);\n"
    "  int n = snprintf(t, sizeof t, \"ROW {\\\"when\\\": \\\"destructor of a library, " WHEN_MARK
    "\\\", \\\"cuCtxGetCurrent\\\": %d, \\\"cudaMalloc\\\": %d, \\\"cudaFree\\\": %d}\\n\","
    " c, m, r);\n"
    "  if (write(1, t, n) < 0) return; }\n";

static bool build_library(const char *when, char *path, size_t bytes)
{
    char dir[] = "/tmp/facts-XXXXXX", command[600], text[sizeof library_source + 64];
    const char *cc = getenv("CC") ? getenv("CC") : "cc";
    const char *mark = strstr(library_source, WHEN_MARK);

    if (!mkdtemp(dir))
        return false;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(mark - library_source), library_source, when,
             mark + strlen(WHEN_MARK));
    snprintf(path, bytes, "%s/late.so", dir);
    snprintf(command, sizeof command, "%s -shared -fPIC -x c - -o %s -ldl", cc, path);
    FILE *f = popen(command, "w");
    if (!f)
        return false;
    fputs(text, f);
    return pclose(f) == 0;
}

static void remove_library(char *path)
{
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
}

void fact_teardown(const char *arg)
{
    char path[200];
    bool preload = !strcmp(arg, "preloaded"), again = getenv("FACTS_PRELOADED") != NULL;

    if (preload && !again) {
        if (!build_library("preloaded", path, sizeof path)) {
            row_note("unavailable: no compiler for the preloaded library");
            return;
        }
        setenv("FACTS_PRELOADED", path, 1);
        setenv("LD_PRELOAD", path, 1);
        execl("/proc/self/exe", "facts", "--child", "teardown/preloaded", (char *)NULL);
    }
    if (again) {
        snprintf(path, sizeof path, "%s", getenv("FACTS_PRELOADED"));
        remove_library(path);
    }
    atexit(at_exit_early);
    use_primary();
    atexit(at_exit_late);
    cudaMalloc(&late_memory, 4096);
    cuEventCreate(&late_event, CU_EVENT_DISABLE_TIMING);
    cuEventRecord(late_event, NULL);
    if (!preload) {
        if (build_library("loaded after the first CUDA call", path, sizeof path)) {
            if (!dlopen(path, RTLD_NOW))
                row_note(dlerror());
            remove_library(path);
        } else {
            row_note("unavailable: no compiler for the late library");
        }
    }
    teardown_wanted = true;
    late_row("in main");
}
