/* Mappings of reserved addresses, and the devices that may access them.
 *
 * All physical memory of a device is one file without a name; a mapping shows its part of it at the
 * same offset of the range that has the bytes, so memory that is mapped side by side is accessed in
 * one piece, and memory that is mapped twice shows the same bytes. */
#include "vmm.h"
#include "../simcuda.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fcntl.h>

static int files[SIM_MAX_DEVICES];
static size_t counted; /* mappings that some device may access */

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

/* Work that runs after an unmapping must not end the process: it finds bytes that no program reads.
 */
static void hide_locked(const reservation_t *r, uint64_t base, size_t size)
{
    mmap(r->bytes + (base - r->base), size, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

/* --- mappings ----------------------------------------------------------------------------------*/
static void enter_locked(reservation_t *r, const mapping_t *m, mapping_t *as)
{
    size_t first = (m->base - r->base) / SIM_PAGE;
    for (size_t i = first; i < first + m->size / SIM_PAGE; i++) {
        r->at[i] = as;
    }
}

static bool free_locked(const reservation_t *r, uint64_t base, size_t size)
{
    for (uint64_t p = base; p < base + size; p += SIM_PAGE) {
        if (sim_vmm_in_locked(r, p)) {
            return false;
        }
    }
    return true;
}

/* "can only create mappings on VA range reservations that are not currently mapped", and of "the
 * entire range" of a handle: offset has to be 0, and size is read as the handle's [hw]. */
static CUresult map_locked(CUdeviceptr ptr, size_t size, CUmemGenericAllocationHandle handle)
{
    physical_t *p = sim_vmm_handle_locked(handle);
    reservation_t *r = sim_vmm_reservation_locked(ptr);
    if (!p || size != p->size || !sim_vmm_inside(r, ptr, size) || !free_locked(r, ptr, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mapping_t *m = calloc(1, sizeof(*m));
    if (!m || !show_locked(r, ptr, size, p)) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->base = ptr;
    m->size = size;
    m->memory = p;
    m->buffer_id = atomic_fetch_add(&sim_next_buffer_id, 1);
    enter_locked(r, m, m);
    r->mappings++;
    p->mappings++;
    sim_vmm_now.mapped_bytes += size;
    if (++sim_vmm_now.mappings > sim_vmm_now.peak_mappings) {
        sim_vmm_now.peak_mappings = sim_vmm_now.mappings;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    VMM_ENTER(cuMemMap);
    if (!ptr || size == 0 || ptr % SIM_PAGE || size % SIM_PAGE || offset || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_vmm_unsafe());
    pthread_mutex_lock(&sim_vmm_mu);
    CUresult rc = map_locked(ptr, size, handle);
    pthread_mutex_unlock(&sim_vmm_mu);
    if (rc == CUDA_SUCCESS) {
        sim_race_forget(ptr, size);
    }
    return rc;
}

/* How many handles a call is about: it takes so much time for each. */
static size_t handles(CUdeviceptr ptr, size_t size)
{
    pthread_mutex_lock(&sim_vmm_mu);
    size_t n = sim_vmm_count_locked(sim_vmm_reservation_locked(ptr), ptr, size, true);
    pthread_mutex_unlock(&sim_vmm_mu);
    return n;
}

static mapping_t *unmap_locked(reservation_t *r, uint64_t ptr, size_t size)
{
    mapping_t *removed = NULL;
    for (uint64_t p = ptr; p < ptr + size;) {
        mapping_t *m = sim_vmm_in_locked(r, p);
        p += m->size;
        enter_locked(r, m, NULL);
        hide_locked(r, m->base, m->size);
        r->mappings--;
        counted -= m->counted;
        sim_vmm_now.mappings--;
        sim_vmm_now.mapped_bytes -= m->size;
        m->memory->mappings--;
        sim_vmm_drop_if_unused_locked(m->memory);
        m->next = removed;
        removed = m;
    }
    return removed;
}

/* "cannot unmap a sub-range of an address range mapped by" one call; a gap is refused here too
 * [hw]. Waits for nothing: kernels at work there get an illegal address, or run into what is mapped
 * next. For the race check it is a write of the host's at these addresses; work that is at the same
 * memory by other addresses does not mind. */
SIM_API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    VMM_ENTER(cuMemUnmap);
    size_t n = handles(ptr, size);
    if (!n) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_vmm_unsafe());
    sim_rule_times(sim_entered, n - 1);
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = sim_vmm_reservation_locked(ptr);
    bool there = sim_vmm_count_locked(r, ptr, size, true) != 0;
    mapping_t *removed = there ? unmap_locked(r, ptr, size) : NULL;
    pthread_mutex_unlock(&sim_vmm_mu);
    for (mapping_t *m; (m = removed);) {
        removed = m->next;
        sim_race_host_write(m->base, m->size);
        sim_dead_note(m->base, m->size, 0);
        free(m);
    }
    return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- access ------------------------------------------------------------------------------------*/
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

/* vmm:nordma and mappings:N are found out here, as drivers do. */
static CUresult may_locked(reservation_t *r, CUdeviceptr ptr, size_t size)
{
    size_t fresh = 0;
    for (mapping_t *m = sim_vmm_in_locked(r, ptr); m && m->base < ptr + size;
         m = sim_vmm_in_locked(r, m->base + m->size)) {
        fresh += !m->counted;
        if (sim_opt.vmm & SIM_VMM_NO_RDMA && m->memory->prop.allocFlags.gpuDirectRDMACapable) {
            return CUDA_ERROR_UNKNOWN;
        }
    }
    return fresh > sim_opt.mappings - counted ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void grant_locked(mapping_t *m, const CUmemAccessDesc *desc, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        m->access[desc[i].location.id] = (uint8_t)desc[i].flags;
    }
    counted += !m->counted;
    m->counted = true;
}

/* "The range must be a fully mapped address range containing all allocations". */
SIM_API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                                size_t count)
{
    VMM_ENTER(cuMemSetAccess);
    size_t n = handles(ptr, size);
    if (!n || !desc || !count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        SIM_TRY(check_desc(&desc[i]));
    }
    SIM_TRY(sim_vmm_unsafe());
    sim_rule_times(sim_entered, n - 1);
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = sim_vmm_reservation_locked(ptr);
    CUresult rc = sim_vmm_count_locked(r, ptr, size, true) ? may_locked(r, ptr, size)
                                                           : CUDA_ERROR_INVALID_VALUE;
    for (mapping_t *m = rc == CUDA_SUCCESS ? sim_vmm_in_locked(r, ptr) : NULL;
         m && m->base < ptr + size; m = sim_vmm_in_locked(r, m->base + m->size)) {
        grant_locked(m, desc, count);
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return rc;
}

SIM_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                CUdeviceptr ptr)
{
    sim_device_t *d;
    VMM_ENTER(cuMemGetAccess);
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
