/* Sets of bytes in one, two and three dimensions, on the driver's one- and two-dimensional calls.
 */
#include "rt.h"

static cudaError_t set(const rt_driver_t *drv, void *ptr, int value, size_t bytes, bool async,
                       cudaStream_t stream)
{
    if (bytes == 0)
        return cudaSuccess;
    RT_NEED(ptr);
    unsigned char v = (unsigned char)value;
    return rt_err(async ? drv->cuMemsetD8Async(rt_dev(ptr), v, bytes, stream)
                        : drv->cuMemsetD8(rt_dev(ptr), v, bytes));
}

static cudaError_t set_2d(const rt_driver_t *drv, void *ptr, size_t pitch, int value, size_t width,
                          size_t height, bool async, cudaStream_t stream)
{
    if (width == 0 || height == 0)
        return cudaSuccess;
    RT_NEED(ptr);
    unsigned char v = (unsigned char)value;
    return rt_err(async ? drv->cuMemsetD2D8Async(rt_dev(ptr), pitch, v, width, height, stream)
                        : drv->cuMemsetD2D8(rt_dev(ptr), pitch, v, width, height));
}

/* Slices lie ysize rows apart (cuda_runtime_api.h, cudaMemset3D); whole slices are one set. */
static cudaError_t set_3d(const rt_driver_t *drv, struct cudaPitchedPtr p, int value,
                          struct cudaExtent e, bool async, cudaStream_t stream)
{
    if (e.height == p.ysize || e.depth == 1)
        return set_2d(drv, p.ptr, p.pitch, value, e.width, e.height * e.depth, async, stream);
    for (size_t z = 0; z < e.depth; z++)
        RT_TRY(set_2d(drv, (char *)p.ptr + z * p.ysize * p.pitch, p.pitch, value, e.width, e.height,
                      async, stream));
    return cudaSuccess;
}

RT_TWIN(cudaMemset, _ptds, (void *ptr, int value, size_t bytes), ptr, value, bytes)
{
    return set(drv, ptr, value, bytes, false, NULL);
}

RT_TWIN(cudaMemsetAsync, _ptsz, (void *ptr, int value, size_t bytes, cudaStream_t stream), ptr,
        value, bytes, stream)
{
    return set(drv, ptr, value, bytes, true, stream);
}

RT_TWIN(cudaMemset2D, _ptds, (void *ptr, size_t pitch, int value, size_t width, size_t height), ptr,
        pitch, value, width, height)
{
    return set_2d(drv, ptr, pitch, value, width, height, false, NULL);
}

RT_TWIN(cudaMemset2DAsync, _ptsz,
        (void *ptr, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream), ptr,
        pitch, value, width, height, stream)
{
    return set_2d(drv, ptr, pitch, value, width, height, true, stream);
}

RT_TWIN(cudaMemset3D, _ptds, (struct cudaPitchedPtr p, int value, struct cudaExtent extent), p,
        value, extent)
{
    return set_3d(drv, p, value, extent, false, NULL);
}

RT_TWIN(cudaMemset3DAsync, _ptsz,
        (struct cudaPitchedPtr p, int value, struct cudaExtent extent, cudaStream_t stream), p,
        value, extent, stream)
{
    return set_3d(drv, p, value, extent, true, stream);
}
