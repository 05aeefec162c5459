/* Copies. Host synchronisation follows NVIDIA's "API synchronization behavior" page: a copy from
 * pageable memory returns when the source may be reused (here: it is staged), one to pageable
 * memory when it is complete; device to device never waits; the Async forms of pinned and device
 * memory never wait. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

typedef struct span {
    uint64_t at;
    size_t pitch, slice; /* bytes between rows, between slices */
    bool device;         /* must be memory that the driver knows */
    bool pageable;       /* host memory that it does not know */
    bool sync;           /* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is set */
    sim_device_t *by;    /* the accessing device; NULL: the stream's */
} span_t;

static span_t span_of(uint64_t at, size_t pitch, size_t slice, bool device)
{
    span_t s = {.at = at, .pitch = pitch, .slice = slice, .device = device};
    sim_device_t *d = sim_device_of(at);
    sim_alloc_t a;
    sim_host_t h;
    if (d) {
        s.sync = sim_heap_find(d, at, &a) && a.sync_memops;
        s.device = true;
    } else if (sim_vmm_reserved(at)) {
        s.device = true;
    } else if (sim_host_find((void *)(uintptr_t)at, &h)) {
        s.sync = h.sync_memops;
    } else {
        s.pageable = true;
    }
    return s;
}

static bool on_device(const span_t *s)
{
    return s->device && !s->pageable && sim_is_device(s->at);
}

/* A plain copy from or to device memory that is not allocated is refused at once, and breaks
 * nothing: tests/gpu/results/h200-580.json, sticky/copy, from freed memory. The Async forms were
 * not asked; they find out when the stream gets there, as a kernel does. */
static bool nowhere(const span_t *s)
{
    sim_device_t *d = sim_device_of(s->at);
    sim_alloc_t a;
    sim_vmm_t m;
    return d ? !sim_heap_find(d, s->at, &a) : sim_vmm_reserved(s->at) && !sim_vmm_find(s->at, &m);
}

static CUresult stage(sim_op_t *op)
{
    size_t width = op->u.copy.width, rows = op->u.copy.rows, depth = op->u.copy.depth;
    char *buffer = malloc(width * rows * depth), *to = buffer;
    if (!buffer) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t z = 0; z < depth; z++) {
        const char *from = (char *)(uintptr_t)op->u.copy.src + z * op->u.copy.src_slice;
        for (size_t y = 0; y < rows; y++, to += width) {
            memcpy(to, from + y * op->u.copy.src_pitch, width);
        }
    }
    op->u.copy.staged = buffer;
    op->u.copy.src = (uintptr_t)buffer;
    op->u.copy.src_pitch = width;
    op->u.copy.src_slice = width * rows;
    return CUDA_SUCCESS;
}

static sim_op_t make(span_t dst, span_t src, size_t width, size_t rows, size_t depth)
{
    sim_op_t op = {.kind = SIM_OP_COPY};
    op.u.copy.dst = dst.at;
    op.u.copy.src = src.at;
    op.u.copy.dst_pitch = dst.pitch;
    op.u.copy.src_pitch = src.pitch;
    op.u.copy.width = width;
    op.u.copy.rows = rows;
    op.u.copy.depth = depth;
    op.u.copy.dst_slice = dst.slice;
    op.u.copy.src_slice = src.slice;
    op.u.copy.dst_by = dst.by;
    op.u.copy.src_by = src.by;
    op.u.copy.dst_device = dst.device;
    op.u.copy.src_device = src.device;
    return op;
}

