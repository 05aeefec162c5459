/*
 * Copies of plain ranges to and from arrays, deprecated since CUDA 10.1 and still exported: "count
 * bytes ... starting at hOffset rows and wOffset bytes from the upper left corner"
 * (cuda_runtime_api.h, cudaMemcpyToArray). The array is filled row by row: the rest of the row
 * where the range begins, whole rows, the start of the last one. Each of these is a rectangle, and
 * goes the way of a copy in two dimensions.
 */
#include "rt.h"

typedef struct {
    const rt_driver_t *drv;
    enum cudaMemcpyKind kind;
    bool async;
    cudaStream_t stream;
} how_t;

/* The bytes of a row. */
static cudaError_t row_of(cudaArray_const_t array, size_t *bytes)
{
    CUDA_ARRAY3D_DESCRIPTOR d;
    RT_NEED(array);
    RT_TRY(rt_element_bytes((cudaArray_t)(uintptr_t)array, bytes));
    RT_TRY(rt_err(rt_legacy.cuArray3DGetDescriptor(&d, (CUarray)(uintptr_t)array)));
    *bytes *= d.Width;
    return cudaSuccess;
}

/* The next rectangle of a range of `left` bytes that goes on at (x, y). */
static struct cudaExtent piece(size_t row, size_t x, size_t left)
{
    if (x != 0 || left < row)
        return (struct cudaExtent){left < row - x ? left : row - x, 1, 1};
    return (struct cudaExtent){row, left / row, 1};
}

static cudaError_t linear(const how_t *how, cudaArray_const_t array, size_t x, size_t y,
                          const void *memory, size_t count, bool to_array)
{
    size_t row;
    RT_TRY(row_of(array, &row));
    if (count != 0 && (memory == NULL || x >= row))
        return cudaErrorInvalidValue;
    for (const char *at = memory; count != 0;) {
        struct cudaExtent e = piece(row, x, count);
        rt_end_t a = {.array = (CUarray)(uintptr_t)array, .at = {x, y, 0}};
        rt_end_t m = {.ptr = (void *)(uintptr_t)at, .pitch = e.width};
        RT_TRY(rt_copy_nd(how->drv, to_array ? &a : &m, to_array ? &m : &a, e, how->kind,
                          how->async, how->stream));
        at += e.width * e.height;
        count -= e.width * e.height;
        y += e.height;
        x = 0;
    }
    return cudaSuccess;
}

RT_TWIN(cudaMemcpyToArray, _ptds,
        (cudaArray_t dst, size_t x, size_t y, const void *src, size_t count,
         enum cudaMemcpyKind kind),
        dst, x, y, src, count, kind)
{
    return linear(&(how_t){drv, kind, false, NULL}, dst, x, y, src, count, true);
}

RT_TWIN(cudaMemcpyToArrayAsync, _ptsz,
        (cudaArray_t dst, size_t x, size_t y, const void *src, size_t count,
         enum cudaMemcpyKind kind, cudaStream_t stream),
        dst, x, y, src, count, kind, stream)
{
    return linear(&(how_t){drv, kind, true, stream}, dst, x, y, src, count, true);
}

RT_TWIN(cudaMemcpyFromArray, _ptds,
        (void *dst, cudaArray_const_t src, size_t x, size_t y, size_t count,
         enum cudaMemcpyKind kind),
        dst, src, x, y, count, kind)
{
    return linear(&(how_t){drv, kind, false, NULL}, src, x, y, dst, count, false);
}

RT_TWIN(cudaMemcpyFromArrayAsync, _ptsz,
        (void *dst, cudaArray_const_t src, size_t x, size_t y, size_t count,
         enum cudaMemcpyKind kind, cudaStream_t stream),
        dst, src, x, y, count, kind, stream)
{
    return linear(&(how_t){drv, kind, true, stream}, src, x, y, dst, count, false);
}

/* A piece is what lies in one row of both, or whole rows of both. */
RT_TWIN(cudaMemcpyArrayToArray, _ptds,
        (cudaArray_t dst, size_t dx, size_t dy, cudaArray_const_t src, size_t sx, size_t sy,
         size_t count, enum cudaMemcpyKind kind),
        dst, dx, dy, src, sx, sy, count, kind)
{
    size_t drow, srow;
    RT_TRY(row_of(dst, &drow));
    RT_TRY(row_of(src, &srow));
    if (count != 0 && (dx >= drow || sx >= srow))
        return cudaErrorInvalidValue;
    while (count != 0) {
        struct cudaExtent d = piece(drow, dx, count), s = piece(srow, sx, count);
        if (drow != srow || d.width != s.width)
            d = (struct cudaExtent){d.width < s.width ? d.width : s.width, 1, 1};
        rt_end_t to = {.array = (CUarray)dst, .at = {dx, dy, 0}};
        rt_end_t from = {.array = (CUarray)(uintptr_t)src, .at = {sx, sy, 0}};
        RT_TRY(rt_copy_nd(drv, &to, &from, d, kind, false, NULL));
        count -= d.width * d.height;
        dx += d.width;
        sx += d.width;
        dy += dx >= drow ? d.height : 0;
        sy += sx >= srow ? d.height : 0;
        dx %= drow;
        sx %= srow;
    }
    return cudaSuccess;
}
