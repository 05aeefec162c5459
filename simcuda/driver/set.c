/* Sets. cuda.h and "API synchronization behavior": "memset functions are asynchronous with respect
 * to the host except when the target is pinned host memory or a Unified Memory region". */
#include "sim.h"

static sim_op_t make(CUdeviceptr dst, size_t pitch, unsigned elem, unsigned value, size_t width,
                     size_t rows)
{
    sim_op_t op = {.kind = SIM_OP_SET};
    op.u.set.dst = dst;
    op.u.set.pitch = pitch;
    op.u.set.width = width;
    op.u.set.rows = rows;
    op.u.set.elem = elem;
    op.u.set.value = value;
    return op;
}

/* cuda.h: pitch and pointer aligned to the element */
static bool misplaced(CUdeviceptr dst, size_t pitch, unsigned elem, size_t width, size_t rows)
{
    return dst % elem || (rows > 1 && (pitch < width * elem || pitch % elem));
}

static CUresult set(CUstream h, bool pt, bool async, CUdeviceptr dst, size_t pitch, unsigned elem,
                    unsigned value, size_t width, size_t rows)
{
    CUstream s;
    sim_alloc_t a;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (misplaced(dst, pitch, elem, width, rows)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (width == 0 || rows == 0) {
        return CUDA_SUCCESS;
    }
    sim_device_t *d = sim_device_of(dst);
    bool sync = !async && (d ? sim_heap_find(d, dst, &a) && a.sync_memops : !sim_vmm_reserved(dst));
    sim_op_t op = make(dst, pitch, elem, value, width, rows);
    return sim_submit(s, &op, sync);
}

CUresult sim_set_op(const CUDA_MEMSET_NODE_PARAMS *p, sim_op_t *op)
{
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width ||
        !p->height || misplaced(p->dst, p->pitch, p->elementSize, p->width, p->height)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *op = make(p->dst, p->pitch, p->elementSize, p->value, p->width, p->height);
    return CUDA_SUCCESS;
}

#define SET_1D(A, B, type, bytes)                                                                  \
    SIM_BOTH(A, B, (CUdeviceptr dst, type value, size_t N),                                        \
             set(NULL, pt, false, dst, 0, bytes, value, N, 1))
#define SET_1D_ASYNC(A, B, type, bytes)                                                            \
    SIM_BOTH(A, B, (CUdeviceptr dst, type value, size_t N, CUstream hStream),                      \
             set(hStream, pt, true, dst, 0, bytes, value, N, 1))
#define SET_2D(A, B, type, bytes)                                                                  \
    SIM_BOTH(A, B, (CUdeviceptr dst, size_t pitch, type value, size_t Width, size_t Height),       \
             set(NULL, pt, false, dst, pitch, bytes, value, Width, Height))
#define SET_2D_ASYNC(A, B, type, bytes)                                                            \
    SIM_BOTH(A, B,                                                                                 \
             (CUdeviceptr dst, size_t pitch, type value, size_t Width, size_t Height,              \
              CUstream hStream),                                                                   \
             set(hStream, pt, true, dst, pitch, bytes, value, Width, Height))

SET_1D(cuMemsetD8_v2, cuMemsetD8_v2_ptds, unsigned char, 1)
SET_1D(cuMemsetD16_v2, cuMemsetD16_v2_ptds, unsigned short, 2)
SET_1D(cuMemsetD32_v2, cuMemsetD32_v2_ptds, unsigned int, 4)
SET_1D_ASYNC(cuMemsetD8Async, cuMemsetD8Async_ptsz, unsigned char, 1)
SET_1D_ASYNC(cuMemsetD16Async, cuMemsetD16Async_ptsz, unsigned short, 2)
SET_1D_ASYNC(cuMemsetD32Async, cuMemsetD32Async_ptsz, unsigned int, 4)
SET_2D(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, unsigned char, 1)
SET_2D(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, unsigned short, 2)
SET_2D(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, unsigned int, 4)
SET_2D_ASYNC(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz, unsigned char, 1)
SET_2D_ASYNC(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz, unsigned short, 2)
SET_2D_ASYNC(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz, unsigned int, 4)
