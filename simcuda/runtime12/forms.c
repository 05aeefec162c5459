/*
 * The functions whose form CUDA 13 changed, in that of CUDA 12, for libcudart.so.12. Those of 13
 * carry the names there that CUDA 12 has for the same arguments (renamed.txt), so that these can
 * have the plain ones. The headers are CUDA 13's and declare other prototypes under these names:
 * hence each C name here has another one for the linker.
 */
#include "../runtime/rt.h"

#include <string.h>

/* `name` for programs is c12_name here; with a twin, or without. */
#define OLD(name, params) cudaError_t c12_##name params __asm__(#name)
#define OLD_TWIN(name, params)                                                                     \
    cudaError_t c12_##name params __asm__(#name);                                                  \
    cudaError_t c12_##name##_ptsz params __asm__(#name "_ptsz")

/* --- capture ---------------------------------------------------------------------------------- */

static cudaError_t capture_info(const rt_driver_t *drv, cudaStream_t stream,
                                enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                size_t *count)
{
    RT_NEED(status);
    CUstreamCaptureStatus s = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t driver_id = 0;
    RT_TRY(rt_err(drv->cuStreamGetCaptureInfo(stream, &s, id != NULL ? &driver_id : NULL, graph,
                                              dependencies, NULL, count)));
    *status = (enum cudaStreamCaptureStatus)(int)s;
    if (id != NULL)
        *id = driver_id;
    return cudaSuccess;
}

OLD_TWIN(cudaStreamGetCaptureInfo,
         (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id));
RT_TWIN(c12_cudaStreamGetCaptureInfo, _ptsz,
        (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id), stream,
        status, id)
{
    return capture_info(drv, stream, status, id, NULL, NULL, NULL);
}

OLD_TWIN(cudaStreamGetCaptureInfo_v2,
         (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
          cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count));
RT_TWIN(c12_cudaStreamGetCaptureInfo_v2, _ptsz,
        (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
         cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count),
        stream, status, id, graph, dependencies, count)
{
    return capture_info(drv, stream, status, id, graph, dependencies, count);
}

OLD_TWIN(cudaStreamUpdateCaptureDependencies,
         (cudaStream_t stream, cudaGraphNode_t *dependencies, size_t count, unsigned int flags));
RT_TWIN(c12_cudaStreamUpdateCaptureDependencies, _ptsz,
        (cudaStream_t stream, cudaGraphNode_t *dependencies, size_t count, unsigned int flags),
        stream, dependencies, count, flags)
{
    return rt_err(drv->cuStreamUpdateCaptureDependencies(stream, dependencies, NULL, count, flags));
}

OLD(cudaGraphAddNode,
    (cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t *dependencies, size_t count,
     struct cudaGraphNodeParams *p));
extern cudaError_t add_node_13(cudaGraphNode_t *node, cudaGraph_t graph,
                               const cudaGraphNode_t *dependencies, const cudaGraphEdgeData *edges,
                               size_t count,
                               struct cudaGraphNodeParams *p) __asm__("cudaGraphAddNode_v2");
RT_EXPORT cudaError_t c12_cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                           const cudaGraphNode_t *dependencies, size_t count,
                                           struct cudaGraphNodeParams *p)
{
    return add_node_13(node, graph, dependencies, NULL, count, p);
}

/* --- managed memory: a place is a device or cudaCpuDeviceId ----------------------------------- */

static CUmemLocation location(int device)
{
    CUmemLocation l;
    memset(&l, 0, sizeof l);
    l.type = device == cudaCpuDeviceId ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    l.id = device == cudaCpuDeviceId ? 0 : device;
    return l;
}

OLD(cudaMemAdvise, (const void *ptr, size_t bytes, enum cudaMemoryAdvise advice, int device));
RT_FN(c12_cudaMemAdvise, (const void *ptr, size_t bytes, enum cudaMemoryAdvise advice, int device),
      ptr, bytes, advice, device)
{
    return rt_err(
        rt_legacy.cuMemAdvise(rt_dev(ptr), bytes, (CUmem_advise)(int)advice, location(device)));
}

