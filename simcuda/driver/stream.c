/* Streams: handles, the two default streams, and their life. Handle addresses are recycled, last
 * out first in, and never freed: so a point into a stream stays valid when the handle has become
 * another stream. Sequence numbers go on, ids are never used twice. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x5354524d, LEAST = 0, GREATEST = -5 };

static CUstream free_streams;
static uint64_t next_id = 1;

/* SIMCUDA=busy_handles: the handle of a stream that was destroyed while it had work is the next one
 * that a new stream gets, while the old stream goes on under it: then the handle's struct and the
 * struct of the stream that has it are two. Last out, first in. */
static CUstream *busy_handles;
static size_t busy_n, busy_cap;

static void keep_busy_handle(CUstream handle)
{
    if (busy_n == busy_cap) {
        busy_cap = busy_cap ? busy_cap * 2 : 16;
        busy_handles = realloc(busy_handles, busy_cap * sizeof(CUstream));
        if (!busy_handles) {
            fprintf(stderr, "simcuda: no memory for handles\n");
            abort();
        }
    }
    handle->held = true;
    busy_handles[busy_n++] = handle;
}

static void park(CUstream s)
{
    s->parked = s->held;
    if (!s->held) {
        s->next_free = free_streams;
        free_streams = s;
    }
}

/* Recycles the handle of a stream that ends: at once, with its struct, or when that has no more
 * work. */
static void give_handle_back(CUstream s, bool busy)
{
    CUstream handle = s->as;
    handle->lent_to = NULL;
    if (busy && s->named && sim_opt.busy_handles) {
        keep_busy_handle(handle);
    } else if (handle != s) {
        handle->held = false;
        if (handle->parked) {
            park(handle);
        }
    }
}

CUstream sim_stream_name_locked(CUstream s)
{
    s->named = true;
    if (busy_n) {
        s->as = busy_handles[--busy_n];
        s->as->lent_to = s;
    }
    return s->as;
}

CUstream sim_stream_make_locked(CUcontext ctx, unsigned flags, int priority)
{
    CUstream s = free_streams;
    if (s) {
        free_streams = s->next_free;
    } else {
        s = calloc(1, sizeof(*s));
        if (!s) {
            return NULL;
        }
        pthread_cond_init(&s->work, NULL);
        pthread_cond_init(&s->done, NULL);
    }
    s->magic = MAGIC;
    s->as = s;
    s->lent_to = NULL;
    s->named = s->parked = false;
    s->alive = true;
    s->orphan = false;
    s->legacy = false;
    s->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    s->ctx = ctx;
    s->ctx_id = atomic_load(&ctx->id);
    s->id = next_id++;
    s->flags = flags;
    s->priority = priority;
    memset(s->attributes, 0, sizeof(s->attributes));
    s->capture = NULL;
    s->prev = NULL;
    s->next = ctx->streams;
    if (s->next) {
        s->next->prev = s;
    }
    ctx->streams = s;
    sim_race_stream_made(s);
    sim_points_prune(&ctx->barrier);
    if (ctx->barrier.n) {
        sim_op_t op = {.kind = SIM_OP_WAIT, .after = ctx->barrier};
        sim_enqueue_locked(s, &op);
    }
    return s;
}

static void unlink_locked(CUstream s)
{
    if (s->next) {
        s->next->prev = s->prev;
    }
    if (s->prev) {
        s->prev->next = s->next;
    } else {
        s->ctx->streams = s->next;
    }
}

void sim_stream_recycle_locked(CUstream s)
{
    unlink_locked(s);
    if (!s->orphan) {
        park(s);
    }
}

/* cuda.h, cuStreamDestroy: "In case the device is still doing work in the stream ... the function
 * will return immediately and the resources ... will be released automatically once the device has
 * completed all work". Until then the stream stays in its context's list. */
void sim_stream_end_locked(CUstream s)
{
    sim_capture_stream_destroyed_locked(s);
    s->alive = false;
    sim_race_stream_ended(s);
    bool busy = atomic_load(&s->completed) != s->submitted;
    give_handle_back(s, busy);
    if (!busy) {
        sim_stream_recycle_locked(s);
    }
}

/* cuda.h, cuGreenCtxDestroy: "does not destroy streams ... Once the green context is destroyed, any
 * subsequent API calls involving these streams (including cuStreamDestroy) will return
 * CUDA_ERROR_CONTEXT_IS_DESTROYED ... memory leak": so the handle never comes again. */
