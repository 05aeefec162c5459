/* Green contexts, as the comments in cuda.h describe them: a part of the device's multiprocessors
 * (which mean nothing here), streams of their own, and the memory of the primary context. A green
 * context is a context whose `home` is the primary one; cuCtxFromGreenCtx returns its handle, with
 * an id of its own [hw]. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x47524e43, SMS = 132 };

struct CUgreenCtx_st { /* never freed, so that a destroyed one is recognised */
    unsigned magic;
    bool alive; /* cuGreenCtxDestroy has not been called */
    sim_device_t *dev;
    CUcontext ctx;
    uint64_t ctx_id;
    unsigned sms;
};

struct CUdevResourceDesc_st {
    int device;
    unsigned sms;
};

CUcontext sim_ctx_group_next(CUcontext of, CUcontext last)
{
    if (atomic_load_explicit(&of->greens, memory_order_relaxed) == 0) {
        return NULL;
    }
    CUcontext c = last == of ? sim_ctx_all : last->next_all;
    while (c && c->home != of) {
        c = c->next_all;
    }
    return c;
}

/* --- resources -------------------------------------------------------------------------------- */
/* cuda.h: "6.X: ... 2 SMs and must be a multiple of 2 ... 8.X: ... 4 ... 9.0+: ... 8 SMs and must
 * be a multiple of 8". */
static unsigned least_sms(void)
{
    return sim_opt.arch >= 90 ? 8 : sim_opt.arch >= 80 ? 4 : 2;
}

/* Which device it is of is kept in the padding. */
static void describe(CUdevResource *r, int device, unsigned sms)
{
    memset(r, 0, sizeof(*r));
    r->type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(r->_internal_padding, &device, sizeof(device));
    r->sm.smCount = sms;
    r->sm.minSmPartitionSize = least_sms();
    r->sm.smCoscheduledAlignment = sim_opt.arch >= 90 ? 8 : 2;
}

static int device_of(const CUdevResource *r)
{
    int device;
    memcpy(&device, r->_internal_padding, sizeof(device));
    return device;
}

static CUresult fill_resource(CUdevResource *r, CUdevResourceType type, int device, unsigned sms)
{
    if (!r) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    describe(r, device, sms);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource,
                                        CUdevResourceType type)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetDevResource);
    SIM_TRY(sim_device_get(device, &d));
    return fill_resource(resource, type, d->ordinal, SMS);
}

SIM_API CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource *resource,
                                     CUdevResourceType type)
{
    SIM_ENTER(cuCtxGetDevResource);
    SIM_TRY(sim_ctx_check(hCtx));
    return fill_resource(resource, type, hCtx->dev->ordinal, hCtx->green ? hCtx->green->sms : SMS);
}

