/*
 * What cuStreamWaitEvent of an event of cuCtxRecordEvent holds back: with reuse in order a second
 * stream waits so for memory whose old owner may write yet.
 *
 * order_copies: small copies to the device, which some drivers put into the command itself, into
 * memory that a kernel writes late. order_waits: kernels, behind work on every kind of stream.
 * order_handles: whether a stream's handle identifies the stream.
 */
#include "facts_gate.h"

#include <pthread.h>
#include <string.h>

enum { HELD_MS = 25, RUN_MS = 15, END_MS = 2000 };

static CUcontext ctx;
static CUevent fence;
static record_ctx_fn record;

static bool begin(void)
{
    ctx = use_primary();
    record = ctx_record();
    if (!record)
        row_note("this driver has no cuCtxRecordEvent");
    return record && gates_ready() && !cuEventCreate(&fence, CU_EVENT_DISABLE_TIMING);
}

static CUstream stream_of(unsigned flags)
{
    CUstream stream = NULL;

    cuStreamCreate(&stream, flags);
    return stream;
}

static void row_void(CUresult code, bool began, bool overran)
{
    if (code)
        row_drv("code", code);
    if (!began || overran)
        row_str("void", began ? "the watchdog has opened the kernel" : "the kernel did not begin");
}

/* --- small copies ------------------------------------------------------------------------------
 */

enum { MOST = 64 << 10, ROUNDS = 3, OLD = 0x11, LATE = 0xaa, SOURCE = 0x55, CHANGED = 0x77 };

static CUstream old_stream, non_blocking, blocking;
static CUdeviceptr block;
static unsigned char *pinned, pageable[MOST], found[MOST];

static CUresult copy_async(CUstream stream, const void *from, size_t bytes)
{
    return cuMemcpyHtoDAsync(block, from, bytes, stream);
}

static CUresult copy_plain(CUstream stream, const void *from, size_t bytes)
{
    (void)stream;
    return cuMemcpyHtoD(block, from, bytes);
}

static CUresult copy_own(CUstream stream, const void *from, size_t bytes)
{
    static __typeof__(cuMemcpyHtoD) *copy;

    (void)stream;
    if (!copy)
        copy = (__typeof__(cuMemcpyHtoD) *)driver_symbol("cuMemcpyHtoD_v2_ptds");
    return copy ? copy(block, from, bytes) : CUDA_ERROR_NOT_FOUND;
}

typedef struct copy {
    const char *call, *on;
    CUresult (*act)(CUstream, const void *, size_t);
    CUstream stream;
} copy_t;

typedef struct seen {
    bool waits, stays, early, began, overran;
    CUresult code;
} seen_t;

/* The old owner's kernel goes on, and writes when it is opened; the new owner copies. */
static seen_t one_copy(const copy_t *c, unsigned char *from, size_t bytes, bool behind)
{
    seen_t s = {.stays = true};
    gate_t *late = gate_closed();

    late->where = block;
    late->bytes = bytes;
    late->value = LATE;
    memset(from, SOURCE, bytes);
    s.code = gate_launch(late, old_stream);
    s.began = gate_begins(late, 500);
    if (!s.code)
        s.code = record(ctx, fence);
    if (!s.code && behind)
        s.code = cuStreamWaitEvent(c->stream, fence, 0);
    gate_open_after(late, HELD_MS);
    if (!s.code)
        s.code = c->act(c->stream, from, bytes);
    s.waits = atomic_load(&late->open) != 0;
    if (!s.waits) {
        memset(from, CHANGED, bytes);
        sleep_ms(1); /* the copy comes first where nothing holds it back */
        s.waits = atomic_load(&late->open) != 0; /* too late to know: as if it had waited */
        gate_open(late);
    }
    gate_join();
    s.overran = gate_overran(late);
    cuCtxSynchronize();
    cuMemcpyDtoH(found, block, bytes);
    for (size_t i = 0; i < bytes; i++)
        s.stays &= found[i] == SOURCE || found[i] == CHANGED;
    s.early = !s.waits && found[0] == SOURCE;
    return s;
}

static void copy_row(const copy_t *c, const char *source, unsigned char *from, size_t bytes,
                     bool behind)
{
    seen_t all = {.stays = true, .began = true, .waits = true};

    for (int round = 0; round < ROUNDS; round++) {
        cuMemsetD8(block, OLD, MOST);
        cuCtxSynchronize();
        seen_t s = one_copy(c, from, bytes, behind);
        all.stays &= s.stays;
        all.waits &= s.waits; /* once may be this thread, which was not run for as long */
        all.early |= s.early;
        all.began &= s.began;
        all.overran |= s.overran;
        all.code = all.code ? all.code : s.code;
    }
    row_begin();
    row_str("call", c->call);
    row_str("on", c->on);
    row_str("from", source);
    row_str("when", behind ? "behind cuStreamWaitEvent" : "behind nothing");
    row_int("bytes", (long long)bytes);
    row_bool("the copy is the last write", all.stays);
    row_bool("the call waits", all.waits);
    row_bool("its source is read before", all.early);
    row_void(all.code, all.began, all.overran);
    row_end();
}

