/* The driver API's hooks: streams, events, memory pools, and copies that stage pageable memory.
 * They take device or pinned memory of their own: when one is out of memory the pool releases its
 * idle memory of both kinds, and the call is made once more. A copy that is out of memory has not
 * begun. */
#include "shim/cuda/driver_table.h"
#include "shim/upstream/reclaim.h"
#include "shim/cuda/submissions.h"

#define WITH_RECLAIM_ANY(call) CA_WITH_RECLAIM(ca_reclaim_any(), call)

CA_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags)
{
    CA_REAL(cuStreamCreate);
    return WITH_RECLAIM_ANY(real(stream, flags));
}

CA_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned flags,
                                                      int priority)
{
    CA_REAL(cuStreamCreateWithPriority);
    return WITH_RECLAIM_ANY(real(stream, flags, priority));
}

CA_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags)
{
    CA_REAL(cuEventCreate);
    return WITH_RECLAIM_ANY(real(event, flags));
}

CA_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CA_REAL(cuMemPoolCreate);
    return WITH_RECLAIM_ANY(real(pool, properties));
}

CA_EXPORT CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CA_REAL(cuMemcpy);
    return CA_SUBMIT(NULL, 0, CA_WORK_COPY, WITH_RECLAIM_ANY(real(to, from, bytes)));
}

CA_EXPORT CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CA_REAL(cuMemcpy_ptds);
    return CA_SUBMIT(NULL, 1, CA_WORK_COPY, WITH_RECLAIM_ANY(real(to, from, bytes)));
}

CA_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    CA_REAL(cuMemcpyHtoD_v2);
    return CA_SUBMIT(NULL, 0, CA_WORK_COPY, WITH_RECLAIM_ANY(real(to, from, bytes)));
}

CA_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes)
{
    CA_REAL(cuMemcpyHtoD_v2_ptds);
    return CA_SUBMIT(NULL, 1, CA_WORK_COPY, WITH_RECLAIM_ANY(real(to, from, bytes)));
}

CA_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    CA_REAL(cuMemcpyDtoH_v2);
    return CA_SUBMIT(NULL, 0, CA_WORK_COPY, WITH_RECLAIM_ANY(real(to, from, bytes)));
}

CA_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes)
{
    CA_REAL(cuMemcpyDtoH_v2_ptds);
    return CA_SUBMIT(NULL, 1, CA_WORK_COPY, WITH_RECLAIM_ANY(real(to, from, bytes)));
}
