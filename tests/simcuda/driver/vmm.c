/* Physical memory of cuMemCreate and its handles; where it is mapped is vmm_map.c's.
 *
 * It belongs to the process and not to a context. "The memory allocation will be freed when all
 * outstanding mappings to the memory are unmapped and when all outstanding references to the handle
 * ... are also released" (cuda.h, cuMemRelease). Handles are passed on within the process only. */
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t sim_vmm_mu = PTHREAD_MUTEX_INITIALIZER;
static physical_t *all;

/* What owns it in the heap, where every allocation has a context: no call can destroy this one. */
static struct CUctx_st process[SIM_MAX_DEVICES];

/* A handle that is still referenced; any number may be asked for. */
physical_t *sim_vmm_handle_locked(CUmemGenericAllocationHandle handle)
{
    physical_t *p = all;
    while (p && (uintptr_t)p != handle) {
        p = p->next;
    }
    return p && p->references ? p : NULL;
}

void sim_vmm_drop_if_unused_locked(physical_t *p)
{
    if (p->references || p->mappings) {
        return;
    }
    for (physical_t **at = &all; *at; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    sim_vmm_empty(p);
    sim_heap_free(p->dev, p->at, false);
    free(p);
}

static CUresult check_prop(const CUmemAllocationProp *p, sim_device_t **d)
{
    if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return p->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? sim_device_get(p->location.id, d)
                                                           : CUDA_ERROR_NOT_SUPPORTED;
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
    sim_device_t *d;
    SIM_ENTER(cuMemGetAllocationGranularity);
    (void)option;
    SIM_TRY(check_prop(prop, &d));
    if (!granularity) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = SIM_PAGE;
    return CUDA_SUCCESS;
}

/* cuda.h, cuMemCreate: size a multiple of the granularity, flags 0; no context is needed. */
SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    sim_device_t *d;
    SIM_ENTER(cuMemCreate);
    SIM_TRY(check_prop(prop, &d));
    if (!handle || size == 0 || size % SIM_PAGE || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    physical_t *p = calloc(1, sizeof(*p));
    if (!p) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult rc = sim_heap_alloc(d, &process[d->ordinal], size, SIM_ARRAY, NULL, &p->at);
    if (rc != CUDA_SUCCESS) {
        free(p);
        return rc;
    }
    p->dev = d;
    p->size = size;
    p->prop = *prop;
    p->references = 1;
    pthread_mutex_lock(&sim_vmm_mu);
    p->next = all;
    all = p;
    pthread_mutex_unlock(&sim_vmm_mu);
    *handle = (uintptr_t)p;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemRelease);
    pthread_mutex_lock(&sim_vmm_mu);
    physical_t *p = sim_vmm_handle_locked(handle);
    if (p) {
        p->references--;
        sim_vmm_drop_if_unused_locked(p);
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    SIM_ENTER(cuMemRetainAllocationHandle);
    if (!handle) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    mapping_t *m = sim_vmm_at_locked((uintptr_t)addr);
    if (m) {
        m->memory->references++;
        *handle = (uintptr_t)m->memory;
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- handles that are passed on: a file that holds process and handle ---------------------------
 */
typedef struct passed {
    pid_t pid;
    CUmemGenericAllocationHandle handle;
} passed_t;

SIM_API CUresult cuMemExportToShareableHandle(void *shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags)
{
    SIM_ENTER(cuMemExportToShareableHandle);
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
    SIM_ENTER(cuMemImportFromShareableHandle);
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

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
    if (!prop) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    physical_t *p = sim_vmm_handle_locked(handle);
    if (p) {
        *prop = p->prop;
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
