/* What older CUDA headers lack of what shim/hooks/hooks.def names, so that the library is the same
 * whatever toolkit it is built with, from 11.7 on. The shim passes these types on, and looks into
 * those alone whose members are named here. The functions are declared in any case: newer headers
 * then tell where a declaration here is wrong. Part of shim/cuda/cuda_decls.h. */
#ifndef CA_SHIM_CUDA_CUDA_OLDER_H
#define CA_SHIM_CUDA_CUDA_OLDER_H

#include <cuda.h>

#if CUDA_VERSION < 11080
typedef struct CUlaunchAttribute_st {
    int id;
    char pad[4];
    union {
        char pad[64];
        int programmaticStreamSerializationAllowed;
    } value;
} CUlaunchAttribute;
typedef struct CUlaunchConfig_st {
    unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned numAttrs;
} CUlaunchConfig;
#endif
#if CUDA_VERSION < 12000
typedef int CUdriverProcAddressQueryResult;
typedef int CUlibraryOption;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUDA_GRAPH_INSTANTIATE_PARAMS_st CUDA_GRAPH_INSTANTIATE_PARAMS;
typedef struct CUgraphExecUpdateResultInfo_st CUgraphExecUpdateResultInfo;
#endif
#if CUDA_VERSION < 12020
typedef struct CUgraphNodeParams_st CUgraphNodeParams;
#endif
#if CUDA_VERSION < 12030
typedef struct CUgraphEdgeData_st {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
#endif
#if CUDA_VERSION < 12040
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
#endif
#if CUDA_VERSION < 12050
typedef struct CUctxCreateParams_st CUctxCreateParams;
#endif
#if CUDA_VERSION < 12060
typedef struct CUmemDecompressParams_st CUmemDecompressParams;
#endif
#if CUDA_VERSION < 12080
typedef struct CUDA_MEMCPY3D_BATCH_OP_st CUDA_MEMCPY3D_BATCH_OP;
typedef struct CUmemcpyAttributes_st CUmemcpyAttributes;
#endif
#if CUDA_VERSION < 13030
typedef void (*CUgraphRecaptureCallback)(void);
#endif

CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult *status);
CUresult CUDAAPI cuCtxGetId(CUcontext context, unsigned long long *id);
CUresult CUDAAPI cuStreamGetId(CUstream stream, unsigned long long *id);
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
                                   void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                   void **values, unsigned count);
CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit,
                                       void **jit_values, unsigned jit_count,
                                       CUlibraryOption *options, void **values, unsigned count);
CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library);
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                    const char *name);
CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                      CUdevice device);
CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device);
CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *made, CUgraph graph,
                                              CUDA_GRAPH_INSTANTIATE_PARAMS *params);
CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                             const CUgraphNode *dependencies,
                                             const CUgraphEdgeData *edges, size_t count,
                                             CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                               CUgraph graph, CUgraphRecaptureCallback callback,
                                               void *data);
CUresult CUDAAPI cuFuncLoad(CUfunction function);
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                                  void **extra);
CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *made, CUgraph graph,
                                   const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                   size_t count, CUgraphNodeParams *node);
CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec made, CUgraph graph,
                                      CUgraphExecUpdateResultInfo *result);
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                  unsigned flags);
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green);
CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);
CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags,
                                CUdevice device);
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                 CUmemoryPool pool);

#endif
