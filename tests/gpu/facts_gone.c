/*
 * Work of streams that are destroyed, and of green contexts: does cuCtxRecordEvent of the primary
 * context cover it, does the plain cudaFree wait for it? The pool's epochs promise what the second
 * does.
 *
 * What a handle to memory of another process names: the allocation, or a place inside it. And which
 * flags the kinds of pinned memory have.
 */
#include "facts.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- work of streams that are destroyed --------------------------------------------------------
 */

typedef struct gone {
    CUcontext ctx;  /* the primary one, which is asked */
    CUcontext work; /* current where the work is launched */
    CUstream stream;
    void *green; /* CUgreenCtx */
    holder_t how;
    CUresult started;
} gone_t;

static CUresult make_stream(gone_t *g)
{
    return cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING);
}

static CUresult make_blocking(gone_t *g)
{
    return cuStreamCreate(&g->stream, CU_STREAM_DEFAULT);
}

static CUresult destroy_stream(gone_t *g)
{
    return cuStreamDestroy(g->stream);
}

static CUresult nothing(gone_t *g)
{
    (void)g;
    return CUDA_SUCCESS;
}

static void start_work(gone_t *g)
{
    g->started = hold_stream(g->how, g->work, g->stream);
    hold_begun(g->how);
}

static void *thread_of_work(void *arg)
{
    gone_t *g = arg;

    use_primary();
    start_work(g);
    return NULL;
}

static CUresult make_per_thread(gone_t *g)
{
    g->stream = CU_STREAM_PER_THREAD;
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12050
static CUresult make_green(gone_t *g)
{
    __typeof__(cuDeviceGetDevResource) *get = driver_entry("cuDeviceGetDevResource");
    __typeof__(cuDevSmResourceSplitByCount) *split = driver_entry("cuDevSmResourceSplitByCount");
    __typeof__(cuDevResourceGenerateDesc) *describe = driver_entry("cuDevResourceGenerateDesc");
    __typeof__(cuGreenCtxCreate) *create = driver_entry("cuGreenCtxCreate");
    __typeof__(cuGreenCtxStreamCreate) *stream = driver_entry("cuGreenCtxStreamCreate");
    CUdevResource all, part;
    CUdevResourceDesc resources;
    unsigned groups = 1;
    CUresult r;

    if (!get || !split || !describe || !create || !stream)
        return CUDA_ERROR_NOT_FOUND;
    if ((r = get(0, &all, CU_DEV_RESOURCE_TYPE_SM)) ||
        (r = split(&part, &groups, &all, NULL, 0, 8)) || (r = describe(&resources, &part, 1)) ||
        (r = create((CUgreenCtx *)&g->green, resources, 0, CU_GREEN_CTX_DEFAULT_STREAM)))
        return r;
    return stream(&g->stream, (CUgreenCtx)g->green, CU_STREAM_NON_BLOCKING, 0);
}

static CUresult make_green_default(gone_t *g)
{
    __typeof__(cuCtxFromGreenCtx) *context = driver_entry("cuCtxFromGreenCtx");
    CUresult r = make_green(g);

    g->stream = NULL;
    return r ? r : context(&g->work, (CUgreenCtx)g->green);
}

static CUresult destroy_green(gone_t *g)
{
    __typeof__(cuGreenCtxDestroy) *destroy = driver_entry("cuGreenCtxDestroy");

    return destroy((CUgreenCtx)g->green);
}

static CUresult destroy_both(gone_t *g)
{
    CUresult r = cuStreamDestroy(g->stream);

    return r ? r : destroy_green(g);
}
#else
static CUresult make_green(gone_t *g)
{
    (void)g;
    return CUDA_ERROR_NOT_FOUND;
}
#define make_green_default make_green
#define destroy_green nothing
#define destroy_both nothing
#endif

static const struct kind {
    const char *arg, *name;
    CUresult (*make)(gone_t *);
    CUresult (*end)(gone_t *);
} kinds[] = {
    {"streams", "non-blocking stream, live", make_stream, nothing},
    {"streams", "non-blocking stream, destroyed", make_stream, destroy_stream},
    {"streams", "blocking stream, destroyed", make_blocking, destroy_stream},
    {"thread", "per-thread stream of a thread that ended", make_per_thread, nothing},
    {"green", "stream of a green context, live", make_green, nothing},
    {"green", "stream of a green context, destroyed", make_green, destroy_stream},
    {"green-default", "default stream of a green context", make_green_default, nothing},
    {"green-both", "stream and its green context, destroyed in turn", make_green, destroy_both},
    {"green-context", "stream of a green context that was destroyed", make_green, destroy_green},
};

/* The work begins, its stream goes, and is asked for: by a record, and by a plain free. */
static void gone_row(const struct kind *kind, gone_t *g, record_ctx_fn record)
{
    CUresult made = kind->make(g), ended, recorded, held, after;
    CUevent ev;
    void *memory = NULL;
    uint64_t begin, ended_ns, released;
    pthread_t thread;

    cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING);
    cudaMalloc(&memory, 16 << 20);
    hold_open();
    if (g->stream != CU_STREAM_PER_THREAD && made == CUDA_SUCCESS)
        start_work(g);
    hold_for_ms(500);
    begin = now_ns();
    if (g->stream == CU_STREAM_PER_THREAD && pthread_create(&thread, NULL, thread_of_work, g) == 0)
        pthread_join(thread, NULL);
    ended = made == CUDA_SUCCESS && g->started == CUDA_SUCCESS ? kind->end(g) : made;
    ended_ns = now_ns() - begin;
    recorded = record ? record(g->ctx, ev) : CUDA_ERROR_NOT_FOUND;
    sleep_ms(5);
    held = cuEventQuery(ev);
    cudaError_t freed = cudaFree(memory);
    uint64_t returned = now_ns();
    released = hold_finish();
    cuCtxSynchronize();
    after = cuEventQuery(ev);

    row_begin();
    row_str("work on", kind->name);
    row_str("held by", holder_names[g->how]);
    row_drv("made", made);
    row_drv("launch", g->started);
    row_drv("end", ended);
    row_bool("its end waits", begin + ended_ns >= released);
    row_bool("covered", g->started == CUDA_SUCCESS && held == CUDA_ERROR_NOT_READY);
    row_bool("cudaFree waits", returned >= released);
    row_drv("record", recorded);
    row_drv("query while held", held);
    row_drv("query afterwards", after);
    row_rt("free", freed);
    row_end();
}