void fact_order_copies(const char *arg)
{
    static const size_t sizes[] = {1, 4, 64, 256, 1024, 4096, 16 << 10, MOST};
    void *p = NULL;

    (void)arg;
    if (!begin() || cuMemAlloc(&block, MOST) || cuMemAllocHost(&p, MOST))
        return;
    pinned = p;
    old_stream = stream_of(CU_STREAM_NON_BLOCKING);
    non_blocking = stream_of(CU_STREAM_NON_BLOCKING);
    blocking = stream_of(CU_STREAM_DEFAULT);
    const copy_t copies[] = {
        {"cuMemcpyHtoDAsync", "non-blocking stream", copy_async, non_blocking},
        {"cuMemcpyHtoDAsync", "blocking stream", copy_async, blocking},
        {"cuMemcpyHtoDAsync", "legacy stream", copy_async, CU_STREAM_LEGACY},
        {"cuMemcpyHtoD", "legacy stream", copy_plain, CU_STREAM_LEGACY},
        {"cuMemcpyHtoD_ptds", "per-thread default stream", copy_own, CU_STREAM_PER_THREAD},
    };
    for (size_t c = 0; c < sizeof copies / sizeof *copies; c++)
        for (int source = 0; source < 2; source++) {
            const char *name = source ? "pageable" : "pinned";
            unsigned char *from = source ? pageable : pinned;
            for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
                copy_row(&copies[c], name, from, sizes[k], true);
            copy_row(&copies[c], name, from, 256, false); /* it could be seen */
        }
}

/* --- what the event covers ---------------------------------------------------------------------
 */

typedef struct work {
    const char *name;
    CUstream stream;
    bool ends;       /* the stream is destroyed while the kernel goes on */
    bool of_another; /* thread, which ends as well */
} work_t;

static gate_t *of_thread;

static void *thread_main(void *unused)
{
    (void)unused;
    cuCtxSetCurrent(ctx);
    gate_launch(of_thread, CU_STREAM_PER_THREAD);
    return NULL;
}

static CUresult start(work_t *w, gate_t *g)
{
    CUstream stream = w->ends ? stream_of(CU_STREAM_NON_BLOCKING) : w->stream;
    pthread_t thread;
    CUresult r = CUDA_SUCCESS;

    of_thread = g;
    if (!w->of_another)
        r = gate_launch(g, stream);
    else if (pthread_create(&thread, NULL, thread_main, NULL) == 0)
        pthread_join(thread, NULL);
    if (!gate_begins(g, 500))
        r = r ? r : CUDA_ERROR_NOT_READY;
    if (w->ends)
        cuStreamDestroy(stream);
    return r;
}

static void waits_row(work_t *w, const char *on, CUstream waiter)
{
    gate_t *g = gate_closed(), *mark = gate_marking();
    CUresult r = start(w, g);
    uint64_t t = now_ns();

    if (!r)
        r = record(ctx, fence);
    if (!r)
        r = cuStreamWaitEvent(waiter, fence, 0);
    if (!r)
        r = gate_launch(mark, waiter);
    t = now_ns() - t;
    bool ran = gate_ends(mark, RUN_MS);
    gate_open(g);
    bool runs = gate_ends(mark, END_MS);
    cuCtxSynchronize();

    row_begin();
    row_str("work on", w->name);
    row_str("on", on);
    row_bool("waits", !ran);
    row_bool("runs afterwards", runs);
    row_bool("a call waits", t > 500000000u);
    row_void(r, true, gate_overran(g));
    row_end();
}

static void question(const char *text, CUresult r, bool yes, const gate_t *last)
{
    row_begin();
    row_str("question", text);
    row_bool("answer", yes);
    row_void(r, true, gate_overran(last));
    row_end();
}

