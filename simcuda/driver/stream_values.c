/* Values that streams write to memory and wait for. A wait polls, at worst some 50 us late. For the
 * race check a write is an access, and a wait is none: it puts its stream behind the writes to the
 * same place that were submitted before it. What is written later, by a kernel or by the host, is
 * not known to it. */
#include "sim.h"

static CUresult submit(CUstream s, enum sim_op_kind kind, CUdeviceptr addr, uint64_t value,
                       unsigned bytes, unsigned flags)
{
    if (!addr || addr % bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_op_t op = {.kind = kind, .u.value = {.addr = addr, .value = value, .bytes = bytes}};
    op.u.value.compare = flags & 3;
    return sim_submit(s, &op, false);
}

enum { COMPARE = CU_STREAM_WAIT_VALUE_NOR };

/* A flush of remote writes is not supported: CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0. */
static CUresult wait_value(CUstream s, CUdeviceptr addr, uint64_t value, unsigned bytes,
                           unsigned flags)
{
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return flags & ~(unsigned)COMPARE ? CUDA_ERROR_INVALID_VALUE
                                      : submit(s, SIM_OP_WAIT_VALUE, addr, value, bytes, flags);
}

static CUresult write_value(CUstream s, CUdeviceptr addr, uint64_t value, unsigned bytes,
                            unsigned flags)
{
    return flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER
               ? CUDA_ERROR_INVALID_VALUE
               : submit(s, SIM_OP_VALUE, addr, value, bytes, 0);
}

static CUresult on(CUstream h, bool pt, bool wait, CUdeviceptr addr, uint64_t value, unsigned bytes,
                   unsigned flags)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    return wait ? wait_value(s, addr, value, bytes, flags)
                : write_value(s, addr, value, bytes, flags);
}

#define VALUE(name, type, wait)                                                                    \
    SIM_BOTH(name, name##_ptsz, (CUstream stream, CUdeviceptr addr, type value, unsigned flags),   \
             on(stream, pt, wait, addr, value, sizeof(type), flags))                               \
    SIM_BOTH(name##_v2, name##_v2_ptsz,                                                            \
             (CUstream stream, CUdeviceptr addr, type value, unsigned flags),                      \
             on(stream, pt, wait, addr, value, sizeof(type), flags))

VALUE(cuStreamWriteValue32, cuuint32_t, false)
VALUE(cuStreamWriteValue64, cuuint64_t, false)
VALUE(cuStreamWaitValue32, cuuint32_t, true)
VALUE(cuStreamWaitValue64, cuuint64_t, true)

static CUresult one(CUstream s, const CUstreamBatchMemOpParams *p)
{
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return wait_value(s, p->waitValue.address, p->waitValue.value, 4, p->waitValue.flags);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return wait_value(s, p->waitValue.address, p->waitValue.value64, 8, p->waitValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return write_value(s, p->writeValue.address, p->writeValue.value, 4, p->writeValue.flags);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return write_value(s, p->writeValue.address, p->writeValue.value64, 8, p->writeValue.flags);
    case CU_STREAM_MEM_OP_BARRIER: /* every operation is one here */
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* cuda.h, cuStreamBatchMemOp: at most 256; "flags: Reserved for future expansion; must be 0". */
static CUresult batch(CUstream h, bool pt, unsigned n, const CUstreamBatchMemOpParams *all,
                      unsigned flags)
{
    CUstream s;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (n > 256 || (n && !all) || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < n; i++) {
        SIM_TRY(one(s, &all[i]));
    }
    return CUDA_SUCCESS;
}

SIM_BOTH(cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz,
         (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
          unsigned int flags),
         batch(stream, pt, count, paramArray, flags))
SIM_BOTH(cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz,
         (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray,
          unsigned int flags),
         batch(stream, pt, count, paramArray, flags))
