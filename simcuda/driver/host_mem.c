/* Host memory that the driver knows: pinned allocations, registered ranges, managed memory. Kept
 * in one array sorted by address, because attribute queries ask for interior pointers. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* More in one piece is out of memory; a bound of this simulator's own, so that a test's answer does
 * not depend on the machine. */
#define HOST_MAX ((size_t)1 << 40)

static pthread_rwlock_t mu = PTHREAD_RWLOCK_INITIALIZER;
static sim_host_t *ranges;
static size_t count, cap;
static _Atomic size_t known;        /* count, readable without the lock: most programs have none */
static _Atomic size_t pinned_bytes; /* bytes that the driver mapped, all contexts together */

/* Locked: index of the first range that ends behind p. */
static size_t lower(const char *p)
{
    size_t lo = 0, hi = count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (ranges[mid].base + ranges[mid].size <= p) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static CUresult add(const sim_host_t *r)
{
    CUresult rc = CUDA_SUCCESS;
    pthread_rwlock_wrlock(&mu);
    size_t at = lower(r->base);
    if (at < count && ranges[at].base < r->base + r->size) {
        rc = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else {
        if (count == cap) {
            size_t want = cap ? cap * 2 : 64;
            sim_host_t *grown = realloc(ranges, want * sizeof(*grown));
            if (!grown) {
                pthread_rwlock_unlock(&mu);
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
            ranges = grown;
            cap = want;
        }
        memmove(ranges + at + 1, ranges + at, (count - at) * sizeof(*ranges));
        ranges[at] = *r;
        atomic_store(&known, ++count);
    }
    pthread_rwlock_unlock(&mu);
    if (rc == CUDA_SUCCESS) {
        sim_race_forget((uintptr_t)r->base, r->size);
    }
    return rc;
}

static void unmap(const sim_host_t *r)
{
    if (r->kind == SIM_HOST_MANAGED) {
        sim_managed_forget((uintptr_t)r->base, r->size);
    }
    munmap(r->base, r->mapped);
    atomic_fetch_sub(&pinned_bytes, r->mapped);
}

static bool remove_base(const void *p, unsigned kinds, sim_host_t *out)
{
    pthread_rwlock_wrlock(&mu);
    size_t at = lower(p);
    bool ok = at < count && ranges[at].base == (const char *)p && (kinds >> ranges[at].kind & 1);
    if (ok) {
        *out = ranges[at];
        memmove(ranges + at, ranges + at + 1, (count - at - 1) * sizeof(*ranges));
        atomic_store(&known, --count);
    }
    pthread_rwlock_unlock(&mu);
    return ok;
}

bool sim_host_find(const void *p, sim_host_t *out)
{
    if (atomic_load(&known) == 0) {
        return false;
    }
    pthread_rwlock_rdlock(&mu);
    size_t at = lower(p);
    bool in = at < count && ranges[at].base <= (const char *)p;
    if (in) {
        *out = ranges[at];
    }
    pthread_rwlock_unlock(&mu);
    return in;
}

bool sim_host_set_sync(const void *p, bool on)
{
    pthread_rwlock_wrlock(&mu);
    size_t at = lower(p);
    bool in = at < count && ranges[at].base <= (const char *)p;
    if (in) {
        ranges[at].sync_memops = on;
    }
    pthread_rwlock_unlock(&mu);
    return in;
}

void sim_host_drop_context(CUcontext ctx)
{
    pthread_rwlock_wrlock(&mu);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].ctx != ctx) {
            ranges[kept++] = ranges[i];
        } else if (ranges[i].kind != SIM_HOST_REGISTERED) {
            unmap(&ranges[i]);
        }
    }
    count = kept;
    atomic_store(&known, count);
    pthread_rwlock_unlock(&mu);
}

