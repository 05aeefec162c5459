/*
 * Which streams wait for which, where CUDA orders them by itself (CUDA C++ Programming Guide,
 * "Implicit Synchronization"): the legacy stream and blocking ones, for kernels, copies and host
 * functions, and whether that order outlasts a cuCtxRecordEvent between the two. The random
 * programs of tests/random rely on it, and so does every program that mixes such streams.
 */
#include "facts.h"

enum { SETTLE_MS = 4 };

/* What is at work on the first stream: the hold itself, or something that an event of a held stream
 * holds back; what comes on the second; and what is done between the two. */
static const char *const works[] = {"the hold", "a host function behind a wait",
                                    "a kernel behind a wait"};
static const char *const followers[] = {"copy", "kernel", "host function"};
static const char *const betweens[] = {"nothing", "cuCtxRecordEvent", "kernel on the first",
                                       "cuCtxRecordEvent and its query", "cuMemAlloc"};
enum { WORKS = 3, FOLLOWERS = 3, BETWEENS = 5 };

static CUdeviceptr memory;
static void *pinned;

static void CUDA_CB nothing(void *unused)
{
    (void)unused;
}

static CUresult follow(int which, CUcontext ctx, CUstream stream)
{
    if (which == 0)
        return cuMemcpyHtoDAsync(memory, pinned, 256, stream);
    if (which == 1)
        return hold_poke(ctx, memory, stream);
    return cuLaunchHostFunc(stream, nothing, NULL);
}

static CUresult come_between(int which, CUcontext ctx, CUstream first, CUevent ev)
{
    record_ctx_fn record = ctx_record();
    CUdeviceptr more;
    CUresult r;

    switch (which) {
    case 0:
        return CUDA_SUCCESS;
    case 2:
        return hold_poke(ctx, memory, first);
    case 4:
        return cuMemAlloc(&more, 4 << 20); /* and kept, as a free would wait */
    default:
        r = record ? record(ctx, ev) : CUDA_ERROR_NOT_FOUND;
        if (r == CUDA_SUCCESS && which == 3)
            cuEventQuery(ev);
        return r;
    }
}

static CUresult work_on(int what, holder_t how, CUcontext ctx, CUstream first, CUstream side,
                        CUevent behind)
{
    CUresult r = hold_stream(how, ctx, what == 0 ? first : side);

    if (what == 0 || r || (r = cuEventRecord(behind, side)) ||
        (r = cuStreamWaitEvent(first, behind, 0)))
        return r;
    return what == 1 ? cuLaunchHostFunc(first, nothing, NULL) : hold_poke(ctx, memory, first);
}

typedef struct question {
    const place_t *first, *second;
    CUstream side;
    holder_t how;
    int work, follower, between;
} question_t;

static void ask(const question_t *q, CUevent ev, CUevent behind)
{
    CUcontext ctx = q->first->ctx;
    CUresult r[3], held;

    hold_open();
    r[0] = work_on(q->work, q->how, ctx, q->first->stream, q->side, behind);
    hold_begun(q->how);
    hold_for_ms(1000);
    r[1] = come_between(q->between, ctx, q->first->stream, ev);
    r[2] = follow(q->follower, ctx, q->second->stream);
    sleep_ms(SETTLE_MS);
    held = cuStreamQuery(q->second->stream);
    hold_finish();
    cuCtxSynchronize();

    row_begin();
    row_str("work on", q->first->name);
    row_str("work", works[q->work]);
    row_str("held by", holder_names[q->how]);
    row_str("between", betweens[q->between]);
    row_str("then", followers[q->follower]);
    row_str("on", q->second->name);
    row_bool("waits", held == CUDA_ERROR_NOT_READY);
    if (r[0] || r[1] || r[2])
        row_drv("code", r[0] ? r[0] : r[1] ? r[1] : r[2]);
    row_end();
}

/* Every follower after everything between. */
static void ask_all(question_t q, CUevent ev, CUevent behind)
{
    for (q.work = 0; q.work < WORKS; q.work++)
        for (q.between = 0; q.between < BETWEENS; q.between++)
            for (q.follower = 0; q.follower < FOLLOWERS; q.follower++)
                ask(&q, ev, behind);
}

void fact_stream_order(const char *arg)
{
    place_t places[PLACES_MAX];
    question_t q = {0};
    CUevent ev, behind;
    enum { LEGACY, PER_THREAD, BLOCKING, NON_BLOCKING, MINE };

    (void)arg;
    if (places_make(places) < MINE)
        return;
    cuMemAlloc(&memory, 4096);
    cuMemAllocHost(&pinned, 4096);
    cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&behind, CU_EVENT_DISABLE_TIMING);
    cuStreamCreate(&q.side, CU_STREAM_NON_BLOCKING);
    hold_poke(places[0].ctx, memory, NULL); /* the module is loaded now, which waits for work */
    cuCtxSynchronize();
    for (int how = 0; how < HOLDERS; how++)
        for (int pair = 0; hold_usable((holder_t)how) && pair < MINE * MINE; pair++) {
            int a = pair / MINE, b = pair % MINE;
            if (a == b || (a != LEGACY && b != LEGACY) || (a == LEGACY && b == NON_BLOCKING))
                continue;
            q.how = (holder_t)how;
            q.first = &places[a];
            q.second = &places[b];
            ask_all(q, ev, behind);
        }
}
