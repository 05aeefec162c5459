/*
 * Two- and three-dimensional copies: the runtime's descriptions turned into the driver's. One end
 * of a copy is a pitched range or an array. The runtime counts in elements where an array takes
 * part (driver_types.h, cudaMemcpy3DParms; cuda_runtime_api.h, cudaMemcpy3D), the driver always in
 * bytes.
 */
#include "rt.h"

#include <string.h>

/* The memory types of (source, destination) for a kind. */
static cudaError_t memory_types(enum cudaMemcpyKind kind, CUmemorytype *src, CUmemorytype *dst)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
    case cudaMemcpyHostToDevice:
    case cudaMemcpyDeviceToHost:
    case cudaMemcpyDeviceToDevice:
        *src = ((int)kind & 2) != 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        *dst = ((int)kind & 1) != 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return cudaSuccess;
    case cudaMemcpyDefault:
        *src = *dst = CU_MEMORYTYPE_UNIFIED;
        return cudaSuccess;
    default:
        return cudaErrorInvalidMemcpyDirection;
    }
}

/* What is flat goes to the driver's two-dimensional call, which takes any pitch when synchronous.
 */
static cudaError_t copy_flat(const rt_driver_t *drv, const CUDA_MEMCPY3D *c, bool async,
                             cudaStream_t stream)
{
    CUDA_MEMCPY2D f;
    memset(&f, 0, sizeof f);
    f.srcMemoryType = c->srcMemoryType;
    f.dstMemoryType = c->dstMemoryType;
    f.srcArray = c->srcArray;
    f.dstArray = c->dstArray;
    f.srcHost = c->srcHost;
    f.srcDevice = c->srcDevice;
    f.srcPitch = c->srcPitch;
    f.srcXInBytes = c->srcXInBytes;
    f.srcY = c->srcY;
    f.dstHost = c->dstHost;
    f.dstDevice = c->dstDevice;
    f.dstPitch = c->dstPitch;
    f.dstXInBytes = c->dstXInBytes;
    f.dstY = c->dstY;
    f.WidthInBytes = c->WidthInBytes;
    f.Height = c->Height;
    return rt_err(async ? drv->cuMemcpy2DAsync(&f, stream) : drv->cuMemcpy2DUnaligned(&f));
}

static cudaError_t describe(const rt_end_t *dst, const rt_end_t *src, struct cudaExtent bytes,
                            enum cudaMemcpyKind kind, CUDA_MEMCPY3D *out)
{
    CUDA_MEMCPY3D c;
    memset(&c, 0, sizeof c);
    RT_TRY(memory_types(kind, &c.srcMemoryType, &c.dstMemoryType));
    if ((src->array == NULL && src->ptr == NULL) || (dst->array == NULL && dst->ptr == NULL))
        return cudaErrorInvalidValue;
    if ((src->array == NULL && src->pitch < bytes.width) ||
        (dst->array == NULL && dst->pitch < bytes.width))
        return cudaErrorInvalidPitchValue;
    c.srcArray = src->array;
    c.dstArray = dst->array;
    if (src->array != NULL)
        c.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    if (dst->array != NULL)
        c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    c.srcHost = src->ptr; /* host or device: the memory type says which field is read */
    c.srcDevice = rt_dev(src->ptr);
    c.srcPitch = src->pitch;
    c.srcXInBytes = src->at.x;
    c.srcY = src->at.y;
    c.dstHost = dst->ptr;
    c.dstDevice = rt_dev(dst->ptr);
    c.dstPitch = dst->pitch;
    c.dstXInBytes = dst->at.x;
    c.dstY = dst->at.y;
    c.WidthInBytes = bytes.width;
    c.Height = bytes.height;
    c.srcHeight = src->rows;
    c.srcZ = src->at.z;
    c.dstHeight = dst->rows;
    c.dstZ = dst->at.z;
    c.Depth = bytes.depth;
    *out = c;
    return cudaSuccess;
}

cudaError_t rt_copy_nd(const rt_driver_t *drv, const rt_end_t *dst, const rt_end_t *src,
                       struct cudaExtent bytes, enum cudaMemcpyKind kind, bool async,
                       cudaStream_t stream)
{
    CUDA_MEMCPY3D c;
    CUmemorytype from, to;
    if (bytes.width == 0 || bytes.height == 0 || bytes.depth == 0)
        return memory_types(kind, &from, &to);
    RT_TRY(describe(dst, src, bytes, kind, &c));
    if (bytes.depth == 1 && src->at.z == 0 && dst->at.z == 0)
        return copy_flat(drv, &c, async, stream);
    return rt_err(async ? drv->cuMemcpy3DAsync(&c, stream) : drv->cuMemcpy3D(&c));
}

/* --- two dimensions --------------------------------------------------------------------------- */

static rt_end_t pitched(const void *p, size_t pitch)
{
    return (rt_end_t){.ptr = (void *)(uintptr_t)p, .pitch = pitch};
}

static rt_end_t in_array(cudaArray_const_t a, size_t x, size_t y)
{
    return (rt_end_t){.array = (CUarray)(uintptr_t)a, .at = {x, y, 0}};
}

static struct cudaExtent flat(size_t width, size_t height)
{
    return (struct cudaExtent){width, height, 1};
}

