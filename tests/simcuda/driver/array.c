/* Memory that is not linear, as bytes that are taken: arrays and mipmapped arrays. They count
 * against the device's memory and can run out; copies to arrays are not modelled. */
#include "sim.h"

#include <stdlib.h>

enum { MAGIC = 0x41525259 };

typedef struct block {
    uint32_t magic;
    bool level; /* of a mipmapped array: owns nothing */
    sim_device_t *dev;
    CUdeviceptr at;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct block *next, *prev; /* all live ones: a context may die before its arrays */
    struct block *first_level;
} block_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static block_t *blocks;

static size_t element_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static CUresult make(sim_device_t *d, CUcontext ctx, size_t bytes, block_t **out)
{
    block_t *b = calloc(1, sizeof(*b));
    CUresult rc = b ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (b && bytes) {
        rc = sim_heap_alloc(d, ctx, bytes, SIM_ARRAY, NULL, &b->at);
    }
    if (rc != CUDA_SUCCESS) {
        free(b);
        return rc;
    }
    b->magic = MAGIC;
    b->dev = d;
    pthread_mutex_lock(&mu);
    b->next = blocks;
    if (blocks) {
        blocks->prev = b;
    }
    blocks = b;
    pthread_mutex_unlock(&mu);
    *out = b;
    return CUDA_SUCCESS;
}

static void forget_locked(block_t *b)
{
    if (b->next) {
        b->next->prev = b->prev;
    }
    if (b->prev) {
        b->prev->next = b->next;
    } else {
        blocks = b->next;
    }
    b->magic = 0;
    free(b);
}

static CUresult destroy(void *handle)
{
    block_t *b = handle;
    if (!b || b->magic != MAGIC || b->level) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_alloc_t a;
    if (sim_opt.free_waits && sim_heap_find(b->dev, b->at, &a)) {
        sim_wait_owner(a.ctx); /* as linear memory does; not asked of hardware */
    }
    CUresult rc = sim_heap_free(b->dev, b->at, false);
    pthread_mutex_lock(&mu);
    for (block_t *level; b; b = level) { /* itself, then its levels */
        level = b->first_level;
        forget_locked(b);
    }
    pthread_mutex_unlock(&mu);
    return rc == CUDA_SUCCESS ? rc : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    size_t h = d->Height ? d->Height : 1, z = d->Depth ? d->Depth : 1;
    return d->Width * h * z * element_bytes(d->Format) * d->NumChannels;
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels)
{
    CUcontext ctx;
    block_t *b;
    SIM_TRY(sim_ctx_current(&ctx));
    if (!out || !desc || array_bytes(desc) == 0 ||
        (desc->NumChannels != 1 && desc->NumChannels != 2 && desc->NumChannels != 4)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    SIM_TRY(make(ctx->dev, ctx, array_bytes(desc) + (levels > 1 ? array_bytes(desc) / 2 : 0), &b));
    b->desc = *desc;
    *out = (CUarray)b;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuArrayCreate_v2(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    SIM_ENTER(cuArrayCreate_v2);
    if (!pAllocateArray) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = pAllocateArray->Width,
                                 .Height = pAllocateArray->Height,
                                 .Format = pAllocateArray->Format,
                                 .NumChannels = pAllocateArray->NumChannels};
    return create(pHandle, &d, 1);
}

SIM_API CUresult cuArray3DCreate_v2(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    SIM_ENTER(cuArray3DCreate_v2);
    return create(pHandle, pAllocateArray, 1);
}

SIM_API CUresult cuArrayDestroy(CUarray hArray)
{
    CUcontext ctx;
    SIM_ENTER(cuArrayDestroy);
    SIM_TRY(sim_ctx_of_free(&ctx));
    return destroy(hArray);
}

static CUresult describe(void *handle, CUDA_ARRAY3D_DESCRIPTOR *out)
{
    block_t *b = handle;
    if (!b || b->magic != MAGIC) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *out = b->desc;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *pArrayDescriptor,
                                           CUarray hArray)
{
    SIM_ENTER(cuArray3DGetDescriptor_v2);
    return pArrayDescriptor ? describe(hArray, pArrayDescriptor) : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *pArrayDescriptor, CUarray hArray)
{
    CUDA_ARRAY3D_DESCRIPTOR d;
    SIM_ENTER(cuArrayGetDescriptor_v2);
    if (!pArrayDescriptor) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(describe(hArray, &d));
    *pArrayDescriptor = (CUDA_ARRAY_DESCRIPTOR){d.Width, d.Height, d.Format, d.NumChannels};
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                        const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                        unsigned int numMipmapLevels)
{
    SIM_ENTER(cuMipmappedArrayCreate);
    return create((CUarray *)pHandle, pMipmappedArrayDesc, numMipmapLevels);
}

SIM_API CUresult cuMipmappedArrayGetLevel(CUarray *pLevelArray, CUmipmappedArray hMipmappedArray,
                                          unsigned int level)
{
    block_t *m = (block_t *)hMipmappedArray, *b;
    SIM_ENTER(cuMipmappedArrayGetLevel);
    if (!m || m->magic != MAGIC || !pLevelArray || level > 31) {
        return pLevelArray ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(make(m->dev, NULL, 0, &b));
    b->level = true;
    b->desc = m->desc;
    b->desc.Width = m->desc.Width >> level ? m->desc.Width >> level : 1;
    b->desc.Height >>= level;
    b->desc.Depth >>= level;
    pthread_mutex_lock(&mu);
    b->first_level = m->first_level; /* a chain: freed with the whole */
    m->first_level = b;
    pthread_mutex_unlock(&mu);
    *pLevelArray = (CUarray)b;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray)
{
    CUcontext ctx;
    SIM_ENTER(cuMipmappedArrayDestroy);
    SIM_TRY(sim_ctx_of_free(&ctx)); /* [hw] as of an array */
    return destroy(hMipmappedArray);
}
