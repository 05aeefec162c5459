/* What a program said about managed memory, and reads back: advice and prefetches. The bytes stay
 * where they are, in the host's memory, so advice changes nothing but the answers.
 *
 * It is kept for whole pages of 4 KiB ("rounded down and rounded up ... to CPU page size": cuda.h,
 * cuMemAdvise), as pieces of addresses that do not overlap, in order; what has no piece was never
 * spoken about. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((uint64_t)4096)

typedef struct place {
    int type, id; /* CUmemLocationType; id of a device or of a node */
} place_t;

typedef struct advice {
    bool read_mostly;
    uint32_t accessed_by; /* a bit per device, and one for the host */
    place_t preferred, prefetched;
} advice_t;
#define HOST_BIT ((uint32_t)1 << SIM_MAX_DEVICES)

typedef struct piece {
    uint64_t from, to;
    advice_t said;
} piece_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static piece_t *pieces;
static size_t count, cap;

/* Locked. Index of the first piece that ends behind p. */
static size_t lower(uint64_t p)
{
    size_t at = 0;
    while (at < count && pieces[at].to <= p) {
        at++;
    }
    return at;
}

static void insert(size_t at, piece_t p)
{
    if (count == cap) {
        cap = cap ? cap * 2 : 16;
        pieces = realloc(pieces, cap * sizeof(*pieces));
        if (!pieces) {
            fprintf(stderr, "simcuda: no memory for advice\n");
            abort();
        }
    }
    memmove(pieces + at + 1, pieces + at, (count++ - at) * sizeof(*pieces));
    pieces[at] = p;
}

/* So that no piece reaches over p. */
static void cut(uint64_t p)
{
    size_t at = lower(p);
    if (at < count && pieces[at].from < p) {
        piece_t behind = pieces[at];
        pieces[at].to = behind.from = p;
        insert(at + 1, behind);
    }
}

/* So that the range has pieces everywhere, and none reaches over its ends. */
static void cover(uint64_t from, uint64_t to)
{
    cut(from);
    cut(to);
    for (size_t at = lower(from); from < to; from = pieces[at++].to) {
        uint64_t gap = at < count && pieces[at].from < to ? pieces[at].from : to;
        if (from < gap) {
            insert(at, (piece_t){.from = from, .to = gap});
        }
    }
}

/* Managed memory that was freed, or went with its context. */
void sim_managed_forget(uint64_t base, size_t bytes)
{
    uint64_t from = base & ~(PAGE - 1), to = (base + bytes + PAGE - 1) & ~(PAGE - 1);
    size_t kept = 0;
    pthread_mutex_lock(&mu);
    cut(from);
    cut(to);
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].from < from || pieces[i].from >= to) {
            pieces[kept++] = pieces[i];
        }
    }
    count = kept;
    pthread_mutex_unlock(&mu);
}

static bool managed(CUdeviceptr p, size_t bytes)
{
    sim_host_t h;
    return bytes && sim_host_find((void *)(uintptr_t)p, &h) && h.kind == SIM_HOST_MANAGED &&
           bytes <= h.size - (size_t)((char *)(uintptr_t)p - h.base);
}

