/* Physical memory that is passed on: a file that holds process and handle, for this process only.
 */
#include "vmm.h"

#include <sys/mman.h>
#include <unistd.h>

typedef struct passed {
    pid_t pid;
    CUmemGenericAllocationHandle handle;
} passed_t;

SIM_API CUresult cuMemExportToShareableHandle(void *shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags)
{
    VMM_ENTER(cuMemExportToShareableHandle);
    passed_t passed = {getpid(), handle};
    if (!shareableHandle || flags || handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    physical_t *p = sim_vmm_handle_locked(handle);
    bool ok = p && p->prop.requestedHandleTypes & handleType;
    pthread_mutex_unlock(&sim_vmm_mu);
    if (!ok) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = memfd_create("simcuda", MFD_CLOEXEC);
    if (fd < 0 || pwrite(fd, &passed, sizeof(passed), 0) != sizeof(passed)) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)shareableHandle = fd;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                void *osHandle,
                                                CUmemAllocationHandleType shHandleType)
{
    VMM_ENTER(cuMemImportFromShareableHandle);
    passed_t passed;
    int fd = (int)(intptr_t)osHandle;
    if (!handle || shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread(fd, &passed, sizeof(passed), 0) != sizeof(passed)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (passed.pid != getpid()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    physical_t *p = sim_vmm_handle_locked(passed.handle);
    if (p) {
        p->references++;
        *handle = passed.handle;
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
