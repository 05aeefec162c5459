/* Contexts: life, the stack of every thread, the primary contexts. A created context's struct is
 * recycled like a stream's, so its handle may come again with another id; a primary context keeps
 * its handle for ever and gets a new id with each activation (h200-580.json, handles). */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static CUcontext free_ctxs; /* under the engine lock */
static uint64_t next_id = 1;

static CUresult entry_state(const sim_entry_t *e)
{
    CUcontext c = e->ctx;
    /* cuda.h, CUDA_ERROR_CONTEXT_IS_DESTROYED: "has been destroyed using cuCtxDestroy, or is a
     * primary context which has not yet been initialized". */
    bool ok = atomic_load_explicit(&c->alive, memory_order_acquire) &&
              (c->primary || atomic_load_explicit(&c->id, memory_order_relaxed) == e->ctx_id);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult sim_ctx_current_any(CUcontext *out)
{
    sim_thread_t *t = sim_thread();
    if (t->depth == 0) {
        /* cuda.h, cuLaunchHostFunc: "must not make any CUDA API calls ... may result in
         * CUDA_ERROR_NOT_PERMITTED". */
        return t->worker ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_CONTEXT;
    }
    *out = t->stack[t->depth - 1].ctx;
    return entry_state(&t->stack[t->depth - 1]);
}

CUresult sim_ctx_current(CUcontext *out)
{
    SIM_TRY(sim_ctx_current_any(out));
    return (CUresult)atomic_load_explicit(&(*out)->sticky, memory_order_relaxed);
}

/* A free needs no current context: tests/gpu/results/h200-580.json, codes_context; that of an array
 * neither, as error parity said on an H100. */
CUresult sim_ctx_of_free(CUcontext *out)
{
    sim_thread_t *t = sim_thread();
    *out = NULL;
    return t->depth == 0 && !t->worker ? CUDA_SUCCESS : sim_ctx_current(out);
}

CUresult sim_ctx_sticky(CUcontext ctx)
{
    return ctx ? (CUresult)atomic_load_explicit(&ctx->sticky, memory_order_relaxed) : CUDA_SUCCESS;
}

/* cuda.h, CUDA_ERROR_INVALID_CONTEXT: "not a valid handle (such as a context that has had
 * cuCtxDestroy() invoked on it)". */
CUresult sim_ctx_check(CUcontext ctx)
{
    if (!ctx || !atomic_load_explicit(&ctx->alive, memory_order_acquire)) {
        return ctx && ctx->primary ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
    }
    return (CUresult)atomic_load_explicit(&ctx->sticky, memory_order_relaxed);
}

void sim_ctx_fail(CUcontext ctx, CUresult error)
{
    sim_lock();
    SIM_EACH_OF(c, sim_ctx_home(ctx))
    {
        int none = 0;
        atomic_compare_exchange_strong(&c->sticky, &none, (int)error);
    }
    sim_unlock();
}

CUcontext sim_ctx_struct_locked(void)
{
    CUcontext c = free_ctxs;
    if (c) {
        free_ctxs = c->next_free;
        c->home = NULL;
        c->green = NULL;
        return c;
    }
    c = calloc(1, sizeof(*c));
    if (c) {
        c->next_all = sim_ctx_all;
        sim_ctx_all = c;
    }
    return c;
}

/* The legacy stream outlives its context until here: a thread that found the context alive a moment
 * before it went may still be about to use it. */
bool sim_ctx_activate_locked(CUcontext c, sim_device_t *d, unsigned flags)
{
    if (c->legacy) {
        sim_stream_end_locked(c->legacy);
    }
    c->dev = d;
    atomic_store(&c->id, next_id++);
    atomic_store(&c->sticky, 0);
    atomic_store(&c->reported_dead, false);
    atomic_store(&c->flags, flags);
    atomic_store(&c->peers, 0);
    c->api_version = 3020;
    atomic_store(&c->attached, 0);
    c->barrier.n = 0;
    sim_race_context_made(c);
    atomic_store(&c->limits[CU_LIMIT_STACK_SIZE], 1024);
    atomic_store(&c->limits[CU_LIMIT_PRINTF_FIFO_SIZE], (size_t)1 << 20);
    atomic_store(&c->limits[CU_LIMIT_MALLOC_HEAP_SIZE], (size_t)8 << 20);
    c->legacy = sim_stream_make_locked(c, CU_STREAM_DEFAULT, 0);
    if (!c->legacy) {
        return false;
    }
    c->legacy->legacy = true;
    atomic_store(&c->alive, true);
    return true;
}

void sim_ctx_close_locked(CUcontext c)
{
    for (CUstream s = c->streams, next; s; s = next) {
        next = s->next;
        if (s->alive && s != c->legacy && c->home) {
            sim_stream_orphan_locked(s);
        } else if (s->alive && s != c->legacy) {
            sim_stream_end_locked(s);
        }
    }
    while (c->events) {
        sim_event_end_locked(c->events, true);
    }
}

/* Everything of the context goes; work under way is waited for first. */
void sim_ctx_tear_down(CUcontext c)
{
    atomic_store(&c->alive, false);
    sim_wait_context(c);
    sim_green_end_all(c);
    sim_lock();
    sim_ctx_close_locked(c);
    sim_unlock();
    sim_modules_drop_context(c);
    sim_heap_drop_context(c->dev, c);
    sim_host_drop_context(c);
}

void sim_ctx_recycle_locked(CUcontext c)
{
    c->next_free = free_ctxs;
    free_ctxs = c;
}

/* The device memory that a context takes for itself. */
static bool take_memory(CUcontext c)
{
    CUdeviceptr at;
    return !sim_opt.context_bytes ||
           sim_heap_alloc(c->dev, c, sim_opt.context_bytes, SIM_GLOBAL, NULL, &at) == CUDA_SUCCESS;
}

static CUresult push(sim_thread_t *t, CUcontext c)
{
    if (t->depth == SIM_STACK_MAX) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    t->stack[t->depth++] = (sim_entry_t){c, atomic_load(&c->id)};
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice dev)
{
    sim_device_t *d;
    if (!out || (flags & ~(unsigned)CU_CTX_FLAGS_MASK)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_device_get(dev, &d));
    sim_lock();
    CUcontext c = sim_ctx_struct_locked();
    bool ok = c && sim_ctx_activate_locked(c, d, flags);
    sim_unlock();
    if (ok && !take_memory(c)) {
        sim_ctx_tear_down(c);
        sim_lock();
        sim_ctx_recycle_locked(c);
        sim_unlock();
        ok = false;
    }
    if (!ok) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = c;
    return push(sim_thread(), c); /* "The context is created ... and is current" */
}

SIM_API CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v2);
    return create(pctx, flags, dev);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                                unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v3);
    return paramsArray || numParams ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
                                    : create(pctx, flags, dev);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                                unsigned int flags, CUdevice dev)
{
    SIM_ENTER(cuCtxCreate_v4);
    return ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams)
               ? CUDA_ERROR_NOT_SUPPORTED
               : create(pctx, flags, dev);
}

