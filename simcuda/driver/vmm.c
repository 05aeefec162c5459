/* Physical memory of cuMemCreate and its handles; mappings are in vmm_map.c.
 *
 * It belongs to the process and not to a context. "The memory allocation will be freed when all
 * outstanding mappings to the memory are unmapped and when all outstanding references to the handle
 * ... are also released" (cuda.h, cuMemRelease). simcuda_vmm returns how much there is. */
#include "vmm.h"
#include "../simcuda.h"

#include <stdlib.h>

pthread_mutex_t sim_vmm_mu = PTHREAD_MUTEX_INITIALIZER;
simcuda_vmm_t sim_vmm_now;
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
    *(p->prev ? &p->prev->next : &all) = p->next;
    if (p->next) {
        p->next->prev = p->prev;
    }
    sim_vmm_now.bytes -= p->size;
    sim_vmm_empty(p);
    sim_heap_free(p->dev, p->at, false);
    free(p);
}

/* Of no call it is said whether captures allow it [hw?]. PyTorch's expandable segments grow in
 * captures of the global mode, and its own tests do (test_cuda_expandable_segments.py). */
CUresult sim_vmm_unsafe(void)
{
    return sim_opt.vmm & SIM_VMM_CAPTURES ? CUDA_SUCCESS : sim_capture_unsafe();
}

static CUresult check_prop(const CUmemAllocationProp *p, sim_device_t **d)
{
    if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUmemAllocationHandleType can =
        sim_opt.vmm & SIM_VMM_NO_FD ? 0 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || p->requestedHandleTypes & ~can) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return sim_device_get(p->location.id, d);
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option)
{
    sim_device_t *d;
    VMM_ENTER(cuMemGetAllocationGranularity);
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
    VMM_ENTER(cuMemCreate);
    SIM_TRY(check_prop(prop, &d));
    if (!handle || size == 0 || size % SIM_PAGE || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_vmm_unsafe());
    physical_t *p = sim_opt.vmm & SIM_VMM_NO_MEMORY ? NULL : calloc(1, sizeof(*p));
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
    if (all) {
        all->prev = p;
    }
    all = p;
    sim_vmm_now.handles++;
    sim_vmm_now.bytes += size;
    pthread_mutex_unlock(&sim_vmm_mu);
    *handle = (uintptr_t)p;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    VMM_ENTER(cuMemRelease);
    SIM_TRY(sim_vmm_unsafe());
    pthread_mutex_lock(&sim_vmm_mu);
    physical_t *p = sim_vmm_handle_locked(handle);
    if (p) {
        sim_vmm_now.handles -= --p->references == 0;
        sim_vmm_drop_if_unused_locked(p);
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    VMM_ENTER(cuMemRetainAllocationHandle);
    if (!handle) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    mapping_t *m = sim_vmm_at_locked((uintptr_t)addr);
    if (m) {
        sim_vmm_now.handles += m->memory->references++ == 0;
        *handle = (uintptr_t)m->memory;
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                        CUmemGenericAllocationHandle handle)
{
    VMM_ENTER(cuMemGetAllocationPropertiesFromHandle);
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

SIM_API void simcuda_vmm(simcuda_vmm_t *out)
{
    pthread_mutex_lock(&sim_vmm_mu);
    *out = sim_vmm_now;
    pthread_mutex_unlock(&sim_vmm_mu);
}
