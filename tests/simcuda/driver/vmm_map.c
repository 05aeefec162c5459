/* Reserved addresses, what is mapped there and who may access it.
 *
 * As with a device's own memory there are two ranges: the one that programs see, which the host can
 * never touch, and behind it one where the bytes are. All physical memory of a device is one file
 * without a name; a mapping shows its part of it at the same offset of the second range, so what is
 * mapped side by side is accessed in one piece, and what is mapped twice shows the same bytes. */
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fcntl.h>

typedef struct reservation {
    uint64_t base;
    size_t size;
    char *bytes; /* the second range */
    mapping_t *mappings;
    struct reservation *next;
} reservation_t;

static reservation_t *reservations;
static _Atomic size_t known; /* how many, readable without the lock: most programs have none */
static int files[SIM_MAX_DEVICES];

static reservation_t *of_locked(uint64_t p)
{
    reservation_t *r = reservations;
    while (r && p - r->base >= r->size) {
        r = r->next;
    }
    return r;
}

static mapping_t *in_locked(const reservation_t *r, uint64_t p)
{
    mapping_t *m = r ? r->mappings : NULL;
    while (m && p - m->base >= m->size) {
        m = m->next;
    }
    return m;
}

mapping_t *sim_vmm_at_locked(uint64_t p)
{
    return in_locked(of_locked(p), p);
}

/* --- the bytes ---------------------------------------------------------------------------------*/
/* Where processes share devices that file has the bytes of all memory. */
static int file_locked(sim_device_t *d)
{
    if (d->heap.file >= 0) {
        return d->heap.file;
    }
    if (!files[d->ordinal]) {
        int fd = memfd_create("simcuda", MFD_CLOEXEC);
        files[d->ordinal] = fd >= 0 && ftruncate(fd, (off_t)d->heap.va_bytes) == 0 ? fd : -1;
    }
    return files[d->ordinal];
}

static off_t offset_of(const physical_t *p)
{
    return (off_t)(p->at - (uintptr_t)p->dev->heap.va);
}

void sim_vmm_empty(const physical_t *p)
{
    int fd = p->dev->heap.file >= 0 ? p->dev->heap.file : files[p->dev->ordinal];
    if (fd > 0) {
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(p), (off_t)p->size);
    }
}

static bool show_locked(const reservation_t *r, uint64_t base, size_t size, const physical_t *p)
{
    return mmap(r->bytes + (base - r->base), size, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_locked(p->dev),
                offset_of(p)) != MAP_FAILED;
}