/* cuda.h, cuCtxDestroy: popped when current to the caller; other threads get
 * CONTEXT_IS_DESTROYED. A primary context is not destroyed this way. */
CUresult sim_ctx_destroy(CUcontext ctx)
{
    sim_thread_t *t = sim_thread();
    bool was = true;
    if (!ctx || ctx->primary || ctx->home ||
        !atomic_compare_exchange_strong(&ctx->alive, &was, false)) {
        return ctx ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    }
    if (t->depth && t->stack[t->depth - 1].ctx == ctx) {
        t->depth--;
    }
    sim_ctx_tear_down(ctx);
    sim_lock();
    sim_ctx_recycle_locked(ctx);
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxDestroy_v2);
    return sim_ctx_destroy(ctx);
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    SIM_ENTER(cuCtxPushCurrent_v2);
    if (!ctx || (!ctx->primary && !atomic_load(&ctx->alive))) {
        return ctx ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    }
    return push(sim_thread(), ctx);
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    SIM_ENTER(cuCtxPopCurrent_v2);
    sim_thread_t *t = sim_thread();
    if (t->depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    t->depth--;
    if (pctx) {
        *pctx = t->stack[t->depth].ctx;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SIM_ENTER(cuCtxSetCurrent);
    sim_thread_t *t = sim_thread();
    if (ctx && !ctx->primary && !atomic_load(&ctx->alive)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (t->depth) {
        t->depth--;
    }
    return ctx ? push(t, ctx) : CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    SIM_ENTER(cuCtxGetCurrent);
    sim_thread_t *t = sim_thread();
    if (!pctx) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pctx = t->depth ? t->stack[t->depth - 1].ctx : NULL;
    return CUDA_SUCCESS;
}

/* --- primary contexts --------------------------------------------------------------------------*/
void sim_primary_make(sim_device_t *d)
{
    sim_lock();
    d->primary = sim_ctx_struct_locked();
    d->primary->primary = true;
    d->primary->dev = d;
    sim_unlock();
}

CUresult sim_primary_retain(sim_device_t *d)
{
    pthread_mutex_lock(&d->primary_mu);
    if (d->lost) {
        pthread_mutex_unlock(&d->primary_mu);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    bool ok = atomic_load(&d->primary->alive);
    if (!ok) {
        sim_lock();
        ok = sim_ctx_activate_locked(d->primary, d, d->primary_flags);
        sim_unlock();
        if (ok && !take_memory(d->primary)) {
            sim_ctx_tear_down(d->primary);
            ok = false;
        }
    }
    d->primary_refs += ok;
    pthread_mutex_unlock(&d->primary_mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxRetain);
    SIM_TRY(sim_device_get(dev, &d));
    if (!pctx) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_primary_retain(d));
    *pctx = d->primary;
    return CUDA_SUCCESS;
}

/* "the primary context ... will be reset once the last reference to it is released" */
CUresult sim_primary_release(sim_device_t *d)
{
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&d->primary_mu);
    if (d->primary_refs == 0) {
        rc = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--d->primary_refs == 0 && atomic_load(&d->primary->alive)) {
        sim_ctx_tear_down(d->primary);
    }
    pthread_mutex_unlock(&d->primary_mu);
    return rc;
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxRelease_v2);
    SIM_TRY(sim_device_get(dev, &d));
    return sim_primary_release(d);
}