OLD_TWIN(cudaMemPrefetchAsync, (const void *ptr, size_t bytes, int device, cudaStream_t stream));
RT_TWIN(c12_cudaMemPrefetchAsync, _ptsz,
        (const void *ptr, size_t bytes, int device, cudaStream_t stream), ptr, bytes, device,
        stream)
{
    return rt_err(drv->cuMemPrefetchAsync(rt_dev(ptr), bytes, location(device), 0, stream));
}

/* --- pointers --------------------------------------------------------------------------------- */

/* CUDA 13's has a reserve at its end, beyond the memory of a caller of CUDA 12. */
typedef struct {
    enum cudaMemoryType type;
    int device;
    void *device_pointer, *host_pointer;
} pointer_12_t;

_Static_assert(sizeof(pointer_12_t) == 24, "CUDA 12's cudaPointerAttributes");

extern cudaError_t pointer_attributes_13(struct cudaPointerAttributes *out,
                                         const void *ptr) __asm__("rt_pointer_attributes_13");

OLD(cudaPointerGetAttributes, (pointer_12_t * out, const void *ptr));
RT_EXPORT cudaError_t c12_cudaPointerGetAttributes(pointer_12_t *out, const void *ptr)
{
    struct cudaPointerAttributes found;
    if (out == NULL)
        return rt_done(cudaErrorInvalidValue);
    RT_TRY(pointer_attributes_13(&found, ptr));
    *out = (pointer_12_t){found.type, found.device, found.devicePointer, found.hostPointer};
    return cudaSuccess;
}

/* --- properties ------------------------------------------------------------------------------- */

/* The fields of CUDA 12's cudaDeviceProp in their order; X has a type, a name and how many (0: no
 * array), OLDER the attribute of a field that CUDA 13 has no more. CUDA 11's ends where it says so.
 */