void sim_stream_orphan_locked(CUstream s)
{
    sim_capture_stream_destroyed_locked(s);
    s->orphan = true;
    s->alive = false;
    sim_race_stream_ended(s);
    if (atomic_load(&s->completed) == s->submitted) {
        sim_stream_recycle_locked(s);
    }
}

static CUstream per_thread_stream(CUcontext ctx)
{
    sim_thread_t *t = sim_thread();
    uint64_t id = atomic_load_explicit(&ctx->id, memory_order_relaxed);
    for (sim_pt_stream_t *p = t->pt_streams; p; p = p->next) {
        if (p->ctx == ctx && p->ctx_id == id) {
            return p->stream;
        }
    }
    sim_pt_stream_t *p = malloc(sizeof(*p));
    sim_lock();
    CUstream s = p ? sim_stream_make_locked(ctx, CU_STREAM_DEFAULT, LEAST) : NULL;
    if (s) {
        *p = (sim_pt_stream_t){ctx, id, s, t->pt_streams};
        t->pt_streams = p;
    }
    sim_unlock();
    if (!s) {
        free(p);
    }
    return s;
}

void sim_thread_drop_streams(sim_thread_t *t)
{
    sim_lock();
    while (t->pt_streams) {
        sim_pt_stream_t *p = t->pt_streams;
        t->pt_streams = p->next;
        if (p->stream->alive && p->stream->ctx == p->ctx && p->stream->ctx_id == p->ctx_id) {
            sim_stream_end_locked(p->stream);
        }
        free(p);
    }
    sim_unlock();
}

/* cuda.h: CU_STREAM_LEGACY 0x1, CU_STREAM_PER_THREAD 0x2; NULL is one or the other. Green contexts
 * have no per-thread streams: tests/gpu/results/h100-580.json, green; of NULL not asked. */
CUresult sim_stream_resolve(CUstream h, bool pt, CUstream *out)
{
    CUcontext ctx;
    if (h == NULL || h == CU_STREAM_LEGACY || h == CU_STREAM_PER_THREAD) {
        SIM_TRY(sim_ctx_current(&ctx));
        bool own = h == CU_STREAM_PER_THREAD || (h == NULL && pt);
        if (own && ctx->home) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        *out = own ? per_thread_stream(ctx) : ctx->legacy;
        return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    bool ok = h->magic == MAGIC;
    h = ok && h->lent_to ? h->lent_to : h;
    bool destroyed = ok && !h->alive;
    bool orphan = ok && h->orphan;
    CUcontext of = h->ctx;
    sim_unlock();
    if (orphan) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (!ok) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (destroyed) {
        sim_dangling("a stream");
    }
    *out = h;
    return (CUresult)atomic_load_explicit(&of->sticky, memory_order_relaxed);
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    if (!out || (flags & ~CU_STREAM_NON_BLOCKING)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* cuda.h: out of range priorities are clamped. */
    priority = priority < GREATEST ? GREATEST : priority > LEAST ? LEAST : priority;
    sim_lock();
    CUstream s = sim_stream_make_locked(ctx, flags, priority);
    CUstream handle = s ? sim_stream_name_locked(s) : NULL;
    sim_unlock();
    if (!s) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = handle;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    SIM_ENTER(cuStreamCreate);
    return create(phStream, Flags, LEAST);
}

SIM_API CUresult cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority)
{
    SIM_ENTER(cuStreamCreateWithPriority);
    return create(phStream, flags, priority);
}

SIM_API CUresult cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    CUcontext ctx;
    SIM_ENTER(cuCtxGetStreamPriorityRange);
    SIM_TRY(sim_ctx_current(&ctx));
    if (leastPriority) {
        *leastPriority = LEAST;
    }
    if (greatestPriority) {
        *greatestPriority = GREATEST;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamDestroy_v2(CUstream hStream)
{
    CUstream s;
    SIM_ENTER(cuStreamDestroy_v2);
    if (!hStream || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult rc = sim_stream_resolve(hStream, false, &s);
    if (rc == CUDA_ERROR_INVALID_HANDLE || rc == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        return rc;
    }
    sim_lock();
    sim_stream_end_locked(s);
    sim_unlock();
    return rc;
}