/* Work that is late must not end the process: it finds bytes that nobody reads. */
static void hide_locked(const reservation_t *r, uint64_t base, size_t size)
{
    mmap(r->bytes + (base - r->base), size, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

/* --- addresses ---------------------------------------------------------------------------------*/
/* "Hint address for the start of the address range": taken where nothing else is. */
static char *reserve(size_t size, size_t alignment, CUdeviceptr hint)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *p = hint && hint % alignment == 0 ? mmap((void *)(uintptr_t)hint, size, PROT_NONE,
                                                   flags | MAP_FIXED_NOREPLACE, -1, 0)
                                            : MAP_FAILED;
    if (p != MAP_FAILED && (uintptr_t)p == hint) {
        return p;
    }
    if (p != MAP_FAILED) {
        munmap(p, size);
    }
    char *raw = sim_map_lazy(size + alignment, false);
    if (!raw) {
        return NULL;
    }
    size_t head = -(uintptr_t)raw & (alignment - 1);
    if (head) {
        munmap(raw, head);
    }
    munmap(raw + head + size, alignment - head);
    return raw + head;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                     CUdeviceptr addr, unsigned long long flags)
{
    SIM_ENTER(cuMemAddressReserve);
    if (!ptr || size == 0 || size % SIM_PAGE || (alignment & (alignment - 1)) || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    reservation_t *r = calloc(1, sizeof(*r));
    char *at = r ? reserve(size, alignment > SIM_PAGE ? alignment : SIM_PAGE, addr) : NULL;
    char *bytes = at ? sim_map_lazy(size, true) : NULL;
    if (!bytes) {
        if (at) {
            munmap(at, size);
        }
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *r = (reservation_t){.base = (uintptr_t)at, .size = size, .bytes = bytes};
    *ptr = r->base;
    pthread_mutex_lock(&sim_vmm_mu);
    r->next = reservations;
    reservations = r;
    atomic_fetch_add(&known, 1);
    pthread_mutex_unlock(&sim_vmm_mu);
    return CUDA_SUCCESS;
}

/* "The size must match ... and the ptr given must match"; what is still mapped is in the way [hw].
 */
SIM_API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemAddressFree);
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t **at = &reservations, *r;
    while ((r = *at) && r->base != ptr) {
        at = &r->next;
    }
    bool ok = r && r->size == size && !r->mappings;
    if (ok) {
        *at = r->next;
        atomic_fetch_sub(&known, 1);
        munmap((void *)(uintptr_t)r->base, size);
        munmap(r->bytes, size);
        free(r);
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- mappings ----------------------------------------------------------------------------------*/
/* Locked. A mapping that touches the range, or NULL. */
static mapping_t *touching(const reservation_t *r, uint64_t base, size_t size)
{
    mapping_t *m = r->mappings;
    while (m && m->base + m->size <= base) {
        m = m->next;
    }
    return m && m->base < base + size ? m : NULL;
}

/* "can only create mappings on VA range reservations that are not currently mapped". */
static CUresult map_locked(CUdeviceptr ptr, size_t size, CUmemGenericAllocationHandle handle)
{
    physical_t *p = sim_vmm_handle_locked(handle);
    reservation_t *r = of_locked(ptr);
    if (!p || size > p->size || !r || size > r->size - (ptr - r->base) || touching(r, ptr, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mapping_t *m = calloc(1, sizeof(*m)), **at = &r->mappings;
    if (!m || !show_locked(r, ptr, size, p)) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    while (*at && (*at)->base < ptr) {
        at = &(*at)->next;
    }
    m->base = ptr;
    m->size = size;
    m->memory = p;
    m->buffer_id = atomic_fetch_add(&sim_next_buffer_id, 1);
    m->next = *at;
    *at = m;
    p->mappings++;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    SIM_ENTER(cuMemMap);
    if (!ptr || size == 0 || ptr % SIM_PAGE || size % SIM_PAGE || offset || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    CUresult rc = map_locked(ptr, size, handle);
    pthread_mutex_unlock(&sim_vmm_mu);
    if (rc == CUDA_SUCCESS) {
        sim_race_forget(ptr, size);
    }
    return rc;
}

/* Waits for nothing, as far as documentation says: for the race check it is a write of the host's
 * to all that was mapped. Mappings that reach over the range stay. */
SIM_API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemUnmap);
    bool any = false;
    mapping_t *gone = NULL;
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = of_locked(ptr);
    mapping_t *none = NULL;
    for (mapping_t **at = r ? &r->mappings : &none, *m; (m = *at);) {
        if (m->base < ptr || m->base + m->size > ptr + size) {
            at = &m->next;
            continue;
        }
        any = true;
        *at = m->next;
        hide_locked(r, m->base, m->size);
        m->memory->mappings--;
        sim_vmm_drop_if_unused_locked(m->memory);
        m->next = gone;
        gone = m;
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    for (mapping_t *m; (m = gone);) {
        gone = m->next;
        sim_race_host_write(m->base, m->size);
        sim_dead_note(m->base, m->size, 0);
        free(m);
    }
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- access ------------------------------------------------------------------------------------*/
/* Locked: whether [ptr, ptr+size) is mapped without a hole; `whole`: and no mapping reaches out. */
static bool mapped(const reservation_t *r, uint64_t ptr, size_t size, bool whole)
{
    mapping_t *m = touching(r, ptr, size);
    uint64_t end = ptr + size;
    if (!m || m->base > ptr || (whole && m->base < ptr)) {
        return false;
    }
    while (m->base + m->size < end) {
        if (!m->next || m->next->base != m->base + m->size) {
            return false;
        }
        m = m->next;
    }
    return !whole || m->base + m->size == end;
}

static CUresult check_desc(const CUmemAccessDesc *d)
{
    sim_device_t *dev;
    if (d->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && d->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        d->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return d->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? sim_device_get(d->location.id, &dev)
                                                           : CUDA_ERROR_NOT_SUPPORTED;
}

/* "The range must be a fully mapped address range containing all allocations". */
SIM_API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                                size_t count)
{
    SIM_ENTER(cuMemSetAccess);
    if (!ptr || !size || !desc || !count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        SIM_TRY(check_desc(&desc[i]));
    }
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = of_locked(ptr);
    bool ok = r && size <= r->size - (ptr - r->base) && mapped(r, ptr, size, true);
    for (mapping_t *m = ok ? touching(r, ptr, size) : NULL; m && m->base < ptr + size;
         m = m->next) {
        for (size_t i = 0; i < count; i++) {
            m->access[desc[i].location.id] = (uint8_t)desc[i].flags;
        }
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                CUdeviceptr ptr)
{
    sim_device_t *d;
    SIM_ENTER(cuMemGetAccess);
    if (!flags || !location) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    SIM_TRY(sim_device_get(location->id, &d));
    pthread_mutex_lock(&sim_vmm_mu);
    mapping_t *m = sim_vmm_at_locked(ptr);
    if (m) {
        *flags = m->access[d->ordinal];
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_vmm_reserved(CUdeviceptr p)
{
    if (atomic_load_explicit(&known, memory_order_relaxed) == 0) {
        return false;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    bool in = of_locked(p) != NULL;
    pthread_mutex_unlock(&sim_vmm_mu);
    return in;
}

bool sim_vmm_find(CUdeviceptr p, sim_vmm_t *out)
{
    pthread_mutex_lock(&sim_vmm_mu);
    mapping_t *m = sim_vmm_at_locked(p);
    if (m) {
        *out = (sim_vmm_t){m->base, m->size, m->buffer_id, m->memory->dev};
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return m != NULL;
}

void *sim_vmm_access(const sim_device_t *d, CUdeviceptr ptr, size_t bytes, bool write)
{
    uint8_t want = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = of_locked(ptr);
    bool ok = r && bytes && bytes <= r->size - (ptr - r->base) && mapped(r, ptr, bytes, false);
    for (mapping_t *m = ok ? touching(r, ptr, bytes) : NULL; m && m->base < ptr + bytes;
         m = m->next) {
        ok = ok && (m->access[d->ordinal] & want) == want;
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return ok ? r->bytes + (ptr - r->base) : NULL;
}