#define FIELDS(X, OLDER, END_OF_11)                                                                \
    X(char, name, 256)                                                                             \
    X(cudaUUID_t, uuid, 0)                                                                         \
    X(char, luid, 8)                                                                               \
    X(unsigned int, luidDeviceNodeMask, 0)                                                         \
    X(size_t, totalGlobalMem, 0)                                                                   \
    X(size_t, sharedMemPerBlock, 0)                                                                \
    X(int, regsPerBlock, 0)                                                                        \
    X(int, warpSize, 0)                                                                            \
    X(size_t, memPitch, 0)                                                                         \
    X(int, maxThreadsPerBlock, 0)                                                                  \
    X(int, maxThreadsDim, 3)                                                                       \
    X(int, maxGridSize, 3)                                                                         \
    OLDER(clockRate, CLOCK_RATE)                                                                   \
    X(size_t, totalConstMem, 0)                                                                    \
    X(int, major, 0)                                                                               \
    X(int, minor, 0)                                                                               \
    X(size_t, textureAlignment, 0)                                                                 \
    X(size_t, texturePitchAlignment, 0)                                                            \
    OLDER(deviceOverlap, GPU_OVERLAP)                                                              \
    X(int, multiProcessorCount, 0)                                                                 \
    OLDER(kernelExecTimeoutEnabled, KERNEL_EXEC_TIMEOUT)                                           \
    X(int, integrated, 0)                                                                          \
    X(int, canMapHostMemory, 0)                                                                    \
    OLDER(computeMode, COMPUTE_MODE)                                                               \
    X(int, maxTexture1D, 0)                                                                        \
    X(int, maxTexture1DMipmap, 0)                                                                  \
    OLDER(maxTexture1DLinear, MAXIMUM_TEXTURE1D_LINEAR_WIDTH)                                      \
    X(int, maxTexture2D, 2)                                                                        \
    X(int, maxTexture2DMipmap, 2)                                                                  \
    X(int, maxTexture2DLinear, 3)                                                                  \
    X(int, maxTexture2DGather, 2)                                                                  \
    X(int, maxTexture3D, 3)                                                                        \
    X(int, maxTexture3DAlt, 3)                                                                     \
    X(int, maxTextureCubemap, 0)                                                                   \
    X(int, maxTexture1DLayered, 2)                                                                 \
    X(int, maxTexture2DLayered, 3)                                                                 \
    X(int, maxTextureCubemapLayered, 2)                                                            \
    X(int, maxSurface1D, 0)                                                                        \
    X(int, maxSurface2D, 2)                                                                        \
    X(int, maxSurface3D, 3)                                                                        \
    X(int, maxSurface1DLayered, 2)                                                                 \
    X(int, maxSurface2DLayered, 3)                                                                 \
    X(int, maxSurfaceCubemap, 0)                                                                   \
    X(int, maxSurfaceCubemapLayered, 2)                                                            \
    X(size_t, surfaceAlignment, 0)                                                                 \
    X(int, concurrentKernels, 0)                                                                   \
    X(int, ECCEnabled, 0)                                                                          \
    X(int, pciBusID, 0)                                                                            \
    X(int, pciDeviceID, 0)                                                                         \
    X(int, pciDomainID, 0)                                                                         \
    X(int, tccDriver, 0)                                                                           \
    X(int, asyncEngineCount, 0)                                                                    \
    X(int, unifiedAddressing, 0)                                                                   \
    OLDER(memoryClockRate, MEMORY_CLOCK_RATE)                                                      \
    X(int, memoryBusWidth, 0)                                                                      \
    X(int, l2CacheSize, 0)                                                                         \
    X(int, persistingL2CacheMaxSize, 0)                                                            \
    X(int, maxThreadsPerMultiProcessor, 0)                                                         \
    X(int, streamPrioritiesSupported, 0)                                                           \
    X(int, globalL1CacheSupported, 0)                                                              \
    X(int, localL1CacheSupported, 0)                                                               \
    X(size_t, sharedMemPerMultiprocessor, 0)                                                       \
    X(int, regsPerMultiprocessor, 0)                                                               \
    X(int, managedMemory, 0)                                                                       \
    X(int, isMultiGpuBoard, 0)                                                                     \
    X(int, multiGpuBoardGroupID, 0)                                                                \
    X(int, hostNativeAtomicSupported, 0)                                                           \
    OLDER(singleToDoublePrecisionPerfRatio, SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO)                 \
    X(int, pageableMemoryAccess, 0)                                                                \
    X(int, concurrentManagedAccess, 0)                                                             \
    X(int, computePreemptionSupported, 0)                                                          \
    X(int, canUseHostPointerForRegisteredMem, 0)                                                   \
    X(int, cooperativeLaunch, 0)                                                                   \
    OLDER(cooperativeMultiDeviceLaunch, COOPERATIVE_MULTI_DEVICE_LAUNCH)                           \
    X(size_t, sharedMemPerBlockOptin, 0)                                                           \
    X(int, pageableMemoryAccessUsesHostPageTables, 0)                                              \
    X(int, directManagedMemAccessFromHost, 0)                                                      \
    X(int, maxBlocksPerMultiProcessor, 0)                                                          \
    X(int, accessPolicyMaxWindowSize, 0)                                                           \
    X(size_t, reservedSharedMemPerBlock, 0)                                                        \
    END_OF_11(0)                                                                                   \
    X(int, hostRegisterSupported, 0)                                                               \
    X(int, sparseCudaArraySupported, 0)                                                            \
    X(int, hostRegisterReadOnlySupported, 0)                                                       \
    X(int, timelineSemaphoreInteropSupported, 0)                                                   \
    X(int, memoryPoolsSupported, 0)                                                                \
    X(int, gpuDirectRDMASupported, 0)                                                              \
    X(unsigned int, gpuDirectRDMAFlushWritesOptions, 0)                                            \
    X(int, gpuDirectRDMAWritesOrdering, 0)                                                         \
    X(unsigned int, memoryPoolSupportedHandleTypes, 0)                                             \
    X(int, deferredMappingCudaArraySupported, 0)                                                   \
    X(int, ipcEventSupported, 0)                                                                   \
    X(int, clusterLaunch, 0)                                                                       \
    X(int, unifiedFunctionPointers, 0)