static CUresult copy(CUstream h, bool pt, bool async, span_t dst, span_t src, size_t width,
                     size_t rows, size_t depth)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (width == 0 || rows == 0 || depth == 0) {
        return CUDA_SUCCESS;
    }
    if ((!dst.device && !dst.at) || (!src.device && !src.at)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!async && (nowhere(&dst) || nowhere(&src))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_op_t op = make(dst, src, width, rows, depth);
    bool both = on_device(&dst) && on_device(&src);
    /* A node reads and writes pageable memory when it runs [hw]. */
    bool node = async && sim_capture_has(s);
    bool sync = async ? dst.pageable && !dst.device && !node : !both || dst.sync || src.sync;
    if (!sync && src.pageable && !src.device && !node) {
        SIM_TRY(stage(&op));
    }
    if (!async && sync) {
        CUresult rc = sim_capture_unsafe();
        if (rc != CUDA_SUCCESS) {
            return rc;
        }
    }
    /* "API synchronization behavior": from pageable to device memory "a stream sync is performed
     * before the copy ... the DMA to final destination may not have completed"; the Async form
     * between device and pageable memory "might be synchronous". */
    if (sim_opt.race_strict && sync && !(async ? on_device(&src) : src.sync || dst.sync)) {
        bool from_pageable = src.pageable && on_device(&dst);
        op.learn = from_pageable ? SIM_LEARN_BEFORE : SIM_LEARN_ALL;
    } else if (sim_opt.race_strict && async) {
        op.learn = SIM_LEARN_NOTHING;
    }
    return sim_submit(s, &op, sync);
}

#define HOST(p) span_of((uintptr_t)(p), 0, 0, false)
#define DEVICE(p) span_of((p), 0, 0, true)
#define ANY(p) span_of((p), 0, 0, false)

