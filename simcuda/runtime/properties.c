/*
 * cudaDeviceProp is a picture of the device attributes: each field that is an attribute stands in
 * the table below with the attribute that fills it (driver_types.h, cudaDeviceProp; cuda.h,
 * CUdevice_attribute). An attribute that the driver does not know leaves its field zero.
 */
#include "rt.h"

#include <string.h>

typedef struct {
    size_t offset;
    enum cudaDeviceAttr attr;
    unsigned char bytes;
} field_t;

#define F(field, attribute)                                                                        \
    {                                                                                              \
        offsetof(struct cudaDeviceProp, field), cudaDevAttr##attribute,                            \
            sizeof(((struct cudaDeviceProp *)0)->field)                                            \
    }

static const field_t fields[] = {
    F(sharedMemPerBlock, MaxSharedMemoryPerBlock),
    F(regsPerBlock, MaxRegistersPerBlock),
    F(warpSize, WarpSize),
    F(memPitch, MaxPitch),
    F(maxThreadsPerBlock, MaxThreadsPerBlock),
    F(maxThreadsDim[0], MaxBlockDimX),
    F(maxThreadsDim[1], MaxBlockDimY),
    F(maxThreadsDim[2], MaxBlockDimZ),
    F(maxGridSize[0], MaxGridDimX),
    F(maxGridSize[1], MaxGridDimY),
    F(maxGridSize[2], MaxGridDimZ),
    F(totalConstMem, TotalConstantMemory),
    F(major, ComputeCapabilityMajor),
    F(minor, ComputeCapabilityMinor),
    F(textureAlignment, TextureAlignment),
    F(texturePitchAlignment, TexturePitchAlignment),
    F(multiProcessorCount, MultiProcessorCount),
    F(integrated, Integrated),
    F(canMapHostMemory, CanMapHostMemory),
    F(maxTexture1D, MaxTexture1DWidth),
    F(maxTexture2D[0], MaxTexture2DWidth),
    F(maxTexture2D[1], MaxTexture2DHeight),
    F(maxTexture3D[0], MaxTexture3DWidth),
    F(maxTexture3D[1], MaxTexture3DHeight),
    F(maxTexture3D[2], MaxTexture3DDepth),
    F(surfaceAlignment, SurfaceAlignment),
    F(concurrentKernels, ConcurrentKernels),
    F(ECCEnabled, EccEnabled),
    F(pciBusID, PciBusId),
    F(pciDeviceID, PciDeviceId),
    F(pciDomainID, PciDomainId),
    F(tccDriver, TccDriver),
    F(asyncEngineCount, AsyncEngineCount),
    F(unifiedAddressing, UnifiedAddressing),
    F(memoryBusWidth, GlobalMemoryBusWidth),
    F(l2CacheSize, L2CacheSize),
    F(persistingL2CacheMaxSize, MaxPersistingL2CacheSize),
    F(maxThreadsPerMultiProcessor, MaxThreadsPerMultiProcessor),
    F(streamPrioritiesSupported, StreamPrioritiesSupported),
    F(globalL1CacheSupported, GlobalL1CacheSupported),
    F(localL1CacheSupported, LocalL1CacheSupported),
    F(sharedMemPerMultiprocessor, MaxSharedMemoryPerMultiprocessor),
    F(regsPerMultiprocessor, MaxRegistersPerMultiprocessor),
    F(managedMemory, ManagedMemory),
    F(isMultiGpuBoard, IsMultiGpuBoard),
    F(multiGpuBoardGroupID, MultiGpuBoardGroupID),
    F(hostNativeAtomicSupported, HostNativeAtomicSupported),
    F(pageableMemoryAccess, PageableMemoryAccess),
    F(concurrentManagedAccess, ConcurrentManagedAccess),
    F(computePreemptionSupported, ComputePreemptionSupported),
    F(canUseHostPointerForRegisteredMem, CanUseHostPointerForRegisteredMem),
    F(cooperativeLaunch, CooperativeLaunch),
    F(sharedMemPerBlockOptin, MaxSharedMemoryPerBlockOptin),
    F(pageableMemoryAccessUsesHostPageTables, PageableMemoryAccessUsesHostPageTables),
    F(directManagedMemAccessFromHost, DirectManagedMemAccessFromHost),
    F(maxBlocksPerMultiProcessor, MaxBlocksPerMultiprocessor),
    F(accessPolicyMaxWindowSize, MaxAccessPolicyWindowSize),
    F(reservedSharedMemPerBlock, ReservedSharedMemoryPerBlock),
    F(hostRegisterSupported, HostRegisterSupported),
    F(sparseCudaArraySupported, SparseCudaArraySupported),
    F(hostRegisterReadOnlySupported, HostRegisterReadOnlySupported),
    F(timelineSemaphoreInteropSupported, TimelineSemaphoreInteropSupported),
    F(memoryPoolsSupported, MemoryPoolsSupported),
    F(gpuDirectRDMASupported, GPUDirectRDMASupported),
    F(gpuDirectRDMAFlushWritesOptions, GPUDirectRDMAFlushWritesOptions),
    F(gpuDirectRDMAWritesOrdering, GPUDirectRDMAWritesOrdering),
    F(memoryPoolSupportedHandleTypes, MemoryPoolSupportedHandleTypes),
    F(deferredMappingCudaArraySupported, DeferredMappingCudaArraySupported),
    F(ipcEventSupported, IpcEventSupport),
    F(clusterLaunch, ClusterLaunch),
    F(deviceNumaConfig, NumaConfig),
    F(deviceNumaId, NumaId),
    F(mpsEnabled, MpsEnabled),
    F(hostNumaId, HostNumaId),
};

