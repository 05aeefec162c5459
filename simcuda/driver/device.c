/* cuInit and the devices: names, sizes, attributes. The figures are those of a made-up device of
 * compute capability 9.0; what a figure does not matter for is 0. */
#include "../at_exit.h"
#include "sim.h"

#include <cudaProfiler.h>

#include <stdio.h>
#include <string.h>

/* exit runs what was registered later before this: to handlers older than cuInit, and to all
 * destructors, the driver has ended (tests/gpu/results/h200-580.json, teardown). */
static void end(void *unused)
{
    (void)unused;
    int up = 1;
    atomic_compare_exchange_strong(&sim_state, &up, 3);
}

/* cuda.h, cuInit: "Currently, the Flags parameter must be 0". Without a device: NO_DEVICE. */
SIM_API CUresult cuInit(unsigned int Flags)
{
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    CUresult rc = CUDA_SUCCESS;
    SIM_ENTER_IF(cuInit, false);
    if (atomic_load(&sim_state) >= 2) {
        return sim_state_error();
    }
    if (Flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_opt.devices == 0) {
        return CUDA_ERROR_NO_DEVICE;
    }
    pthread_mutex_lock(&mu);
    for (int i = 0; i < sim_opt.devices && atomic_load(&sim_state) == 0; i++) {
        sim_device_t *d = &sim_devices[i];
        rc = sim_heap_ready(d);
        if (rc != CUDA_SUCCESS) {
            break;
        }
        if (!d->primary) {
            sim_primary_make(d);
            sim_pool_init(d);
        }
    }
    if (rc == CUDA_SUCCESS) {
        int none = 0;
        if (atomic_compare_exchange_strong(&sim_state, &none, 1) && !sim_opt.ends_in_destructors) {
            sim_at_exit(end);
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

SIM_API CUresult cuDriverGetVersion(int *driverVersion)
{
    SIM_ENTER_IF(cuDriverGetVersion, false);
    if (!driverVersion) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *driverVersion = sim_opt.driver;
    return CUDA_SUCCESS;
}

CUresult sim_device_get(CUdevice dev, sim_device_t **out)
{
    if (dev < 0 || dev >= sim_opt.devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = &sim_devices[dev];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetCount(int *count)
{
    SIM_ENTER(cuDeviceGetCount);
    if (!count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = sim_opt.devices;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGet);
    if (!device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_device_get(ordinal, &d));
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetName);
    SIM_TRY(sim_device_get(dev, &d));
    if (!name || len <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(name, (size_t)len, "simcuda device %d", dev);
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice dev)
{
    sim_device_t *d;
    SIM_TRY(sim_device_get(dev, &d));
    if (!uuid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(uuid->bytes, "simcuda-device-\0", 16);
    uuid->bytes[15] = (char)dev;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetUuid);
    return get_uuid(uuid, dev);
}

SIM_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    SIM_ENTER(cuDeviceGetUuid_v2);
    return get_uuid(uuid, dev);
}

SIM_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceTotalMem_v2);
    SIM_TRY(sim_device_get(dev, &d));
    if (!bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = sim_opt.memory;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceComputeCapability);
    SIM_TRY(sim_device_get(dev, &d));
    if (!major || !minor) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetPCIBusId);
    SIM_TRY(sim_device_get(dev, &d));
    if (!pciBusId || len <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    snprintf(pciBusId, (size_t)len, "0000:%02x:00.0", dev + 1);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    unsigned domain = 0, bus = 0;
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetByPCIBusId);
    if (!dev || !pciBusId ||
        (sscanf(pciBusId, "%x:%x:", &domain, &bus) != 2 && sscanf(pciBusId, "%x:", &bus) != 1)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_device_get((CUdevice)bus - 1, &d));
    *dev = (CUdevice)bus - 1;
    return CUDA_SUCCESS;
}

#define A(name, value) [CU_DEVICE_ATTRIBUTE_##name] = value
static const int attributes[CU_DEVICE_ATTRIBUTE_MAX] = {
    A(MAX_THREADS_PER_BLOCK, 1024),
    A(MAX_BLOCK_DIM_X, 1024),
    A(MAX_BLOCK_DIM_Y, 1024),
    A(MAX_BLOCK_DIM_Z, 64),
    A(MAX_GRID_DIM_X, 2147483647),
    A(MAX_GRID_DIM_Y, 65535),
    A(MAX_GRID_DIM_Z, 65535),
    A(MAX_SHARED_MEMORY_PER_BLOCK, 49152),
    A(TOTAL_CONSTANT_MEMORY, 65536),
    A(WARP_SIZE, 32),
    A(MAX_PITCH, 2147483647),
    A(MAX_REGISTERS_PER_BLOCK, 65536),
    A(CLOCK_RATE, 1980000),
    A(TEXTURE_ALIGNMENT, 512),
    A(GPU_OVERLAP, 1),
    A(MULTIPROCESSOR_COUNT, 132),
    A(CAN_MAP_HOST_MEMORY, 1),
    A(MAXIMUM_TEXTURE1D_WIDTH, 131072),
    A(MAXIMUM_TEXTURE2D_WIDTH, 131072),
    A(MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    A(MAXIMUM_TEXTURE3D_WIDTH, 16384),
    A(MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    A(MAXIMUM_TEXTURE3D_DEPTH, 16384),
    A(SURFACE_ALIGNMENT, 512),
    A(CONCURRENT_KERNELS, 1),
    A(ECC_ENABLED, 1),
    A(MEMORY_CLOCK_RATE, 2619000),
    A(GLOBAL_MEMORY_BUS_WIDTH, 5120),
    A(L2_CACHE_SIZE, 52428800),
    A(MAX_THREADS_PER_MULTIPROCESSOR, 2048),
    A(ASYNC_ENGINE_COUNT, 3),
    A(UNIFIED_ADDRESSING, 1),
    A(TEXTURE_PITCH_ALIGNMENT, 32),
    A(STREAM_PRIORITIES_SUPPORTED, 1),
    A(GLOBAL_L1_CACHE_SUPPORTED, 1),
    A(IPC_EVENT_SUPPORTED, 1), /* by the headers the question for IPC of memory as well */
    A(LOCAL_L1_CACHE_SUPPORTED, 1),
    A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472),
    A(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536),
    A(MANAGED_MEMORY, 1),
    A(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
    A(CONCURRENT_MANAGED_ACCESS, 1),
    A(COMPUTE_PREEMPTION_SUPPORTED, 1),
    A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
    A(CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    A(COOPERATIVE_LAUNCH, 1),
    A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448),
    A(HOST_REGISTER_SUPPORTED, 1),
    A(MAX_BLOCKS_PER_MULTIPROCESSOR, 32),
    A(RESERVED_SHARED_MEMORY_PER_BLOCK, 1024),
    A(READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    A(CLUSTER_LAUNCH, 1),
    A(UNIFIED_FUNCTION_POINTERS, 1),
    A(MEM_SYNC_DOMAIN_COUNT, 1),
    A(DMA_BUF_SUPPORTED, 1),
    A(NUMA_ID, -1),
    A(HOST_NUMA_ID, -1),
};

SIM_API CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetAttribute);
    SIM_TRY(sim_device_get(dev, &d));
    if (!pi || (int)attrib < 1 || attrib >= CU_DEVICE_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *pi = dev + 1;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *pi = sim_opt.arch / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *pi = sim_opt.arch % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        *pi = !sim_opt.no_mempools;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *pi = !(sim_opt.vmm & SIM_VMM_NONE);
        break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *pi = !(sim_opt.vmm & (SIM_VMM_NONE | SIM_VMM_NO_FD));
        break;
    default:
        *pi = attributes[attrib];
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuDeviceGetProperties);
    SIM_TRY(sim_device_get(dev, &d));
    if (!prop) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                        .maxThreadsDim = {1024, 1024, 64},
                        .maxGridSize = {2147483647, 65535, 65535},
                        .sharedMemPerBlock = 49152,
                        .totalConstantMemory = 65536,
                        .SIMDWidth = 32,
                        .memPitch = 2147483647,
                        .regsPerBlock = 65536,
                        .clockRate = 1980000,
                        .textureAlign = 512};
    return CUDA_SUCCESS;
}

SIM_API CUresult cuProfilerStart(void)
{
    SIM_ENTER(cuProfilerStart);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuProfilerStop(void)
{
    SIM_ENTER(cuProfilerStop);
    return CUDA_SUCCESS;
}