SIM_BOTH(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount),
         copy(NULL, pt, false, ANY(dst), ANY(src), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds,
         (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount),
         copy(NULL, pt, false, DEVICE(dstDevice), HOST(srcHost), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds,
         (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
         copy(NULL, pt, false, HOST(dstHost), DEVICE(srcDevice), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds,
         (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount),
         copy(NULL, pt, false, DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyAsync, cuMemcpyAsync_ptsz,
         (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
         copy(hStream, pt, true, ANY(dst), ANY(src), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz,
         (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
         copy(hStream, pt, true, DEVICE(dstDevice), HOST(srcHost), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz,
         (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
         copy(hStream, pt, true, HOST(dstHost), DEVICE(srcDevice), ByteCount, 1, 1))
SIM_BOTH(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz,
         (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
         copy(hStream, pt, true, DEVICE(dstDevice), DEVICE(srcDevice), ByteCount, 1, 1))

/* The contexts say where the memory is; unified addressing knows that already. Each end is accessed
 * by its own device, so that no peer access is needed, to mapped memory neither [hw]. */
static CUresult peer(CUstream h, bool pt, bool async, span_t dst, CUcontext dctx, span_t src,
                     CUcontext sctx, size_t width, size_t rows, size_t depth)
{
    SIM_TRY(sim_ctx_check(dctx));
    SIM_TRY(sim_ctx_check(sctx));
    dst.by = dctx->dev;
    src.by = sctx->dev;
    if (async) {
        return copy(h, pt, true, dst, src, width, rows, depth);
    }
    /* [api] cuMemcpyPeer: "asynchronous with respect to the host, but serialized with respect all
     * pending and future async work in to the current context, srcContext, and dstContext". */
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    CUcontext all[] = {s->ctx, dctx, sctx};
    for (int i = 0; i < 3; i++) {
        sim_wait_for_context(s, all[i]);
    }
    CUresult rc = copy(h, pt, false, dst, src, width, rows, depth);
    for (int i = 0; i < 3; i++) {
        sim_context_waits_for(all[i], s);
    }
    return rc;
}

SIM_BOTH(cuMemcpyPeer, cuMemcpyPeer_ptds,
         (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
          size_t ByteCount),
         peer(NULL, pt, false, DEVICE(dstDevice), dstContext, DEVICE(srcDevice), srcContext,
              ByteCount, 1, 1))
SIM_BOTH(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
         (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
          size_t ByteCount, CUstream hStream),
         peer(hStream, pt, true, DEVICE(dstDevice), dstContext, DEVICE(srcDevice), srcContext,
              ByteCount, 1, 1))

/* --- two and three dimensions ----------------------------------------------------------------*/
typedef struct side {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch, height, x, y, z;
} side_t;

/* cuda.h, cuMemcpy2D and cuMemcpy3D: "pitch must be greater than or equal to WidthInBytes +
 * XInBytes"; a slice is pitch times height. A pitch of 0 means tightly packed here. */
static CUresult side_span(side_t s, size_t width, size_t rows, size_t depth, span_t *out)
{
    size_t pitch = s.pitch ? s.pitch : width + s.x, height = s.height ? s.height : rows + s.y;
    uint64_t base = s.type == CU_MEMORYTYPE_HOST ? (uintptr_t)s.host : s.device;
    sim_array_t a;
    switch (s.type) {
    case CU_MEMORYTYPE_ARRAY:
        SIM_TRY(sim_array_find(s.array, &a));
        if (s.x > a.width || width > a.width - s.x || s.y > a.height || rows > a.height - s.y ||
            s.z > a.depth || depth > a.depth - s.z) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        pitch = a.width;
        height = a.height;
        base = a.at;
        break;
    case CU_MEMORYTYPE_HOST:
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED:
        if (pitch < width + s.x || height < rows + s.y) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = span_of(base + (s.z * height + s.y) * pitch + s.x, pitch, pitch * height,
                   s.type == CU_MEMORYTYPE_DEVICE || s.type == CU_MEMORYTYPE_ARRAY);
    return CUDA_SUCCESS;
}

static CUresult copy_nd(CUstream h, bool pt, bool async, side_t dst, side_t src, size_t width,
                        size_t rows, size_t depth)
{
    span_t to, from;
    SIM_TRY(side_span(src, width, rows, depth, &from));
    SIM_TRY(side_span(dst, width, rows, depth, &to));
    return copy(h, pt, async, to, from, width, rows, depth);
}

static CUresult copy_2d(CUstream h, bool pt, bool async, const CUDA_MEMCPY2D *c)
{
    if (!c) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side_t src = {.type = c->srcMemoryType,
                  .host = c->srcHost,
                  .device = c->srcDevice,
                  .array = c->srcArray,
                  .pitch = c->srcPitch,
                  .x = c->srcXInBytes,
                  .y = c->srcY};
    side_t dst = {.type = c->dstMemoryType,
                  .host = c->dstHost,
                  .device = c->dstDevice,
                  .array = c->dstArray,
                  .pitch = c->dstPitch,
                  .x = c->dstXInBytes,
                  .y = c->dstY};
    return copy_nd(h, pt, async, dst, src, c->WidthInBytes, c->Height, 1);
}

/* CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER have these members in common. */
#define SIDE(c, end)                                                                               \
    (side_t)                                                                                       \
    {                                                                                              \
        c->end##MemoryType, c->end##Host, c->end##Device, c->end##Array, c->end##Pitch,            \
            c->end##Height, c->end##XInBytes, c->end##Y, c->end##Z                                 \
    }

static CUresult copy_3d(CUstream h, bool pt, bool async, const CUDA_MEMCPY3D *c)
{
    return c ? copy_nd(h, pt, async, SIDE(c, dst), SIDE(c, src), c->WidthInBytes, c->Height,
                       c->Depth)
             : CUDA_ERROR_INVALID_VALUE;
}

static CUresult peer_3d(CUstream h, bool pt, bool async, const CUDA_MEMCPY3D_PEER *c)
{
    span_t to, from;
    if (!c) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(side_span(SIDE(c, src), c->WidthInBytes, c->Height, c->Depth, &from));
    SIM_TRY(side_span(SIDE(c, dst), c->WidthInBytes, c->Height, c->Depth, &to));
    return peer(h, pt, async, to, c->dstContext, from, c->srcContext, c->WidthInBytes, c->Height,
                c->Depth);
}

CUresult sim_copy_op(const CUDA_MEMCPY3D *c, sim_op_t *op)
{
    span_t to, from;
    if (!c || !c->WidthInBytes || !c->Height || !c->Depth) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(side_span(SIDE(c, src), c->WidthInBytes, c->Height, c->Depth, &from));
    SIM_TRY(side_span(SIDE(c, dst), c->WidthInBytes, c->Height, c->Depth, &to));
    *op = make(to, from, c->WidthInBytes, c->Height, c->Depth);
    return CUDA_SUCCESS;
}

SIM_BOTH(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *pCopy),
         copy_2d(NULL, pt, false, pCopy))
SIM_BOTH(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *pCopy),
         copy_2d(NULL, pt, false, pCopy))
SIM_BOTH(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz,
         (const CUDA_MEMCPY2D *pCopy, CUstream hStream), copy_2d(hStream, pt, true, pCopy))
SIM_BOTH(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *pCopy),
         copy_3d(NULL, pt, false, pCopy))
SIM_BOTH(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz,
         (const CUDA_MEMCPY3D *pCopy, CUstream hStream), copy_3d(hStream, pt, true, pCopy))
SIM_BOTH(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER *pCopy),
         peer_3d(NULL, pt, false, pCopy))
SIM_BOTH(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz,
         (const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream), peer_3d(hStream, pt, true, pCopy))

/* --- arrays of one dimension -------------------------------------------------------------------*/
static CUresult copy_1d(CUstream h, bool pt, bool async, side_t dst, side_t src, size_t bytes)
{
    return copy_nd(h, pt, async, dst, src, bytes, 1, 1);
}

#define IN_ARRAY(a, offset) ((side_t){.type = CU_MEMORYTYPE_ARRAY, .array = (a), .x = (offset)})
#define IN_DEVICE(p) ((side_t){.type = CU_MEMORYTYPE_DEVICE, .device = (p)})
#define IN_HOST(p) ((side_t){.type = CU_MEMORYTYPE_HOST, .host = (p)})

SIM_BOTH(cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds,
         (CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount),
         copy_1d(NULL, pt, false, IN_ARRAY(dstArray, dstOffset), IN_DEVICE(srcDevice), ByteCount))
SIM_BOTH(cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds,
         (CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount),
         copy_1d(NULL, pt, false, IN_DEVICE(dstDevice), IN_ARRAY(srcArray, srcOffset), ByteCount))
SIM_BOTH(cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds,
         (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount),
         copy_1d(NULL, pt, false, IN_ARRAY(dstArray, dstOffset), IN_HOST(srcHost), ByteCount))
SIM_BOTH(cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds,
         (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount),
         copy_1d(NULL, pt, false, IN_HOST(dstHost), IN_ARRAY(srcArray, srcOffset), ByteCount))
SIM_BOTH(cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds,
         (CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset, size_t ByteCount),
         copy_1d(NULL, pt, false, IN_ARRAY(dstArray, dstOffset), IN_ARRAY(srcArray, srcOffset),
                 ByteCount))
SIM_BOTH(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz,
         (CUarray dstArray, size_t dstOffset, const void *srcHost, size_t ByteCount,
          CUstream hStream),
         copy_1d(hStream, pt, true, IN_ARRAY(dstArray, dstOffset), IN_HOST(srcHost), ByteCount))
SIM_BOTH(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz,
         (void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount, CUstream hStream),
         copy_1d(hStream, pt, true, IN_HOST(dstHost), IN_ARRAY(srcArray, srcOffset), ByteCount))

/* --- many at once -------------------------------------------------------------------------------
 * "The batch as a whole executes in stream order but copies within a batch are not guaranteed to
 * execute in any specific order": here in theirs. Sources in pageable memory are read at once. */
static bool access_order(CUmemcpySrcAccessOrder o)
{
    return o == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
           o == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL || o == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

static CUresult batch(CUstream h, bool pt, CUdeviceptr *dst, CUdeviceptr *src, size_t *bytes,
                      size_t n, CUmemcpyAttributes *attrs, size_t *at, size_t attrs_n,
                      size_t *failed)
{
    bool ok = dst && src && bytes && n && attrs && sim_batch_indices(at, attrs_n, n) &&
              h != CU_STREAM_LEGACY && (h || pt); /* "Must not be legacy NULL stream" */
    for (size_t i = 0; ok && i < attrs_n; i++) {
        ok = access_order(attrs[i].srcAccessOrder);
    }
    if (failed) { /* SIZE_MAX where no one copy is to blame */
        *failed = SIZE_MAX;
    }
    CUresult rc = ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n && rc == CUDA_SUCCESS; i++) {
        rc = copy(h, pt, true, ANY(dst[i]), ANY(src[i]), bytes[i], 1, 1);
        if (rc != CUDA_SUCCESS && failed) {
            *failed = i;
        }
    }
    return rc;
}

SIM_BOTH(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
         (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
          CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream),
         batch(hStream, pt, dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, NULL))
SIM_BOTH(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
         (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
          CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
          CUstream hStream),
         batch(hStream, pt, dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx))

/* Elements are bytes unless an array says otherwise. */
static CUresult operand(const CUmemcpy3DOperand *o, size_t element, side_t *out)
{
    switch (o->type) {
    case CU_MEMCPY_OPERAND_TYPE_POINTER:
        *out = (side_t){.type = CU_MEMORYTYPE_UNIFIED,
                        .device = o->op.ptr.ptr,
                        .pitch = o->op.ptr.rowLength * element,
                        .height = o->op.ptr.layerHeight};
        return CUDA_SUCCESS;
    case CU_MEMCPY_OPERAND_TYPE_ARRAY:
        *out = (side_t){.type = CU_MEMORYTYPE_ARRAY,
                        .array = o->op.array.array,
                        .x = o->op.array.offset.x * element,
                        .y = o->op.array.offset.y,
                        .z = o->op.array.offset.z};
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static size_t element_of(const CUDA_MEMCPY3D_BATCH_OP *c)
{
    sim_array_t a;
    bool found = (c->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY &&
                  sim_array_find(c->src.op.array.array, &a) == CUDA_SUCCESS) ||
                 (c->dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY &&
                  sim_array_find(c->dst.op.array.array, &a) == CUDA_SUCCESS);
    return found ? a.element : 1;
}

static CUresult one_of_batch(CUstream h, bool pt, const CUDA_MEMCPY3D_BATCH_OP *c)
{
    side_t dst, src;
    size_t element = element_of(c);
    SIM_TRY(operand(&c->src, element, &src));
    SIM_TRY(operand(&c->dst, element, &dst));
    if (!c->extent.width || !c->extent.height || !c->extent.depth ||
        !access_order(c->srcAccessOrder)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return copy_nd(h, pt, true, dst, src, c->extent.width * element, c->extent.height,
                   c->extent.depth);
}

static CUresult batch_3d(CUstream h, bool pt, size_t n, const CUDA_MEMCPY3D_BATCH_OP *all,
                         unsigned long long flags, size_t *failed)
{
    bool ok = n && all && !flags && h != CU_STREAM_LEGACY && (h || pt);
    CUresult rc = ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (failed) {
        *failed = SIZE_MAX;
    }
    for (size_t i = 0; i < n && rc == CUDA_SUCCESS; i++) {
        rc = one_of_batch(h, pt, &all[i]);
        if (rc != CUDA_SUCCESS && failed) {
            *failed = i;
        }
    }
    return rc;
}

SIM_BOTH(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz,
         (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, unsigned long long flags,
          CUstream hStream),
         batch_3d(hStream, pt, numOps, opList, flags, NULL))
SIM_BOTH(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz,
         (size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx, unsigned long long flags,
          CUstream hStream),
         batch_3d(hStream, pt, numOps, opList, flags, failIdx))