static void fill(struct cudaDeviceProp *p, CUdevice dev)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const field_t *f = &fields[i];
        int v = 0;
        if (rt_legacy.cuDeviceGetAttribute(&v, (CUdevice_attribute)(int)f->attr, dev) !=
            CUDA_SUCCESS)
            continue;
        size_t wide = (size_t)v;
        if (f->bytes == sizeof wide)
            memcpy((char *)p + f->offset, &wide, sizeof wide);
        else
            memcpy((char *)p + f->offset, &v, sizeof v);
    }
}

RT_FN_UNBOUND(cudaGetDeviceProperties, (struct cudaDeviceProp * p, int device), p, device)
{
    RT_NEED(p);
    RT_TRY(rt_init());
    CUdevice dev;
    if (rt_legacy.cuDeviceGet(&dev, device) != CUDA_SUCCESS)
        return cudaErrorInvalidDevice;
    memset(p, 0, sizeof *p);
    RT_TRY(rt_err(rt_legacy.cuDeviceGetName(p->name, (int)sizeof p->name, dev)));
    RT_TRY(rt_err(rt_legacy.cuDeviceTotalMem(&p->totalGlobalMem, dev)));
    (void)rt_legacy.cuDeviceGetUuid(&p->uuid, dev);
    fill(p, dev);
    return cudaSuccess;
}

/* The first device of the compute capability asked for, else the first. */
RT_FN_UNBOUND(cudaChooseDevice, (int *device, const struct cudaDeviceProp *wanted), device, wanted)
{
    RT_NEED(device);
    RT_NEED(wanted);
    RT_TRY(rt_init());
    int count = 0;
    RT_TRY(rt_err(rt_legacy.cuDeviceGetCount(&count)));
    *device = 0;
    for (int i = 0; i < count; i++) {
        struct cudaDeviceProp p;
        RT_TRY(cudaGetDeviceProperties_body(&p, i));
        if (p.major == wanted->major && p.minor == wanted->minor) {
            *device = i;
            break;
        }
    }
    return cudaSuccess;
}
