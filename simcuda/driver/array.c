/* Memory that is not linear: arrays and mipmapped arrays. They count against the device's memory
 * and can run out. Hardware hides how elements lie in an array; here they lie row by row, so that a
 * copy finds them. */
#include "sim.h"

#include <stdlib.h>

enum { MAGIC = 0x41525259 };

typedef struct block {
    uint32_t magic;
    bool level; /* of a mipmapped array: owns nothing */
    unsigned levels;
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
    if (sim_heap_find(b->dev, b->at, &a)) {
        if (sim_opt.free_waits) {
            sim_wait_owner(a.ctx); /* as linear memory does; not asked of hardware */
        }
        sim_race_host_write(a.base, a.size);
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

/* cuda.h, cuMipmappedArrayCreate: each level has half of every extent, layers excepted. */
static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR l = *d;
    bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    l.Width = d->Width >> level ? d->Width >> level : 1;
    l.Height = d->Height && !(d->Height >> level) ? 1 : d->Height >> level;
    l.Depth = layers ? d->Depth : d->Depth && !(d->Depth >> level) ? 1 : d->Depth >> level;
    return l;
}

static size_t bytes_before(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned level)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < level; i++) {
        CUDA_ARRAY3D_DESCRIPTOR l = level_of(d, i);
        bytes += array_bytes(&l);
    }
    return bytes;
}

/* "clamped to the range [1, 1 + floor(log2(max(width, height, depth)))]" */
static unsigned clamped(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)
{
    size_t most = d->Width > d->Height ? d->Width : d->Height;
    unsigned n = 1;
    for (most = most > d->Depth ? most : d->Depth; most > 1; most /= 2) {
        n++;
    }
    return levels < 1 ? 1 : levels < n ? levels : n;
}

CUresult sim_array_find(CUarray handle, sim_array_t *out)
{
    block_t *b = (block_t *)handle;
    if (!b || b->magic != MAGIC) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    out->at = b->at;
    out->element = element_bytes(b->desc.Format) * b->desc.NumChannels;
    out->width = b->desc.Width * out->element;
    out->height = b->desc.Height ? b->desc.Height : 1;
    out->depth = b->desc.Depth ? b->desc.Depth : 1;
    return CUDA_SUCCESS;
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
    levels = clamped(desc, levels);
    SIM_TRY(make(ctx->dev, ctx, bytes_before(desc, levels), &b));
    b->levels = levels;
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
    if (!pLevelArray || (m && m->magic == MAGIC && level >= m->levels)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!m || m->magic != MAGIC) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    SIM_TRY(make(m->dev, NULL, 0, &b));
    b->level = true;
    b->desc = level_of(&m->desc, level);
    b->at = m->at + bytes_before(&m->desc, level);
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