/* --- saying ------------------------------------------------------------------------------------*/
/* A place where data may be: cuda.h, cuMemAdvise and cuMemPrefetchAsync, CUmemLocation. */
static CUresult place_of(CUmemLocation l, place_t *out)
{
    sim_device_t *d;
    switch (l.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        SIM_TRY(sim_device_get(l.id, &d));
        *out = (place_t){l.type, l.id};
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
        *out = (place_t){l.type, 0};
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: /* the one node that this machine has */
        if (l.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && l.id != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *out = (place_t){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static void apply(advice_t *said, CUmem_advise advice, place_t where)
{
    uint32_t bit = where.type == CU_MEM_LOCATION_TYPE_HOST ? HOST_BIT : 1u << where.id;
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        said->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        said->preferred = where;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        said->preferred = (place_t){0};
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        said->accessed_by |= bit;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        said->accessed_by &= ~bit;
        break;
    }
}

/* "The location argument is ignored" for three of them; ACCESSED_BY takes devices and the host. */
static CUresult advise(CUdeviceptr p, size_t bytes, CUmem_advise advice, CUmemLocation l)
{
    place_t where = {0};
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
        !managed(p, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool by = advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    if (by && l.type != CU_MEM_LOCATION_TYPE_DEVICE && l.type != CU_MEM_LOCATION_TYPE_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (by || advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION) {
        SIM_TRY(place_of(l, &where));
    }
    pthread_mutex_lock(&mu);
    uint64_t from = p & ~(PAGE - 1), to = (p + bytes + PAGE - 1) & ~(PAGE - 1);
    cover(from, to);
    for (size_t i = lower(from); i < count && pieces[i].from < to; i++) {
        apply(&pieces[i].said, advice, where);
    }
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

/* The place is the one "that the application requested"; whether it "has completed or even begun"
 * does not matter. A prefetch stands in the stream's order, and is no access: accesses meanwhile
 * are "always coherent and are allowed". What a capture does with it is not documented; no sort of
 * node is a prefetch, so it is refused [hw]. */
static CUresult prefetch(CUdeviceptr p, size_t bytes, CUmemLocation l, unsigned flags, CUstream h,
                         bool pt)
{
    CUstream s;
    place_t where;
    sim_op_t op = {.kind = SIM_OP_PREFETCH};
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    if (flags || !managed(p, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(place_of(l, &where));
    SIM_TRY(sim_submit(s, &op, false));
    pthread_mutex_lock(&mu);
    uint64_t from = p & ~(PAGE - 1), to = (p + bytes + PAGE - 1) & ~(PAGE - 1);
    cover(from, to);
    for (size_t i = lower(from); i < count && pieces[i].from < to; i++) {
        pieces[i].said.prefetched = where;
    }
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

/* Before 12.2 a place was a device, or CU_DEVICE_CPU. */
static CUmemLocation of_device(CUdevice dev)
{
    CUmemLocation l = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev};
    if (dev == CU_DEVICE_CPU) {
        l.type = CU_MEM_LOCATION_TYPE_HOST;
    }
    return l;
}

SIM_API CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t bytes, CUmem_advise advice,
                                CUmemLocation location)
{
    SIM_ENTER(cuMemAdvise_v2);
    return advise(devPtr, bytes, advice, location);
}

SIM_API CUresult cuMemAdvise(CUdeviceptr devPtr, size_t bytes, CUmem_advise advice, CUdevice device)
{
    SIM_ENTER(cuMemAdvise);
    return advise(devPtr, bytes, advice, of_device(device));
}

SIM_BOTH(cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz,
         (CUdeviceptr devPtr, size_t bytes, CUmemLocation location, unsigned int flags,
          CUstream hStream),
         prefetch(devPtr, bytes, location, flags, hStream, pt))
SIM_BOTH(cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz,
         (CUdeviceptr devPtr, size_t bytes, CUdevice dstDevice, CUstream hStream),
         prefetch(devPtr, bytes, of_device(dstDevice), 0, hStream, pt))

/* --- many at once ------------------------------------------------------------------------------*/
/* "The first entry ... must always be 0 ... each entry must be greater than the previous entry and
 * the last entry should be less than count". */
bool sim_batch_indices(const size_t *at, size_t n, size_t all)
{
    bool ok = at && n && n <= all && at[0] == 0 && at[n - 1] < all;
    for (size_t i = 1; ok && i < n; i++) {
        ok = at[i] > at[i - 1];
    }
    return ok;
}

static CUresult discard(CUdeviceptr p, size_t bytes, CUstream h, bool pt)
{
    CUstream s;
    sim_op_t op = {.kind = SIM_OP_DISCARD, .u.alloc = {.at = p, .bytes = bytes}};
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    return managed(p, bytes) ? sim_submit(s, &op, false) : CUDA_ERROR_INVALID_VALUE;
}

typedef struct batch {
    CUdeviceptr *at;
    size_t *bytes, n;
    CUmemLocation *where;
    size_t *where_at, where_n;
    bool discards;
} batch_t;

/* "Must not be legacy NULL stream". */
static CUresult many(CUstream h, bool pt, batch_t b, unsigned long long flags)
{
    if (flags || !b.n || !b.at || !b.bytes || h == CU_STREAM_LEGACY || (!h && !pt) ||
        (b.where_n && (!b.where || !sim_batch_indices(b.where_at, b.where_n, b.n)))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0, k = 0; i < b.n; i++) {
        k += k + 1 < b.where_n && b.where_at[k + 1] == i;
        if (b.discards) {
            SIM_TRY(discard(b.at[i], b.bytes[i], h, pt));
        }
        if (b.where) {
            SIM_TRY(prefetch(b.at[i], b.bytes[i], b.where[k], 0, h, pt));
        }
    }
    return CUDA_SUCCESS;
}

SIM_BOTH(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz,
         (CUdeviceptr * dptrs, size_t *sizes, size_t n, CUmemLocation *locs, size_t *locIdxs,
          size_t numLocs, unsigned long long flags, CUstream hStream),
         numLocs
             ? many(hStream, pt, (batch_t){dptrs, sizes, n, locs, locIdxs, numLocs, false}, flags)
             : CUDA_ERROR_INVALID_VALUE)
SIM_BOTH(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz,
         (CUdeviceptr * dptrs, size_t *sizes, size_t n, unsigned long long flags, CUstream hStream),
         many(hStream, pt, (batch_t){dptrs, sizes, n, NULL, NULL, 0, true}, flags))
SIM_BOTH(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz,
         (CUdeviceptr * dptrs, size_t *sizes, size_t n, CUmemLocation *locs, size_t *locIdxs,
          size_t numLocs, unsigned long long flags, CUstream hStream),
         numLocs
             ? many(hStream, pt, (batch_t){dptrs, sizes, n, locs, locIdxs, numLocs, true}, flags)
             : CUDA_ERROR_INVALID_VALUE)

/* --- asking ------------------------------------------------------------------------------------*/
static place_t same(place_t a, place_t b)
{
    return a.type == b.type && a.id == b.id ? a : (place_t){0};
}

/* What holds for the whole range. */
static advice_t of_all(uint64_t p, size_t bytes)
{
    advice_t all = {0};
    bool first = true;
    for (size_t i = lower(p);;) {
        static const advice_t nothing;
        bool here = i < count && pieces[i].from <= p;
        const advice_t *said = here ? &pieces[i].said : &nothing;
        uint64_t to = here ? pieces[i++].to : i < count ? pieces[i].from : UINT64_MAX;
        if (first) {
            all = *said;
        } else {
            all.read_mostly = all.read_mostly && said->read_mostly;
            all.accessed_by &= said->accessed_by;
            all.preferred = same(all.preferred, said->preferred);
            all.prefetched = same(all.prefetched, said->prefetched);
        }
        first = false;
        if (to - p >= bytes) {
            break;
        }
        bytes -= to - p;
        p = to;
    }
    return all;
}

/* A device, CU_DEVICE_CPU or CU_DEVICE_INVALID. What a node of the host is here is not documented:
 * the host [hw]. */
static int device_of(place_t p)
{
    return p.type == CU_MEM_LOCATION_TYPE_DEVICE    ? p.id
           : p.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID
                                                    : CU_DEVICE_CPU;
}

static CUresult put_devices(const advice_t *said, int *out, size_t most)
{
    size_t n = 0;
    for (int d = 0; d < SIM_MAX_DEVICES; d++) {
        if (n < most && said->accessed_by & 1u << d) {
            out[n++] = d;
        }
    }
    if (n < most && said->accessed_by & HOST_BIT) {
        out[n++] = CU_DEVICE_CPU;
    }
    while (n < most) {
        out[n++] = CU_DEVICE_INVALID;
    }
    return CUDA_SUCCESS;
}

static CUresult value_of(const advice_t *said, CUmem_range_attribute what, void *data, size_t size)
{
    int value;
    if (!data || (what == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY ? !size || size % 4 : size != 4)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (what) {
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        return put_devices(said, data, size / 4);
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        value = said->read_mostly;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        value = device_of(said->preferred);
        break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        value = device_of(said->prefetched);
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        value = said->preferred.type;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        value = said->preferred.id;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        value = said->prefetched.type;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        value = said->prefetched.id;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(data, &value, sizeof(value));
    return CUDA_SUCCESS;
}

static CUresult ask(void **data, size_t *sizes, CUmem_range_attribute *what, size_t n,
                    CUdeviceptr p, size_t bytes)
{
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    if (!data || !sizes || !what || !n || !managed(p, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&mu);
    advice_t all = of_all(p, bytes);
    pthread_mutex_unlock(&mu);
    for (size_t i = 0; i < n; i++) {
        SIM_TRY(value_of(&all, what[i], data[i], sizes[i]));
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemRangeGetAttribute(void *data, size_t dataSize,
                                        CUmem_range_attribute attribute, CUdeviceptr devPtr,
                                        size_t bytes)
{
    SIM_ENTER(cuMemRangeGetAttribute);
    return ask(&data, &dataSize, &attribute, 1, devPtr, bytes);
}

SIM_API CUresult cuMemRangeGetAttributes(void **data, size_t *dataSizes,
                                         CUmem_range_attribute *attributes, size_t numAttributes,
                                         CUdeviceptr devPtr, size_t bytes)
{
    SIM_ENTER(cuMemRangeGetAttributes);
    return ask(data, dataSizes, attributes, numAttributes, devPtr, bytes);
}
