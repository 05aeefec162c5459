/* The driver API's hooks: arrays and mipmapped arrays, which are tracked. The driver serves them
 * from device memory, and tries once more after the pool has released its idle memory.
 *
 * They are known by handles, not by addresses. Reports count them by their descriptor: width x
 * height x depth x channels x bytes of the format. The driver pads and tiles, and does not say how
 * much it really takes. */
#include "base/counters.h"
#include "registry/table/registry.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/oom.h"
#include "shim/upstream/reclaim.h"
#include "shim/alloc/track.h"

/* Bits of a texel: of one channel for the plain formats, of all channels for formats that include
 * them. 0 for an unknown format. */
static size_t texel_bits(CUarray_format format, unsigned channels)
{
    switch ((unsigned)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return (size_t)channels * 8;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return (size_t)channels * 16;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return (size_t)channels * 32;
    case 0x91 ... 0x92: /* BC1: 8 bytes for 4 x 4 texels */
    case 0x97 ... 0x98: /* BC4 */
        return 4;
    case 0x93 ... 0x96: /* BC2, BC3: 16 bytes */
    case 0x99 ... 0x9e: /* BC5 to BC7 */
    case 0xc0:          /* UNORM_INT8X1 */
    case 0xc6:          /* SNORM_INT8X1 */
        return 8;
    case 0xb0: /* NV12: 8 bits and two chroma planes of a quarter of the size */
        return 12;
    case 0xc1: /* ..._INT8X2, ..._INT16X1 */
    case 0xc3:
    case 0xc7:
    case 0xc9:
    case 0xa2: /* NV16, YUY2: 8 bits and as much chroma */
    case 0xa5:
        return 16;
    case 0x9f: /* P010, P016: as NV12, in 16 bits */
    case 0xa1:
    case 0xb2: /* three channels of 8 bits in 4:4:4 */
    case 0xb4:
        return 24;
    case 0x50: /* UNORM_INT_101010_2 */
    case 0xc2: /* ..._INT8X4, ..._INT16X2 */
    case 0xc4:
    case 0xc8:
    case 0xca:
    case 0xa3 ... 0xa4: /* P210, P216 */
    case 0xa6 ... 0xa9: /* Y210, Y216, AYUV, Y410 */
        return 32;
    case 0xb3: /* three channels of 16 bits in 4:4:4 */
    case 0xb5:
        return 48;
    case 0xb1: /* Y416 */
    case 0xc5: /* ..._INT16X4 */
    case 0xcb:
        return 64;
    default:
        return 0;
    }
}

static size_t at_least_1(size_t n)
{
    return n ? n : 1;
}

static size_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level)
{
    /* Layers and the faces of a cube are a depth that does not shrink with the level. */
    bool layers = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    size_t width = at_least_1(array->Width >> level);
    size_t height = at_least_1(array->Height >> level);
    size_t depth = at_least_1(layers ? array->Depth : array->Depth >> level);
    /* Sparse arrays and those mapped later take their memory from cuMemCreate, which is counted. */
    if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    return (width * height * depth * texel_bits(array->Format, array->NumChannels) + 7) / 8;
}

/* The driver makes no levels below that of a single texel (cuda.h, cuMipmappedArrayCreate). */
static size_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    size_t bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        bytes += level_bytes(array, level);
        if (((array->Width | array->Height | array->Depth) >> level) <= 1)
            break;
    }
    return bytes;
}

static CUresult track(CUresult code, ca_kind_t kind, void *handle, size_t bytes,
                      const ca_context_t *context)
{
    ca_count(alloc_calls);
    if (code == CUDA_SUCCESS)
        ca_track_driver_alloc(kind, ca_registry_key(kind, (uint64_t)(uintptr_t)handle), bytes,
                              context, NULL);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *what)
{
    CA_REAL(cuArrayCreate_v2);
    if (!array || !what || !ca_life_active())
        return real(array, what);
    CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = what->Width,
                                    .Height = what->Height,
                                    .Format = what->Format,
                                    .NumChannels = what->NumChannels};
    ca_context_t *context = ca_context_known();
    size_t bytes = level_bytes(&flat, 0);
    CUresult code = CA_WITH_OOM(CA_KIND_ARRAY, bytes, CA_OOM_HERE,
                                CA_WITH_RECLAIM(ca_reclaim(context), real(array, what)));
    return track(code, CA_KIND_ARRAY, *array, bytes, context);
}

CA_EXPORT CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    CA_REAL(cuArray3DCreate_v2);
    if (!array || !what || !ca_life_active())
        return real(array, what);
    ca_context_t *context = ca_context_known();
    size_t bytes = level_bytes(what, 0);
    CUresult code = CA_WITH_OOM(CA_KIND_ARRAY, bytes, CA_OOM_HERE,
                                CA_WITH_RECLAIM(ca_reclaim(context), real(array, what)));
    return track(code, CA_KIND_ARRAY, *array, bytes, context);
}

CA_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *mipmap,
                                                  const CUDA_ARRAY3D_DESCRIPTOR *what,
                                                  unsigned levels)
{
    CA_REAL(cuMipmappedArrayCreate);
    if (!mipmap || !what || !ca_life_active())
        return real(mipmap, what, levels);
    ca_context_t *context = ca_context_known();
    size_t bytes = mipmap_bytes(what, levels);
    CUresult code = CA_WITH_OOM(CA_KIND_MIPMAP, bytes, CA_OOM_HERE,
                                CA_WITH_RECLAIM(ca_reclaim(context), real(mipmap, what, levels)));
    return track(code, CA_KIND_MIPMAP, *mipmap, bytes, context);
}

/* The record is erased before the driver is called: another thread may get this handle at once. */

CA_EXPORT CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    CA_REAL(cuArrayDestroy);
    ca_allocation_t record;
    if (!array || !ca_life_active())
        return real(array);
    ca_count(free_calls);
    uint64_t key = ca_registry_key(CA_KIND_ARRAY, (uint64_t)(uintptr_t)array);
    ca_peak_before_free();
    bool known = ca_registry_erase(key, &record);
    CUresult code = real(array);
    if (known && code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}

CA_EXPORT CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray mipmap)
{
    CA_REAL(cuMipmappedArrayDestroy);
    ca_allocation_t record;
    if (!mipmap || !ca_life_active())
        return real(mipmap);
    ca_count(free_calls);
    uint64_t key = ca_registry_key(CA_KIND_MIPMAP, (uint64_t)(uintptr_t)mipmap);
    ca_peak_before_free();
    bool known = ca_registry_erase(key, &record);
    CUresult code = real(mipmap);
    if (known && code != CUDA_SUCCESS)
        ca_track_restore(&record);
    return code;
}