/* One copy in two dimensions under its four names; ARGS... are the arguments. */
#define COPY_2D(name, params, dst_end, src_end, ...)                                               \
    RT_TWIN(name, _ptds, (RT_STRIP params, enum cudaMemcpyKind kind), __VA_ARGS__, kind)           \
    {                                                                                              \
        const rt_end_t d = dst_end, s = src_end;                                                   \
        return rt_copy_nd(drv, &d, &s, flat(width, height), kind, false, NULL);                    \
    }                                                                                              \
    RT_TWIN(name##Async, _ptsz, (RT_STRIP params, enum cudaMemcpyKind kind, cudaStream_t stream),  \
            __VA_ARGS__, kind, stream)                                                             \
    {                                                                                              \
        const rt_end_t d = dst_end, s = src_end;                                                   \
        return rt_copy_nd(drv, &d, &s, flat(width, height), kind, true, stream);                   \
    }
#define RT_STRIP(...) __VA_ARGS__

COPY_2D(cudaMemcpy2D,
        (void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height),
        pitched(dst, dpitch), pitched(src, spitch), dst, dpitch, src, spitch, width, height)

COPY_2D(cudaMemcpy2DToArray,
        (cudaArray_t dst, size_t x, size_t y, const void *src, size_t spitch, size_t width,
         size_t height),
        in_array(dst, x, y), pitched(src, spitch), dst, x, y, src, spitch, width, height)

COPY_2D(cudaMemcpy2DFromArray,
        (void *dst, size_t dpitch, cudaArray_const_t src, size_t x, size_t y, size_t width,
         size_t height),
        pitched(dst, dpitch), in_array(src, x, y), dst, dpitch, src, x, y, width, height)

RT_TWIN(cudaMemcpy2DArrayToArray, _ptds,
        (cudaArray_t dst, size_t dx, size_t dy, cudaArray_const_t src, size_t sx, size_t sy,
         size_t width, size_t height, enum cudaMemcpyKind kind),
        dst, dx, dy, src, sx, sy, width, height, kind)
{
    const rt_end_t d = in_array(dst, dx, dy), s = in_array(src, sx, sy);
    return rt_copy_nd(drv, &d, &s, flat(width, height), kind, false, NULL);
}

/* --- three dimensions ------------------------------------------------------------------------- */

cudaError_t rt_element_bytes(cudaArray_t array, size_t *bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR d;
    *bytes = 1;
    if (array == NULL)
        return cudaSuccess;
    RT_TRY(rt_err(rt_legacy.cuArray3DGetDescriptor(&d, (CUarray)array)));
    static const struct {
        CUarray_format format;
        unsigned char bytes;
    } sizes[] = {
        {CU_AD_FORMAT_UNSIGNED_INT8, 1},  {CU_AD_FORMAT_UNSIGNED_INT16, 2},
        {CU_AD_FORMAT_UNSIGNED_INT32, 4}, {CU_AD_FORMAT_SIGNED_INT8, 1},
        {CU_AD_FORMAT_SIGNED_INT16, 2},   {CU_AD_FORMAT_SIGNED_INT32, 4},
        {CU_AD_FORMAT_HALF, 2},           {CU_AD_FORMAT_FLOAT, 4},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].format == d.Format) {
            *bytes = sizes[i].bytes * (size_t)d.NumChannels;
            return cudaSuccess;
        }
    return cudaErrorInvalidChannelDescriptor;
}

/* Each end is an array or a pitched pointer, not both (cuda_runtime_api.h, cudaMemcpy3D). */
static cudaError_t make_end(cudaArray_t array, struct cudaPitchedPtr p, struct cudaPos at,
                            size_t element, rt_end_t *out)
{
    if ((array != NULL) == (p.ptr != NULL))
        return cudaErrorInvalidValue;
    *out = (rt_end_t){.at = at};
    if (array != NULL) {
        out->array = (CUarray)array;
        out->at.x *= element;
    } else {
        out->ptr = p.ptr;
        out->pitch = p.pitch;
        out->rows = p.ysize;
    }
    return cudaSuccess;
}

static cudaError_t ends_of_3d(const struct cudaMemcpy3DParms *p, rt_end_t *dst, rt_end_t *src,
                              struct cudaExtent *bytes)
{
    size_t src_element, dst_element;
    RT_TRY(rt_element_bytes(p->srcArray, &src_element));
    RT_TRY(rt_element_bytes(p->dstArray, &dst_element));
    if (p->srcArray != NULL && p->dstArray != NULL && src_element != dst_element)
        return cudaErrorInvalidValue;
    RT_TRY(make_end(p->srcArray, p->srcPtr, p->srcPos, src_element, src));
    RT_TRY(make_end(p->dstArray, p->dstPtr, p->dstPos, dst_element, dst));
    *bytes = p->extent;
    bytes->width *= p->srcArray != NULL ? src_element : dst_element;
    return cudaSuccess;
}

cudaError_t rt_copy_3d(const struct cudaMemcpy3DParms *p, CUDA_MEMCPY3D *out)
{
    rt_end_t src, dst;
    struct cudaExtent bytes;
    RT_TRY(ends_of_3d(p, &dst, &src, &bytes));
    return describe(&dst, &src, bytes, p->kind, out);
}

static cudaError_t copy_3d(const rt_driver_t *drv, const struct cudaMemcpy3DParms *p, bool async,
                           cudaStream_t stream)
{
    RT_NEED(p);
    rt_end_t src, dst;
    struct cudaExtent bytes;
    RT_TRY(ends_of_3d(p, &dst, &src, &bytes));
    return rt_copy_nd(drv, &dst, &src, bytes, p->kind, async, stream);
}

RT_TWIN(cudaMemcpy3D, _ptds, (const struct cudaMemcpy3DParms *p), p)
{
    return copy_3d(drv, p, false, NULL);
}

RT_TWIN(cudaMemcpy3DAsync, _ptsz, (const struct cudaMemcpy3DParms *p, cudaStream_t stream), p,
        stream)
{
    return copy_3d(drv, p, true, stream);
}
