/* The CUDA driver's and runtime's declarations, plus those twins that the headers declare only
 * under other macros. shim/ is the only room that includes this. */
#ifndef CA_SHIM_CUDA_CUDA_DECLS_H
#define CA_SHIM_CUDA_CUDA_DECLS_H

#define CUDA_ENABLE_DEPRECATED /* old programs call cuCtxDetach */
/* CUDA 11 declares it with the four arguments of then; later headers define the name anew. */
#define cuGetProcAddress cuGetProcAddress_of_header
#include <cuda.h>
#include <driver_types.h>
#include "shim/cuda/cuda_older.h"

/* The headers map the first name to the second; both are exported by the driver. The 4-argument
 * form is declared with the fifth argument of its successor: callers of either form pass it on. */
#undef cuGetProcAddress
#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuCtxPopCurrent
#undef cuStreamBeginCapture
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuGraphAddNode
#undef cuGraphExecUpdate
#undef cuStreamDestroy
#undef cuGraphAddDependencies
#undef cuCtxSynchronize
#undef cuGLCtxCreate
#undef cuGLMapBufferObject
#undef cuGLMapBufferObjectAsync
#undef cuMemPrefetchAsync
#undef cuMemcpy2D
#undef cuMemcpy2DAsync
#undef cuMemcpy2DUnaligned
#undef cuMemcpy3D
#undef cuMemcpy3DAsync
#undef cuMemcpy3DBatchAsync
#undef cuMemcpyAtoA
#undef cuMemcpyAtoD
#undef cuMemcpyAtoH
#undef cuMemcpyAtoHAsync
#undef cuMemcpyBatchAsync
#undef cuMemcpyDtoA
#undef cuMemcpyDtoD
#undef cuMemcpyDtoDAsync
#undef cuMemcpyDtoH
#undef cuMemcpyDtoHAsync
#undef cuMemcpyHtoA
#undef cuMemcpyHtoAAsync
#undef cuMemcpyHtoD
#undef cuMemcpyHtoDAsync
#undef cuMemsetD16
#undef cuMemsetD2D16
#undef cuMemsetD2D32
#undef cuMemsetD2D8
#undef cuMemsetD32
#undef cuMemsetD8
#undef cuStreamBatchMemOp
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuVDPAUCtxCreate
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult *status);
CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                                unsigned flags, CUdevice device);
CUresult CUDAAPI cuCtxDestroy(CUcontext context);
CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context);
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device);
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device);
CUresult CUDAAPI cuStreamBeginCapture(CUstream stream);
CUresult CUDAAPI cuStreamDestroy(CUstream stream);
CUresult CUDAAPI cuGraphAddNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies,
                                size_t count, CUgraphNodeParams *node);
CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec made, CUgraph graph, CUgraphNode *node,
                                   CUgraphExecUpdateResult *result);
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *made, CUgraph graph, CUgraphNode *node,
                                       char *log, size_t bytes);

/* Per-thread default stream. */
CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                              CUstream stream);
CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream);
CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                  const CUgraphNode *dependencies,
                                                  const CUgraphEdgeData *edges, size_t count,
                                                  CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                                    CUgraph graph,
                                                    CUgraphRecaptureCallback callback, void *data);
CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult CUDAAPI cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status);
CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *made, CUgraph graph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec graph, CUstream stream);
CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                       void **params, void **extra);
CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes);
CUresult CUDAAPI cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                   CUcontext from_context, size_t bytes);
CUresult CUDAAPI cuMemcpyPeerAsync_ptsz(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                        CUcontext from_context, size_t bytes, CUstream stream);
CUresult CUDAAPI cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy);
CUresult CUDAAPI cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *copy, CUstream stream);

/* What submits work; newer headers then refuse a declaration that is wrong. The types are those of
 * CUDA 3.1, when addresses of devices had 32 bits, and of headers that need other libraries'. */
#ifndef __CUDA_API_VERSION_INTERNAL
typedef unsigned CUdeviceptr_v1;
typedef struct ca_memcpy2d_v1 CUDA_MEMCPY2D_v1;
typedef struct ca_memcpy3d_v1 CUDA_MEMCPY3D_v1;
#endif
typedef struct CUeglStreamConnection_st *ca_egl_t;
typedef struct ca_egl_frame { /* CUeglFrame, by value */
    void *planes[3];
    unsigned rest[9];
} ca_egl_frame_t;
#define CA_SUBMISSION(symbol, name, version, per_thread, params, ...)                              \
    CUresult CUDAAPI symbol params;
#include "shim/hooks/submissions.def"

/* Runtime hooks: the runtime's functions, as cuda_runtime_api.h declares them. */
cudaError_t CUDARTAPI cudaMalloc(void **address, size_t bytes);
cudaError_t CUDARTAPI cudaFree(void *address);
cudaError_t CUDARTAPI cudaMallocHost(void **address, size_t bytes);
cudaError_t CUDARTAPI cudaHostAlloc(void **address, size_t bytes, unsigned flags);
cudaError_t CUDARTAPI cudaFreeHost(void *address);
cudaError_t CUDARTAPI cudaMallocManaged(void **address, size_t bytes, unsigned flags);
cudaError_t CUDARTAPI cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height);
cudaError_t CUDARTAPI cudaMalloc3D(struct cudaPitchedPtr *pitched, struct cudaExtent extent);
cudaError_t CUDARTAPI cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream);
cudaError_t CUDARTAPI cudaMallocAsync_ptsz(void **address, size_t bytes, cudaStream_t stream);
cudaError_t CUDARTAPI cudaFreeAsync(void *address, cudaStream_t stream);
cudaError_t CUDARTAPI cudaFreeAsync_ptsz(void *address, cudaStream_t stream);
cudaError_t CUDARTAPI cudaSetDevice(int device);

#define CA_EXPORT __attribute__((visibility("default")))

#endif