void fact_record_gone(const char *arg)
{
    CUcontext ctx = use_primary();
    record_ctx_fn record = ctx_record();

    for (int how = 0; how < HOLDERS; how++)
        for (size_t i = 0; hold_usable((holder_t)how) && i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(kinds[i].arg, arg)) {
                gone_t g = {
                    .ctx = ctx, .work = ctx, .how = (holder_t)how, .started = CUDA_ERROR_NOT_FOUND};
                gone_row(&kinds[i], &g, record);
            }
}

/* --- what is accepted with a green context current ---------------------------------------------
 */

static void green_calls(const char *name, CUstream stream)
{
    CUdeviceptr plain = 0, async = 0;
    CUcontext owner = NULL, current = NULL;
    unsigned long long id = 0;
    CUevent ev = NULL;

    cuCtxGetCurrent(&current);
    cuMemAlloc(&plain, 4096);
    cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING);
    row_begin();
    row_str("on", name);
    row_drv("cuStreamGetCtx", cuStreamGetCtx(stream, &owner));
    row_bool("its context is current", owner == current);
    row_drv("cuStreamGetId", stream_id() ? stream_id()(stream, &id) : CUDA_ERROR_NOT_FOUND);
    row_drv("cuMemsetD8Async", cuMemsetD8Async(plain, 0, 4096, stream));
    row_drv("cuEventRecord", cuEventRecord(ev, stream));
    row_drv("cuStreamWaitEvent", cuStreamWaitEvent(stream, ev, 0));
    row_drv("cuMemAllocAsync", cuMemAllocAsync(&async, 4096, stream));
    row_drv("cuMemFreeAsync", cuMemFreeAsync(async, stream));
    row_drv("cuMemFreeAsync of cuMemAlloc memory", cuMemFreeAsync(plain, stream));
    row_drv("cuStreamSynchronize", cuStreamSynchronize(stream));
    row_end();
}

void fact_green(const char *arg)
{
    gone_t g = {.ctx = use_primary()};
    CUresult r = make_green(&g);
    CUstream own = g.stream;

    (void)arg;
    if (r == CUDA_SUCCESS)
        r = make_green_default(&g);
    if (r != CUDA_SUCCESS) {
        row_note("unavailable: green contexts");
        return;
    }
    cuCtxSetCurrent(g.work);
    green_calls("stream 0", NULL);
    green_calls("legacy stream", CU_STREAM_LEGACY);
    green_calls("per-thread stream", CU_STREAM_PER_THREAD);
    green_calls("stream of another green context", own);
}

/* --- handles for other processes ---------------------------------------------------------------
 */

enum { PLACES = 6, MARK = 0x5100 };

typedef struct shared {
    const char *name;
    CUdeviceptr at;
    CUresult code;
    CUipcMemHandle handle;
} shared_t;

static void bytes_that_differ(const CUipcMemHandle *a, const CUipcMemHandle *b)
{
    int first = -1, last = -1, count = 0;

    for (int i = 0; i < (int)sizeof a->reserved; i++)
        if (a->reserved[i] != b->reserved[i]) {
            first = first < 0 ? i : first;
            last = i;
            count++;
        }
    row_int("bytes that differ from the first's", count);
    row_int("first of them", first);
    row_int("last of them", last);
}