static CUresult host_map(CUcontext ctx, size_t bytes, unsigned flags, enum sim_host_kind kind,
                         void **out)
{
    if (bytes > HOST_MAX) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t mapped = (bytes + 4095) & ~(size_t)4095;
    void *p = MAP_FAILED;
    if (atomic_fetch_add(&pinned_bytes, mapped) + mapped <= sim_opt.host_memory) {
        p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    }
    if (p == MAP_FAILED) {
        atomic_fetch_sub(&pinned_bytes, mapped);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_host_t r = {.base = p,
                    .size = bytes,
                    .mapped = mapped,
                    .ctx = ctx,
                    .flags = flags,
                    .kind = kind,
                    .buffer_id = atomic_fetch_add(&sim_next_buffer_id, 1)};
    CUresult rc = add(&r);
    if (rc != CUDA_SUCCESS) {
        unmap(&r);
        return rc;
    }
    *out = p;
    return CUDA_SUCCESS;
}

static CUresult host_alloc(void **pp, size_t bytes, unsigned flags)
{
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    if (!pp || (flags & ~(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
                          CU_MEMHOSTALLOC_WRITECOMBINED))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes == 0) { /* NULL: h200-580.json, codes_driver/arguments */
        return CUDA_SUCCESS;
    }
    SIM_TRY(sim_capture_unsafe());
    /* Unified addressing: the memory is mapped and portable whatever the flags say; the flags of
     * cuMemHostGetFlags always include DEVICEMAP then. */
    return host_map(ctx, bytes, flags | CU_MEMHOSTALLOC_DEVICEMAP, SIM_HOST_ALLOC, pp);
}

SIM_API CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    SIM_EMPTY(pp);
    SIM_ENTER(cuMemAllocHost_v2);
    return host_alloc(pp, bytesize, 0);
}

SIM_API CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    SIM_EMPTY(pp);
    SIM_ENTER(cuMemHostAlloc);
    return host_alloc(pp, bytesize, Flags);
}

SIM_API CUresult cuMemFreeHost(void *p)
{
    CUcontext ctx;
    sim_host_t r;
    SIM_ENTER(cuMemFreeHost);
    SIM_TRY(sim_ctx_of_free(&ctx));
    if (!p) {
        return CUDA_SUCCESS;
    }
    if (!sim_host_find(p, &r) || r.base != p || r.kind != SIM_HOST_ALLOC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    if (sim_opt.free_waits) {
        sim_wait_owner(r.ctx);
    }
    sim_race_host_write((uintptr_t)p, r.size);
    if (!remove_base(p, 1u << SIM_HOST_ALLOC, &r)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unmap(&r);
    return sim_ctx_sticky(ctx);
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    CUcontext ctx;
    sim_host_t r;
    SIM_ENTER(cuMemHostGetDevicePointer_v2);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!pdptr || Flags != 0 || !sim_host_find(p, &r) || r.kind == SIM_HOST_MANAGED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pdptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned int *pFlags, void *p)
{
    CUcontext ctx;
    sim_host_t r;
    SIM_ENTER(cuMemHostGetFlags);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!pFlags || !sim_host_find(p, &r) || r.kind != SIM_HOST_ALLOC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pFlags = r.flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int Flags)
{
    CUcontext ctx;
    SIM_ENTER(cuMemHostRegister_v2);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!p || bytesize == 0 ||
        (Flags & ~(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                   CU_MEMHOSTREGISTER_READ_ONLY))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    sim_host_t r = {.base = p,
                    .size = bytesize,
                    .ctx = ctx,
                    .flags = Flags,
                    .kind = SIM_HOST_REGISTERED,
                    .buffer_id = atomic_fetch_add(&sim_next_buffer_id, 1)};
    return add(&r);
}

SIM_API CUresult cuMemHostUnregister(void *p)
{
    CUcontext ctx;
    sim_host_t r;
    SIM_ENTER(cuMemHostUnregister);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!p) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    if (sim_opt.free_waits && sim_host_find(p, &r)) {
        sim_wait_owner(r.ctx);
    }
    if (!remove_base(p, 1u << SIM_HOST_REGISTERED, &r)) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    CUcontext ctx;
    void *p;
    SIM_EMPTY(dptr);
    SIM_ENTER(cuMemAllocManaged);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!dptr || bytesize == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    SIM_TRY(host_map(ctx, bytesize, flags, SIM_HOST_MANAGED, &p));
    *dptr = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult sim_host_free_managed(CUdeviceptr p)
{
    sim_host_t r;
    if (!remove_base((void *)(uintptr_t)p, 1u << SIM_HOST_MANAGED, &r)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unmap(&r);
    return CUDA_SUCCESS;
}