SIM_API CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *nbGroups,
                                             const CUdevResource *input, CUdevResource *remaining,
                                             unsigned int useFlags, unsigned int minCount)
{
    SIM_ENTER(cuDevSmResourceSplitByCount);
    if (!nbGroups || !input || (useFlags & ~3u)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (input->type != CU_DEV_RESOURCE_TYPE_SM) {
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    }
    unsigned unit = input->sm.smCoscheduledAlignment, each = minCount, all = input->sm.smCount;
    if (minCount > all || !unit) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    each = each < input->sm.minSmPartitionSize ? input->sm.minSmPartitionSize : each;
    each = (each + unit - 1) / unit * unit;
    unsigned groups = all / each;
    if (result) {
        groups = *nbGroups < groups ? *nbGroups : groups;
        for (unsigned i = 0; i < groups; i++) {
            describe(&result[i], device_of(input), each);
        }
        if (remaining) {
            describe(remaining, device_of(input), all - groups * each);
        }
    }
    *nbGroups = groups;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *phDesc, CUdevResource *resources,
                                           unsigned int nbResources)
{
    SIM_ENTER(cuDevResourceGenerateDesc);
    if (!phDesc || !resources || nbResources == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned sms = 0;
    for (unsigned i = 0; i < nbResources; i++) {
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) {
            return CUDA_ERROR_INVALID_RESOURCE_TYPE;
        }
        if (device_of(&resources[i]) != device_of(&resources[0])) {
            return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        }
        sms += resources[i].sm.smCount;
    }
    CUdevResourceDesc desc = malloc(sizeof(*desc)); /* no call releases it */
    if (!desc) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    *desc = (struct CUdevResourceDesc_st){device_of(&resources[0]), sms};
    *phDesc = desc;
    return CUDA_SUCCESS;
}

/* --- life ------------------------------------------------------------------------------------- */
static CUresult check(CUgreenCtx g)
{
    if (!g || g->magic != MAGIC) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    bool there = g->alive && atomic_load(&g->ctx->alive) && atomic_load(&g->ctx->id) == g->ctx_id;
    return there ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* "This API will retain the primary context on device dev". */
SIM_API CUresult cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                                  unsigned int flags)
{
    sim_device_t *d;
    SIM_ENTER(cuGreenCtxCreate);
    SIM_TRY(sim_device_get(dev, &d));
    if (!phCtx || !desc || desc->device != dev || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgreenCtx g = calloc(1, sizeof(*g));
    if (!g || sim_primary_retain(d) != CUDA_SUCCESS) {
        free(g);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_lock();
    CUcontext c = sim_ctx_struct_locked();
    if (c) {
        c->home = d->primary;
        c->green = g;
        atomic_fetch_add(&d->primary->greens, 1);
    }
    bool ok = c && sim_ctx_activate_locked(c, d, atomic_load(&d->primary->flags));
    sim_unlock();
    if (!ok) {
        abort(); /* no host memory */
    }
    *g = (struct CUgreenCtx_st){MAGIC, true, d, c, atomic_load(&c->id), desc->sms};
    *phCtx = g;
    return CUDA_SUCCESS;
}

/* Its work is over, and no call has to wait for it any more. */
void sim_green_over_locked(CUcontext c)
{
    sim_host_drop_context(c);
    atomic_fetch_sub(&c->home->greens, 1);
    c->home = NULL;
    c->leaving = false;
    sim_ctx_recycle_locked(c);
}

/* Nothing waits for its work, which goes on: until it is over the context counts among those of its
 * primary, so that a record of that and a plain free cover it (tests/gpu/results/h100-580.json,
 * record_gone). */
static void end(CUcontext c)
{
    sim_modules_drop_context(c);
    sim_lock();
    sim_ctx_close_locked(c);
    sim_race_green_ended(c);
    c->leaving = true;
    if (atomic_load(&c->pending) == 0) {
        sim_green_over_locked(c);
    }
    sim_unlock();
}

static bool take(CUcontext c)
{
    bool was = true;
    return atomic_compare_exchange_strong(&c->alive, &was, false);
}

/* A reset of the primary context ends them [hw]: their handles still have to be destroyed. */
void sim_green_end_all(CUcontext primary)
{
    for (;;) {
        sim_lock();
        CUcontext c = sim_ctx_group_next(primary, primary);
        while (c && !take(c)) {
            c = sim_ctx_group_next(primary, c);
        }
        sim_unlock();
        if (!c) {
            return;
        }
        sim_wait_context(c);
        end(c);
    }
}

/* "Destroys the green context, releasing the primary context of the device". */
SIM_API CUresult cuGreenCtxDestroy(CUgreenCtx hCtx)
{
    SIM_ENTER(cuGreenCtxDestroy);
    CUresult rc = check(hCtx);
    if (rc == CUDA_ERROR_INVALID_CONTEXT || !hCtx->alive) {
        return rc;
    }
    hCtx->alive = false;
    if (rc == CUDA_SUCCESS && take(hCtx->ctx)) {
        end(hCtx->ctx);
    }
    sim_primary_release(hCtx->dev);
    return rc;
}

SIM_API CUresult cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)
{
    SIM_ENTER(cuCtxFromGreenCtx);
    SIM_TRY(check(hCtx));
    if (!pContext) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pContext = hCtx->ctx;
    return CUDA_SUCCESS;
}

/* --- what is asked of one --------------------------------------------------------------------- */
SIM_API CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource *resource,
                                          CUdevResourceType type)
{
    SIM_ENTER(cuGreenCtxGetDevResource);
    SIM_TRY(check(hCtx));
    return fill_resource(resource, type, hCtx->dev->ordinal, hCtx->sms);
}

SIM_API CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long *greenCtxId)
{
    SIM_ENTER(cuGreenCtxGetId);
    SIM_TRY(check(greenCtx));
    if (!greenCtxId) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *greenCtxId = greenCtx->ctx_id;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    SIM_ENTER(cuGreenCtxRecordEvent);
    SIM_TRY(check(hCtx));
    return sim_ctx_record(hCtx->ctx, hEvent);
}

SIM_API CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    SIM_ENTER(cuGreenCtxWaitEvent);
    SIM_TRY(check(hCtx));
    return sim_ctx_wait(hCtx->ctx, hEvent);
}

/* "CU_STREAM_NON_BLOCKING: This must be specified." */
SIM_API CUresult cuGreenCtxStreamCreate(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags,
                                        int priority)
{
    SIM_ENTER(cuGreenCtxStreamCreate);
    SIM_TRY(check(greenCtx));
    SIM_TRY(sim_ctx_check(greenCtx->ctx));
    if (!phStream || flags != CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    CUstream s = sim_stream_make_locked(greenCtx->ctx, flags, priority < 0 ? priority : 0);
    CUstream handle = s ? sim_stream_name_locked(s) : NULL;
    sim_unlock();
    if (!s) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *phStream = handle;
    return CUDA_SUCCESS;
}