#define FIELD(type, name, n) type name[(n) ? (n) : 1]; /* one: the same place as no array */
#define FIELD_OLDER(name, attribute) int name[1];
#define FIELD_END(n) int end_of_11[n];
typedef struct {
    FIELDS(FIELD, FIELD_OLDER, FIELD_END)
    int reserved[63];
} prop_12_t;

_Static_assert(sizeof(prop_12_t) == 1032, "CUDA 12's cudaDeviceProp");
_Static_assert(offsetof(prop_12_t, end_of_11) == 728, "CUDA 11's cudaDeviceProp");

extern cudaError_t properties_13(struct cudaDeviceProp *p, int device) __asm__("rt_properties_13");

static int attribute(CUdevice_attribute which, int device)
{
    int v = 0;
    (void)rt_legacy.cuDeviceGetAttribute(&v, which, device);
    return v;
}

static cudaError_t properties_12(prop_12_t *out, int device)
{
    struct cudaDeviceProp p;
    RT_TRY(properties_13(&p, device));
    memset(out, 0, sizeof *out);
#define COPY(type, name, n) memcpy(&out->name, &p.name, sizeof out->name);
#define ASK(name, which) out->name[0] = attribute(CU_DEVICE_ATTRIBUTE_##which, device);
#define NOTHING(n)
    FIELDS(COPY, ASK, NOTHING)
    return cudaSuccess;
}

RT_EXPORT cudaError_t cudaGetDeviceProperties_v2(void *out, int device);
RT_EXPORT cudaError_t cudaGetDeviceProperties_v2(void *out, int device)
{
    return out == NULL ? rt_done(cudaErrorInvalidValue) : properties_12(out, device);
}

/* Programs of CUDA 12 are compiled to ask for _v2; the plain name has CUDA 11's form. */
OLD(cudaGetDeviceProperties, (void *out, int device));
RT_EXPORT cudaError_t c12_cudaGetDeviceProperties(void *out, int device)
{
    prop_12_t p;
    if (out == NULL)
        return rt_done(cudaErrorInvalidValue);
    RT_TRY(properties_12(&p, device));
    memcpy(out, &p, offsetof(prop_12_t, end_of_11));
    return cudaSuccess;
}

extern cudaError_t
choose_device_13(int *device, const struct cudaDeviceProp *wanted) __asm__("rt_choose_device_13");

OLD(cudaChooseDevice, (int *device, const prop_12_t *wanted));
RT_EXPORT cudaError_t c12_cudaChooseDevice(int *device, const prop_12_t *wanted)
{
    struct cudaDeviceProp p;
    if (wanted == NULL)
        return rt_done(cudaErrorInvalidValue);
    memset(&p, 0, sizeof p);
    p.major = wanted->major[0];
    p.minor = wanted->minor[0];
    return choose_device_13(device, &p);
}

/* --- names that CUDA 13 has no more ----------------------------------------------------------- */

RT_EXPORT cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t start, cudaEvent_t end);
RT_EXPORT cudaError_t cudaEventElapsedTime_v2(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    return cudaEventElapsedTime(ms, start, end);
}

RT_EXPORT cudaError_t cudaThreadSynchronize(void);
RT_EXPORT cudaError_t cudaThreadSynchronize(void)
{
    return cudaDeviceSynchronize();
}

RT_EXPORT cudaError_t cudaThreadExit(void);
RT_EXPORT cudaError_t cudaThreadExit(void)
{
    return cudaDeviceReset();
}
