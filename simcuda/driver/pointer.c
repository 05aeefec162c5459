/* What a pointer is. cuda.h, cuPointerGetAttribute: INVALID_VALUE for a pointer that no context
 * knows; cuPointerGetAttributes: SUCCESS and NULL values then. */
#include "sim.h"

#include <string.h>

typedef struct known {
    bool device, host, managed, mapped; /* mapped: device memory of cuMemMap */
    sim_vmm_t m;                        /* of which */
    uint64_t base, size, buffer_id, at;
    CUcontext ctx;
    CUmemoryPool pool;
    bool sync;
    int device_ordinal; /* of device memory */
} known_t;

static bool look_up(CUdeviceptr p, known_t *k)
{
    sim_device_t *d = sim_device_of(p);
    sim_alloc_t a;
    sim_host_t h;
    memset(k, 0, sizeof(*k));
    k->at = p;
    if (d && sim_heap_find(d, p, &a)) {
        k->device = true;
        k->base = a.base;
        k->size = a.size;
        k->buffer_id = a.buffer_id;
        k->ctx = a.ctx;
        k->device_ordinal = d->ordinal; /* from a pool of another device than the stream's */
        k->pool = a.kind == SIM_ASYNC ? a.pool : NULL;
        k->sync = a.sync_memops;
        return true;
    }
    if (!d && sim_vmm_reserved(p) && sim_vmm_find(p, &k->m)) {
        k->device = k->mapped = true; /* of no context */
        k->base = k->m.base;
        k->size = k->m.size;
        k->buffer_id = k->m.buffer_id;
        k->device_ordinal = k->m.dev->ordinal;
        return true;
    }
    if (!d && sim_host_find((void *)(uintptr_t)p, &h)) {
        k->host = h.kind != SIM_HOST_MANAGED;
        k->managed = h.kind == SIM_HOST_MANAGED;
        k->base = (uintptr_t)h.base;
        k->size = h.size;
        k->buffer_id = h.buffer_id;
        k->ctx = h.ctx;
        k->sync = h.sync_memops;
        return true;
    }
    return false;
}

/* Of mapped memory what the current context's device may do: cuMemSetAccess alone says that. */
static unsigned access_of(const known_t *k)
{
    CUcontext ctx;
    if (!k->mapped) {
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    }
    return sim_ctx_current_any(&ctx) == CUDA_SUCCESS ? k->m.access[ctx->dev->ordinal] : 0;
}

#define PUT(type, value) (*(type *)data = (type)(value))

/* Values of a pointer that may be unknown; known says whether it is. */
static CUresult value_of(const known_t *k, bool known, CUpointer_attribute what, void *data)
{
    switch (what) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(CUcontext, k->ctx);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, !known ? 0 : k->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        PUT(CUdeviceptr, known ? k->at : 0);
        break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (k->device) {
            PUT(void *, NULL);
            return CUDA_ERROR_INVALID_VALUE;
        }
        PUT(void *, known ? k->at : 0);
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* "a side effect of setting" SYNC_MEMOPS (cuda.h) */
        if (!k->device || k->mapped || !sim_heap_update(sim_device_of(k->at), k->at, true, -1)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS *)data = (CUDA_POINTER_ATTRIBUTE_P2P_TOKENS){1, 1};
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        PUT(unsigned, k->sync);
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        PUT(unsigned long long, k->buffer_id);
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        PUT(unsigned, k->managed);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, !known      ? -2
                 : k->device ? k->device_ordinal
                             : k->ctx->dev->ordinal); /* cuda.h: no device: an invalid ordinal */
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        PUT(unsigned, k->device && !k->pool && !k->mapped);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: /* "e.g. from cuMemAddressReserve" */
        PUT(CUdeviceptr, k->mapped ? k->m.range : k->base);
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        PUT(size_t, k->mapped ? k->m.range_size : k->size);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        PUT(CUdeviceptr, k->base);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        PUT(size_t, k->size);
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        PUT(unsigned, known);
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(unsigned long long, k->mapped ? k->m.handle_types : 0);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        PUT(unsigned, k->mapped && k->m.rdma);
        break;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        PUT(unsigned, 0);
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        PUT(unsigned, known ? access_of(k) : 0);
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        PUT(CUmemoryPool, k->pool);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        PUT(unsigned long long, k->buffer_id);
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    known_t k;
    SIM_ENTER(cuPointerGetAttribute);
    if (!data) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool known = look_up(ptr, &k);
    if (!known && attribute != CU_POINTER_ATTRIBUTE_MAPPED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return value_of(&k, known, attribute, data);
}

SIM_API CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes,
                                        void **data, CUdeviceptr ptr)
{
    known_t k;
    SIM_ENTER(cuPointerGetAttributes);
    if (!attributes || !data || numAttributes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool known = look_up(ptr, &k);
    for (unsigned i = 0; i < numAttributes; i++) {
        if (!data[i] || (value_of(&k, known, attributes[i], data[i]) != CUDA_SUCCESS &&
                         attributes[i] != CU_POINTER_ATTRIBUTE_HOST_POINTER)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

/* cuda.h, cuPointerSetAttribute: SYNC_MEMOPS is the one that can be set, and not of mapped memory:
 * "operation not supported", seen with a V100 (github.com/openucx/ucx/issues/9895). */
SIM_API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                       CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerSetAttribute);
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool on = *(const unsigned *)value != 0;
    sim_device_t *d = sim_device_of(ptr);
    sim_vmm_t m;
    if (!d && sim_vmm_reserved(ptr) && sim_vmm_find(ptr, &m)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    bool ok = d ? sim_heap_update(d, ptr, on, -1) : sim_host_set_sync((void *)(uintptr_t)ptr, on);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
