/* The driver API's hooks: work on memory of another context. Peer access, and copies that name both
 * contexts, are watched; fences of the memory cover that work from then on
 * (shim/upstream/fences.c).
 *
 * cuCtxEnablePeerAccess opens memory of cuMemAlloc. Pages of expandable segments have to be opened
 * one by one, or the peer's work fails there, or hangs (NVLink). They are opened before the program
 * gets the answer that lets it begin. */
#include "base/log.h"
#include "pool/range/range.h"
#include "shim/upstream/backend_async.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/expandable.h"
#include "shim/upstream/pages.h"
#include "shim/cuda/streams.h"
#include "shim/cuda/submissions.h"

/* Only after the driver's own answer: it also says that the two devices can. */
static CUresult open_pages(ca_context_t *opened, CUcontext owner)
{
    __typeof__(cuCtxGetDevice) *ask = ca_driver()->cuCtxGetDevice;
    __typeof__(cuCtxDisablePeerAccess) *close = ca_driver()->cuCtxDisablePeerAccess;
    CUdevice device;
    if (!opened) {
        ca_ranges_end(); /* it may get pages later, which would not be open */
        return CUDA_SUCCESS;
    }
    CUresult code = ask ? ask(&device) : CUDA_ERROR_NOT_SUPPORTED;
    if (code == CUDA_SUCCESS)
        code = ca_pages_open_to(opened, device);
    if (code == CUDA_SUCCESS)
        return code;
    ca_warn("memory of expandable segments could not be opened to a peer (error %d): access is "
            "refused; set expandable_segments:false",
            (int)code);
    if (close)
        close(owner);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext owner, unsigned flags)
{
    CA_REAL(cuCtxEnablePeerAccess);
    ca_order_end("a peer reaches the memory");
    ca_expandable_sign("a peer reaches the memory");
    /* The current context may never allocate, and yet work on the owner's memory from now on:
     * fences cover it once it has an entry. */
    ca_context_t *peer = ca_context_current(true, NULL);
    ca_context_t *opened = ca_context_of(owner);
    CUresult code = real(owner, flags);
    if (code == CUDA_SUCCESS)
        code = open_pages(opened, owner);
    if (code == CUDA_SUCCESS)
        ca_context_reached_by(opened, peer);
    if (code == CUDA_SUCCESS && peer)
        ca_backend_async_open_to(opened, peer->device);
    return code;
}

/* Before a copy is submitted. Where it is captured, the stream that will run it is not known. The
 * current context counts as well as the stream's, since cuda.h does not say which of the two has
 * the work. */
static void note_copy(CUcontext to, CUcontext from, CUstream stream)
{
    ca_context_t *contexts[] = {ca_context_of(to), ca_context_of(from)};
    ca_context_t *users[] = {ca_context_known(), ca_streams_context(stream)};
    bool captured = ca_capture_active();
    for (int i = 0; i < 2; i++) {
        if (!contexts[i])
            continue; /* its memory is not the pool's */
        ca_context_reached_by(contexts[i], contexts[1 - i]);
        for (int k = 0; k < 2; k++)
            ca_context_reached_by(contexts[i], captured ? NULL : users[k]);
    }
}

#define COPY(symbol, per_thread)                                                                   \
    CA_EXPORT CUresult CUDAAPI symbol(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,      \
                                      CUcontext from_context, size_t bytes)                        \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        note_copy(to_context, from_context, NULL);                                                 \
        return CA_SUBMIT(NULL, per_thread, CA_WORK,                                                \
                         real(to, to_context, from, from_context, bytes));                         \
    }
COPY(cuMemcpyPeer, 0)
COPY(cuMemcpyPeer_ptds, 1)

#define COPY_ASYNC(symbol, per_thread)                                                             \
    CA_EXPORT CUresult CUDAAPI symbol(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,      \
                                      CUcontext from_context, size_t bytes, CUstream stream)       \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        note_copy(to_context, from_context, stream);                                               \
        return CA_SUBMIT(stream, per_thread, CA_WORK,                                              \
                         real(to, to_context, from, from_context, bytes, stream));                 \
    }
COPY_ASYNC(cuMemcpyPeerAsync, 0)
COPY_ASYNC(cuMemcpyPeerAsync_ptsz, 1)

#define COPY_3D(symbol, per_thread)                                                                \
    CA_EXPORT CUresult CUDAAPI symbol(const CUDA_MEMCPY3D_PEER *copy)                              \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        if (copy)                                                                                  \
            note_copy(copy->dstContext, copy->srcContext, NULL);                                   \
        return CA_SUBMIT(NULL, per_thread, CA_WORK_COPY, real(copy));                              \
    }
COPY_3D(cuMemcpy3DPeer, 0)
COPY_3D(cuMemcpy3DPeer_ptds, 1)

#define COPY_3D_ASYNC(symbol, per_thread)                                                          \
    CA_EXPORT CUresult CUDAAPI symbol(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)             \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        if (copy)                                                                                  \
            note_copy(copy->dstContext, copy->srcContext, stream);                                 \
        return CA_SUBMIT(stream, per_thread, CA_WORK, real(copy, stream));                         \
    }
COPY_3D_ASYNC(cuMemcpy3DPeerAsync, 0)
COPY_3D_ASYNC(cuMemcpy3DPeerAsync_ptsz, 1)
