/* libnvidia-ml.so.1, as far as PyTorch asks it of a driver that is there: which device has a bus
 * id. Its expandable segments want that before the first mapping, to know whether handles can go
 * over a fabric: they cannot here. Not NVIDIA's header: types and codes are those of the NVML API
 * reference. */
#include <cuda.h>

#include <stddef.h>
#include <stdint.h>

#define NVML_API __attribute__((visibility("default")))

typedef int nvml_t; /* nvmlReturn_t */
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

NVML_API nvml_t nvmlInit_v2(void);
NVML_API nvml_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device);
NVML_API nvml_t nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *infos);
NVML_API nvml_t nvmlSystemGetCudaDriverVersion_v2(int *version);
NVML_API nvml_t nvmlDeviceGetGpuFabricInfoV(void *device, void *info);
NVML_API nvml_t nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, void *type);
NVML_API nvml_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *pci);

nvml_t nvmlInit_v2(void)
{
    return SUCCESS;
}

/* A handle is opaque: the ordinal, and one more so that it is not NULL. */
nvml_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
    CUdevice ordinal;

    if (!id || !device) {
        return INVALID_ARGUMENT;
    }
    if (cuDeviceGetByPCIBusId(&ordinal, id) != CUDA_SUCCESS) {
        return NOT_FOUND;
    }
    *device = (void *)(uintptr_t)((unsigned)ordinal + 1);
    return SUCCESS;
}

nvml_t nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *infos)
{
    (void)infos;
    if (!device || !count) {
        return INVALID_ARGUMENT;
    }
    *count = 0;
    return SUCCESS;
}

nvml_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return cuDriverGetVersion(version) == CUDA_SUCCESS ? SUCCESS : INVALID_ARGUMENT;
}

nvml_t nvmlDeviceGetGpuFabricInfoV(void *device, void *info)
{
    (void)device, (void)info;
    return NOT_SUPPORTED;
}

nvml_t nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, void *type)
{
    (void)device, (void)link, (void)type;
    return NOT_SUPPORTED;
}

nvml_t nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *pci)
{
    (void)device, (void)link, (void)pci;
    return NOT_SUPPORTED;
}