/* What another process finds there. */
static void opened_row(const shared_t *s)
{
    CUdeviceptr p = 0;
    unsigned found = 0;
    CUresult copied = CUDA_ERROR_NOT_FOUND;
    CUresult r = cuIpcOpenMemHandle(&p, s->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

    if (r == CUDA_SUCCESS) {
        copied = cuMemcpyDtoH(&found, p, sizeof found);
        cuIpcCloseMemHandle(p);
    }
    row_begin();
    row_str("pointer", s->name);
    row_drv("opened elsewhere", r);
    row_drv("copied", copied);
    row_int("place found there", copied == CUDA_SUCCESS ? (int)found - MARK : -1);
    row_end();
}

static void open_all(const char *path)
{
    static const char *const names[PLACES] = {"large",        "large + 1 MiB",
                                              "small",        "small + 256",
                                              "second small", "large, last 8 bytes changed"};
    FILE *f = fopen(path, "rb");
    shared_t s = {0};

    use_primary();
    for (int i = 0; f && i < PLACES; i++) {
        s.name = names[i];
        if (fread(&s.handle, sizeof s.handle, 1, f) == 1)
            opened_row(&s);
    }
    if (f)
        fclose(f);
}

void fact_ipc(const char *arg)
{
    const char *sent = getenv("FACTS_IPC");
    CUdeviceptr large = 0, small = 0, second = 0;
    char path[] = "/tmp/facts-ipc-XXXXXX";

    if (!strcmp(arg, "open")) {
        if (sent)
            open_all(sent);
        else
            row_note("asked by the fact ipc/handles alone");
        return;
    }
    use_primary();
    cuMemAlloc(&large, 16 << 20);
    cuMemAlloc(&small, 1000);
    cuMemAlloc(&second, 1000);
    shared_t all[PLACES] = {{.name = "large", .at = large},
                            {.name = "large + 1 MiB", .at = large + (1 << 20)},
                            {.name = "small", .at = small},
                            {.name = "small + 256", .at = small + 256},
                            {.name = "second small", .at = second}};
    FILE *f = fdopen(mkstemp(path), "wb");

    for (unsigned i = 0; i < PLACES - 1; i++) {
        unsigned mark = MARK + i;
        cuMemcpyHtoD(all[i].at, &mark, sizeof mark);
        all[i].code = cuIpcGetMemHandle(&all[i].handle, all[i].at);
        row_begin();
        row_str("pointer", all[i].name);
        row_drv("handle", all[i].code);
        bytes_that_differ(&all[0].handle, &all[i].handle);
        row_end();
    }
    all[PLACES - 1].handle = all[0].handle;
    memset(all[PLACES - 1].handle.reserved + sizeof all[0].handle.reserved - 8, 0xa5, 8);
    for (int i = 0; f && i < PLACES; i++)
        fwrite(&all[i].handle, sizeof all[i].handle, 1, f);
    if (f)
        fclose(f);
    setenv("FACTS_IPC", path, 1);
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "facts", "--child", "ipc/open", (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
    unlink(path);
}

/* --- flags of pinned memory --------------------------------------------------------------------
 */

static void flags_row(const char *call, unsigned asked, CUresult got, void *p)
{
    unsigned flags = 0;
    CUdeviceptr device = 0;
    CUresult r = got ? got : cuMemHostGetFlags(&flags, p);
    CUresult mapped = got ? got : cuMemHostGetDevicePointer(&device, p, 0);

    row_begin();
    row_str("call", call);
    row_int("flags asked", asked);
    row_drv("code", got);
    row_drv("cuMemHostGetFlags", r);
    row_int("flags answered", flags);
    row_drv("cuMemHostGetDevicePointer", mapped);
    row_bool("same address", device == (CUdeviceptr)(uintptr_t)p);
    row_end();
    if (!got)
        cuMemFreeHost(p);
}

void fact_pinned_flags(const char *arg)
{
    static const unsigned flags[] = {0, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP,
                                     CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
                                     CU_MEMHOSTALLOC_WRITECOMBINED};
    void *p = NULL;
    CUresult r;

    (void)arg;
    use_primary();
    r = cuMemAllocHost(&p, 4096);
    flags_row("cuMemAllocHost", 0, r, p);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        r = cuMemHostAlloc(&p, 4096, flags[i]);
        flags_row("cuMemHostAlloc", flags[i], r, p);
    }
    r = (CUresult)cudaMallocHost(&p, 4096);
    flags_row("cudaMallocHost", 0, r, p);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        r = (CUresult)cudaHostAlloc(&p, 4096, flags[i]);
        flags_row("cudaHostAlloc", flags[i], r, p);
    }
}
