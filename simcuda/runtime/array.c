/*
 * CUDA arrays: creation, release, description. All of them are three-dimensional arrays to the
 * driver; a height or depth of zero makes them flatter (cuda_runtime_api.h, cudaMalloc3DArray).
 */
#include "rt.h"

#include <string.h>

RT_EXPORT struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                             enum cudaChannelFormatKind f)
{
    return (struct cudaChannelFormatDesc){x, y, z, w, f};
}

static const struct {
    enum cudaChannelFormatKind kind;
    int bits;
    CUarray_format format;
} formats[] = {
    {cudaChannelFormatKindUnsigned, 8, CU_AD_FORMAT_UNSIGNED_INT8},
    {cudaChannelFormatKindUnsigned, 16, CU_AD_FORMAT_UNSIGNED_INT16},
    {cudaChannelFormatKindUnsigned, 32, CU_AD_FORMAT_UNSIGNED_INT32},
    {cudaChannelFormatKindSigned, 8, CU_AD_FORMAT_SIGNED_INT8},
    {cudaChannelFormatKindSigned, 16, CU_AD_FORMAT_SIGNED_INT16},
    {cudaChannelFormatKindSigned, 32, CU_AD_FORMAT_SIGNED_INT32},
    {cudaChannelFormatKindFloat, 16, CU_AD_FORMAT_HALF},
    {cudaChannelFormatKindFloat, 32, CU_AD_FORMAT_FLOAT},
};
#define FORMATS (sizeof formats / sizeof formats[0])

/* One, two or four channels of one width (cuda.h, cuArray3DCreate, NumChannels). */
static cudaError_t to_driver(const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
                             unsigned int flags, CUDA_ARRAY3D_DESCRIPTOR *out)
{
    unsigned channels = desc->w != 0 ? 4 : desc->z != 0 ? 3 : desc->y != 0 ? 2 : 1;
    memset(out, 0, sizeof *out);
    out->Width = extent.width;
    out->Height = extent.height;
    out->Depth = extent.depth;
    out->NumChannels = channels;
    out->Flags = flags;
    if (channels == 3)
        return cudaErrorInvalidChannelDescriptor;
    if ((desc->y != 0 && desc->y != desc->x) ||
        (channels == 4 && (desc->z != desc->x || desc->w != desc->x)))
        return cudaErrorInvalidChannelDescriptor;
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].kind == desc->f && formats[i].bits == desc->x) {
            out->Format = formats[i].format;
            return cudaSuccess;
        }
    return cudaErrorInvalidChannelDescriptor;
}

static cudaError_t create(cudaArray_t *array, const struct cudaChannelFormatDesc *desc,
                          struct cudaExtent extent, unsigned int flags)
{
    RT_NEED(array);
    RT_NEED(desc);
    CUDA_ARRAY3D_DESCRIPTOR d;
    RT_TRY(to_driver(desc, extent, flags, &d));
    return rt_err(rt_legacy.cuArray3DCreate((CUarray *)array, &d));
}

RT_FN(cudaMallocArray,
      (cudaArray_t * array, const struct cudaChannelFormatDesc *desc, size_t width, size_t height,
       unsigned int flags),
      array, desc, width, height, flags)
{
    return create(array, desc, (struct cudaExtent){width, height, 0}, flags);
}

RT_FN(cudaMalloc3DArray,
      (cudaArray_t * array, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
       unsigned int flags),
      array, desc, extent, flags)
{
    return create(array, desc, extent, flags);
}

/* "If array is 0, no operation is performed" (cudaFreeMipmappedArray says the same; cudaFreeArray
 * alike). */
RT_FN(cudaFreeArray, (cudaArray_t array), array)
{
    return array == NULL ? cudaSuccess : rt_err(rt_legacy.cuArrayDestroy((CUarray)array));
}

RT_FN(cudaMallocMipmappedArray,
      (cudaMipmappedArray_t * array, const struct cudaChannelFormatDesc *desc,
       struct cudaExtent extent, unsigned int levels, unsigned int flags),
      array, desc, extent, levels, flags)
{
    RT_NEED(array);
    RT_NEED(desc);
    CUDA_ARRAY3D_DESCRIPTOR d;
    RT_TRY(to_driver(desc, extent, flags, &d));
    return rt_err(rt_legacy.cuMipmappedArrayCreate((CUmipmappedArray *)array, &d, levels));
}

RT_FN(cudaGetMipmappedArrayLevel,
      (cudaArray_t * level_array, cudaMipmappedArray_const_t array, unsigned int level),
      level_array, array, level)
{
    RT_NEED(level_array);
    return rt_err(rt_legacy.cuMipmappedArrayGetLevel((CUarray *)level_array,
                                                     (CUmipmappedArray)(uintptr_t)array, level));
}

RT_FN(cudaFreeMipmappedArray, (cudaMipmappedArray_t array), array)
{
    return array == NULL ? cudaSuccess
                         : rt_err(rt_legacy.cuMipmappedArrayDestroy((CUmipmappedArray)array));
}

static cudaError_t describe(cudaArray_const_t array, CUDA_ARRAY3D_DESCRIPTOR *d,
                            struct cudaChannelFormatDesc *desc)
{
    RT_TRY(rt_err(rt_legacy.cuArray3DGetDescriptor(d, (CUarray)(uintptr_t)array)));
    memset(desc, 0, sizeof *desc);
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].format == d->Format) {
            int bits = formats[i].bits;
            desc->f = formats[i].kind;
            desc->x = bits;
            desc->y = d->NumChannels >= 2 ? bits : 0;
            desc->z = desc->w = d->NumChannels >= 4 ? bits : 0;
        }
    return cudaSuccess;
}

RT_FN(cudaArrayGetInfo,
      (struct cudaChannelFormatDesc * desc, struct cudaExtent *extent, unsigned int *flags,
       cudaArray_t array),
      desc, extent, flags, array)
{
    CUDA_ARRAY3D_DESCRIPTOR d;
    struct cudaChannelFormatDesc found;
    RT_TRY(describe(array, &d, &found));
    if (desc != NULL)
        *desc = found;
    if (extent != NULL)
        *extent = (struct cudaExtent){d.Width, d.Height, d.Depth};
    if (flags != NULL)
        *flags = d.Flags;
    return cudaSuccess;
}

RT_FN(cudaGetChannelDesc, (struct cudaChannelFormatDesc * desc, cudaArray_const_t array), desc,
      array)
{
    RT_NEED(desc);
    CUDA_ARRAY3D_DESCRIPTOR d;
    return describe(array, &d, desc);
}