/* One fence for several streams, and what comes after it. */
static void several(CUstream waiter)
{
    CUstream a = stream_of(CU_STREAM_NON_BLOCKING), b = stream_of(CU_STREAM_NON_BLOCKING);
    gate_t *first = gate_closed(), *second = gate_closed(), *later = gate_closed();
    gate_t *mark = gate_marking();
    CUresult r = gate_launch(first, a);

    if (!r)
        r = gate_launch(second, b);
    gate_begins(first, 500);
    gate_begins(second, 500);
    if (!r && !(r = record(ctx, fence)))
        r = cuStreamWaitEvent(waiter, fence, 0);
    if (!r && !(r = gate_launch(mark, waiter)))
        r = gate_launch(later, a);
    if (!r)
        r = record(ctx, fence); /* covers `later` as well, which the wait does not know */
    gate_open(first);
    question("a stream waits on while one of two kernels that the event covers goes on", r,
             !gate_ends(mark, RUN_MS), second);
    gate_open(second);
    bool began = gate_begins(later, END_MS);
    question("a stream waits for work that came after the record", r,
             !began || !gate_ends(mark, END_MS / 4), later);
    gate_open(later);
    question("it runs at last", r, gate_ends(mark, END_MS), later);
    cuCtxSynchronize();
}

void fact_order_waits(const char *arg)
{
    int low = 0, high = 0;
    CUstream urgent = NULL;

    (void)arg;
    if (!begin())
        return;
    cuCtxGetStreamPriorityRange(&low, &high);
    cuStreamCreateWithPriority(&urgent, CU_STREAM_NON_BLOCKING, high);
    work_t works[] = {
        {"legacy stream", CU_STREAM_LEGACY, false, false},
        {"per-thread default stream", CU_STREAM_PER_THREAD, false, false},
        {"blocking stream", stream_of(CU_STREAM_DEFAULT), false, false},
        {"non-blocking stream", stream_of(CU_STREAM_NON_BLOCKING), false, false},
        {"non-blocking stream of high priority", urgent, false, false},
        {"stream that was destroyed", NULL, true, false},
        {"per-thread stream of a thread that ended", NULL, false, true},
    };
    const struct {
        const char *name;
        CUstream stream;
    } waiters[] = {{"non-blocking stream", stream_of(CU_STREAM_NON_BLOCKING)},
                   {"blocking stream", stream_of(CU_STREAM_DEFAULT)},
                   {"legacy stream", CU_STREAM_LEGACY}};
    for (size_t w = 0; w < sizeof works / sizeof *works; w++)
        for (size_t t = 0; t < sizeof waiters / sizeof *waiters; t++)
            waits_row(&works[w], waiters[t].name, waiters[t].stream);
    several(waiters[0].stream);
}

/* --- handles -----------------------------------------------------------------------------------
 */

static CUresult by_runtime(CUstream *stream, unsigned flags)
{
    return (CUresult)cudaStreamCreateWithFlags(stream, flags);
}

static CUresult by_driver(CUstream *stream, unsigned flags)
{
    return cuStreamCreate(stream, flags);
}

static void again_row(const char *kind, const char *when, CUstream gone, unsigned long long id,
                      CUresult (*create)(CUstream *, unsigned), unsigned flags, const gate_t *g)
{
    enum { NEW = 16 };
    CUstream streams[NEW] = {NULL};
    unsigned long long other = 0;
    bool handle = false, same_id = false;
    CUresult r = CUDA_SUCCESS;
    bool overran;

    for (int i = 0; !r && i < NEW; i++) {
        r = create(&streams[i], flags);
        handle |= streams[i] == gone;
        if (stream_id() && !stream_id()(streams[i], &other))
            same_id |= other == id;
    }
    overran = gate_overran(g);
    row_begin();
    row_str("kind", kind);
    row_str("when", when);
    row_bool("its handle comes again", handle);
    row_bool("its id comes again", same_id);
    row_void(r, true, overran);
    row_end();
    for (int i = 0; i < NEW && streams[i]; i++)
        cuStreamDestroy(streams[i]);
}

static void handle_rows(const char *kind, CUresult (*create)(CUstream *, unsigned), unsigned flags)
{
    CUstream stream = NULL;
    unsigned long long id = 0;
    gate_t *g = gate_closed();
    CUresult r = create(&stream, flags);

    if (stream_id())
        stream_id()(stream, &id);
    if (!r)
        r = gate_launch(g, stream);
    bool began = gate_begins(g, 500);
    cuStreamDestroy(stream);
    row_begin();
    row_str("kind", kind);
    row_str("call", "cuStreamDestroy of a stream at work");
    row_bool("waits", atomic_load(&g->open) != 0);
    row_void(r, began, gate_overran(g));
    row_end();
    again_row(kind, "while the work goes on", stream, id, create, flags, g);
    gate_open(g);
    cuCtxSynchronize();
    again_row(kind, "when the work has ended", stream, id, create, flags, g);
}

void fact_order_handles(const char *arg)
{
    (void)arg;
    use_primary();
    if (!gates_ready())
        return;
    handle_rows("non-blocking stream", by_driver, CU_STREAM_NON_BLOCKING);
    handle_rows("blocking stream", by_driver, CU_STREAM_DEFAULT);
    handle_rows("stream of the runtime", by_runtime, cudaStreamNonBlocking);
}
