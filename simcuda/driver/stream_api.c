/* Queries, waits and host functions on streams. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static CUresult query(CUstream h, bool pt)
{
    CUstream s;
    sim_points_t v = {0};
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    SIM_TRY(sim_capture_unsafe());
    sim_lock();
    CUresult rc = s->capture ? sim_capture_block_stream_locked(s) : CUDA_SUCCESS;
    if (rc == CUDA_SUCCESS) {
        sim_points_of_stream(s, &v);
        rc = v.n ? CUDA_ERROR_NOT_READY
                 : (CUresult)atomic_load_explicit(&s->ctx->sticky, memory_order_relaxed);
        sim_clock_t past = {0};
        if (rc == CUDA_SUCCESS) { /* cuStreamQuery: "all operations in the stream have completed" */
            sim_race_of_stream(s, &past);
            sim_race_learn(&past);
            sim_clock_free(&past);
        }
    }
    sim_unlock();
    sim_points_free(&v);
    return rc;
}

static CUresult synchronize(CUstream h, bool pt)
{
    CUstream s;
    sim_points_t v = {0};
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    SIM_TRY(sim_capture_unsafe());
    sim_lock();
    CUcontext ctx = s->ctx;
    CUresult rc = s->capture ? sim_capture_block_stream_locked(s) : CUDA_SUCCESS;
    if (rc == CUDA_SUCCESS) {
        sim_clock_t past = {0};
        sim_points_of_stream(s, &v);
        sim_race_of_stream(s, &past);
        sim_wait_points_locked(&v);
        sim_race_learn(&past);
        sim_clock_free(&past);
        rc = (CUresult)atomic_load_explicit(&ctx->sticky, memory_order_relaxed);
    }
    sim_unlock();
    sim_points_free(&v);
    return rc;
}

SIM_BOTH(cuStreamQuery, cuStreamQuery_ptsz, (CUstream hStream), query(hStream, pt))
SIM_BOTH(cuStreamSynchronize, cuStreamSynchronize_ptsz, (CUstream hStream),
         synchronize(hStream, pt))

static CUresult host_func(CUstream h, bool pt, CUhostFn fn, void *data)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!fn) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_op_t op = {.kind = SIM_OP_HOST, .u.host = {.fn = fn, .data = data}};
    return sim_submit(s, &op, false);
}

static CUresult callback(CUstream h, bool pt, CUstreamCallback cb, void *data, unsigned flags)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!cb || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_op_t op = {.kind = SIM_OP_CALLBACK, .u.host = {.cb = cb, .data = data}};
    return sim_submit(s, &op, false);
}

SIM_BOTH(cuLaunchHostFunc, cuLaunchHostFunc_ptsz, (CUstream hStream, CUhostFn fn, void *userData),
         host_func(hStream, pt, fn, userData))
SIM_BOTH(cuStreamAddCallback, cuStreamAddCallback_ptsz,
         (CUstream hStream, CUstreamCallback cb, void *userData, unsigned int flags),
         callback(hStream, pt, cb, userData, flags))

/* Only where the mapping of managed memory would change; there is nothing to do. */
static CUresult attach(CUstream h, bool pt)
{
    CUstream s;
    return sim_stream_resolve(h, pt, &s);
}

SIM_BOTH(cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz,
         (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
         ((void)dptr, (void)length, (void)flags, attach(hStream, pt)))

enum what { FLAGS, PRIORITY, ID, DEVICE, CONTEXT };

static CUresult get(CUstream h, bool pt, enum what what, void *out)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    switch (what) {
    case FLAGS:
        *(unsigned *)out = s->flags;
        break;
    case PRIORITY:
        *(int *)out = s->priority;
        break;
    case ID:
        *(unsigned long long *)out = s->id;
        break;
    case DEVICE:
        *(CUdevice *)out = s->ctx->dev->ordinal;
        break;
    case CONTEXT:
        *(CUcontext *)out = s->ctx;
        break;
    }
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamGetFlags, cuStreamGetFlags_ptsz, (CUstream hStream, unsigned int *flags),
         get(hStream, pt, FLAGS, flags))
SIM_BOTH(cuStreamGetPriority, cuStreamGetPriority_ptsz, (CUstream hStream, int *priority),
         get(hStream, pt, PRIORITY, priority))
SIM_BOTH(cuStreamGetId, cuStreamGetId_ptsz, (CUstream hStream, unsigned long long *streamId),
         get(hStream, pt, ID, streamId))
SIM_BOTH(cuStreamGetDevice, cuStreamGetDevice_ptsz, (CUstream hStream, CUdevice *device),
         get(hStream, pt, DEVICE, device))
SIM_BOTH(cuStreamGetCtx, cuStreamGetCtx_ptsz, (CUstream hStream, CUcontext *pctx),
         get(hStream, pt, CONTEXT, pctx))

static CUresult get_green(CUstream h, CUgreenCtx *green)
{
    CUcontext of;
    SIM_TRY(get(h, false, CONTEXT, &of));
    if (!green) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *green = of->green;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx *phCtx)
{
    SIM_ENTER(cuStreamGetGreenCtx);
    return get_green(hStream, phCtx);
}

static CUresult get_ctx_v2(CUstream h, bool pt, CUcontext *ctx, CUgreenCtx *green)
{
    SIM_TRY(get(h, pt, CONTEXT, ctx));
    if (green) {
        *green = (*ctx)->green;
    }
    *ctx = sim_ctx_home(*ctx);
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz,
         (CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx),
         get_ctx_v2(hStream, pt, pCtx, pGreenCtx))

/* Attributes are kept, and change nothing: cuda.h, CUstreamAttrID, those "valid for streams". */
static bool is_attribute(CUstreamAttrID id)
{
    return id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW ||
           id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY || id == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
           id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
           id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

static CUresult attribute(CUstream h, bool pt, CUstreamAttrID id, CUstreamAttrValue *out,
                          const CUstreamAttrValue *in)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (!is_attribute(id) || (!out && !in)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    CUstreamAttrValue *kept = &s->attributes[id];
    if (in) {
        *kept = *in;
        s->priority = id == CU_LAUNCH_ATTRIBUTE_PRIORITY ? in->priority : s->priority;
    } else {
        *out = *kept;
        out->priority = id == CU_LAUNCH_ATTRIBUTE_PRIORITY ? s->priority : out->priority;
    }
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamGetAttribute, cuStreamGetAttribute_ptsz,
         (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue *value_out),
         attribute(hStream, pt, attr, value_out, NULL))
SIM_BOTH(cuStreamSetAttribute, cuStreamSetAttribute_ptsz,
         (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue *value),
         attribute(hStream, pt, attr, NULL, value))

/* "Both streams must have the same context." */
static CUresult copy_attributes(CUstream to, CUstream from, bool pt)
{
    CUstream dst, src;
    SIM_TRY(sim_stream_resolve(to, pt, &dst));
    SIM_TRY(sim_stream_resolve(from, pt, &src));
    if (dst->ctx != src->ctx) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    memmove(dst->attributes, src->attributes, sizeof(dst->attributes));
    sim_unlock();
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz, (CUstream dst, CUstream src),
         copy_attributes(dst, src, pt))