/* "Resetting the primary context does not release it". After a sticky error the process has had
 * the device: tests/gpu/results/h200-580.json, sticky/kernel. */
void sim_primary_reset(sim_device_t *d)
{
    pthread_mutex_lock(&d->primary_mu);
    if (atomic_load(&d->primary->alive)) {
        d->lost = sim_ctx_sticky(d->primary) != CUDA_SUCCESS && !sim_opt.reset_heals;
        sim_ctx_tear_down(d->primary);
    }
    pthread_mutex_unlock(&d->primary_mu);
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxReset_v2);
    SIM_TRY(sim_device_get(dev, &d));
    sim_primary_reset(d);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxGetState);
    SIM_TRY(sim_device_get(dev, &d));
    if (!flags || !active) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&d->primary_mu);
    *flags = d->primary_flags;
    *active = atomic_load(&d->primary->alive);
    pthread_mutex_unlock(&d->primary_mu);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
    sim_device_t *d;
    SIM_ENTER(cuDevicePrimaryCtxSetFlags_v2);
    SIM_TRY(sim_device_get(dev, &d));
    if (flags & ~(unsigned)CU_CTX_FLAGS_MASK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&d->primary_mu);
    d->primary_flags = flags;
    if (atomic_load(&d->primary->alive)) {
        atomic_store(&d->primary->flags, flags);
    }
    pthread_mutex_unlock(&d->primary_mu);
    return CUDA_SUCCESS;
}
