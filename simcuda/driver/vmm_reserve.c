/* Reserved addresses, and what others want to know of an address.
 *
 * As with a device's own memory there are two ranges: the one that programs see, which the host can
 * never touch, and behind it one where the bytes are. What is mapped where, a table knows by page.
 */
#include "vmm.h"
#include "../simcuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static reservation_t **table; /* by address */
static size_t count, capacity;
static _Atomic size_t known; /* how many, readable without the lock: most programs have none */

static size_t table_bytes(const reservation_t *r)
{
    size_t bytes = r->size / SIM_PAGE * sizeof(*r->at);
    return (bytes + 4095) / 4096 * 4096;
}

/* How many begin at p or before. */
static size_t up_to_locked(uint64_t p)
{
    size_t lo = 0, hi = count;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (table[mid]->base <= p) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static bool insert_locked(reservation_t *r)
{
    if (count == capacity) {
        size_t more = capacity ? capacity * 2 : 16;
        reservation_t **larger = realloc(table, more * sizeof(*table));
        if (!larger) {
            return false;
        }
        table = larger;
        capacity = more;
    }
    size_t i = up_to_locked(r->base);
    memmove(&table[i + 1], &table[i], (count - i) * sizeof(*table));
    table[i] = r;
    count++;
    atomic_store(&known, count);
    sim_vmm_now.reservations++;
    sim_vmm_now.reserved_bytes += r->size;
    return true;
}

static void remove_locked(const reservation_t *r)
{
    size_t i = up_to_locked(r->base);
    memmove(&table[i - 1], &table[i], (count - i) * sizeof(*table));
    count--;
    atomic_store(&known, count);
    sim_vmm_now.reservations--;
    sim_vmm_now.reserved_bytes -= r->size;
}

reservation_t *sim_vmm_reservation_locked(uint64_t p)
{
    size_t i = up_to_locked(p);
    reservation_t *r = i ? table[i - 1] : NULL;
    return r && p - r->base < r->size ? r : NULL;
}

bool sim_vmm_inside(const reservation_t *r, uint64_t p, size_t size)
{
    return r && p >= r->base && p - r->base < r->size && size <= r->size - (p - r->base);
}

mapping_t *sim_vmm_in_locked(const reservation_t *r, uint64_t p)
{
    return sim_vmm_inside(r, p, 1) ? r->at[(p - r->base) / SIM_PAGE] : NULL;
}

mapping_t *sim_vmm_at_locked(uint64_t p)
{
    return sim_vmm_in_locked(sim_vmm_reservation_locked(p), p);
}

size_t sim_vmm_count_locked(const reservation_t *r, uint64_t p, size_t size, bool whole)
{
    size_t n = 0;
    mapping_t *m = sim_vmm_in_locked(r, p);
    if (!sim_vmm_inside(r, p, size) || !m || (whole && m->base != p)) {
        return 0;
    }
    for (uint64_t end = p + size; m; m = sim_vmm_in_locked(r, m->base + m->size)) {
        n++;
        if (m->base + m->size >= end) {
            return whole && m->base + m->size > end ? 0 : n;
        }
    }
    return 0;
}

/* --- addresses ---------------------------------------------------------------------------------*/
/* "Hint address for the start of the address range": used where it is free. */
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

static bool make(reservation_t *r, size_t size, size_t alignment, CUdeviceptr hint)
{
    r->base = (uintptr_t)reserve(size, alignment, hint);
    r->size = size;
    r->bytes = r->base ? sim_map_lazy(size, true) : NULL;
    r->at = r->bytes ? sim_map_lazy(table_bytes(r), true) : NULL;
    return r->at != NULL;
}

static void unmake(reservation_t *r)
{
    if (r->base) {
        munmap((void *)(uintptr_t)r->base, r->size);
    }
    if (r->bytes) {
        munmap(r->bytes, r->size);
    }
    if (r->at) {
        munmap(r->at, table_bytes(r));
    }
    free(r);
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                     CUdeviceptr addr, unsigned long long flags)
{
    VMM_ENTER(cuMemAddressReserve);
    if (!ptr || size == 0 || size % SIM_PAGE || (alignment & (alignment - 1)) || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_vmm_unsafe());
    reservation_t *r = size > sim_opt.reservation ? NULL : calloc(1, sizeof(*r));
    if (r && !make(r, size, alignment > SIM_PAGE ? alignment : SIM_PAGE, addr)) {
        unmake(r);
        r = NULL;
    }
    if (!r) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    bool ok = insert_locked(r);
    pthread_mutex_unlock(&sim_vmm_mu);
    if (!ok) {
        unmake(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = r->base;
    return CUDA_SUCCESS;
}

/* "The size must match ... and the ptr given must match"; a mapping in it is refused [hw]. */
SIM_API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    VMM_ENTER(cuMemAddressFree);
    SIM_TRY(sim_vmm_unsafe());
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = sim_vmm_reservation_locked(ptr);
    bool ok = r && r->base == ptr && r->size == size && !r->mappings;
    if (ok) {
        remove_locked(r);
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    if (ok) {
        unmake(r);
    }
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- what others ask ---------------------------------------------------------------------------*/
bool sim_vmm_reserved(CUdeviceptr p)
{
    if (atomic_load_explicit(&known, memory_order_relaxed) == 0) {
        return false;
    }
    pthread_mutex_lock(&sim_vmm_mu);
    bool in = sim_vmm_reservation_locked(p) != NULL;
    pthread_mutex_unlock(&sim_vmm_mu);
    return in;
}

bool sim_vmm_find(CUdeviceptr p, sim_vmm_t *out)
{
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = sim_vmm_reservation_locked(p);
    mapping_t *m = sim_vmm_in_locked(r, p);
    if (m) {
        *out = (sim_vmm_t){.base = m->base,
                           .size = m->size,
                           .range = r->base,
                           .range_size = r->size,
                           .buffer_id = m->buffer_id,
                           .dev = m->memory->dev,
                           .handle_types = m->memory->prop.requestedHandleTypes,
                           .rdma = m->memory->prop.allocFlags.gpuDirectRDMACapable};
        memcpy(out->access, m->access, sizeof(out->access));
    }
    pthread_mutex_unlock(&sim_vmm_mu);
    return m != NULL;
}

size_t sim_vmm_piece(CUdeviceptr p, uint64_t *physical)
{
    pthread_mutex_lock(&sim_vmm_mu);
    mapping_t *m = sim_vmm_at_locked(p);
    size_t left = m ? m->size - (p - m->base) : 0;
    *physical = m ? m->memory->at + (p - m->base) : 0;
    pthread_mutex_unlock(&sim_vmm_mu);
    return left;
}

char *sim_vmm_bytes(uint64_t p)
{
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = sim_vmm_reservation_locked(p);
    char *at = sim_vmm_in_locked(r, p) ? r->bytes + (p - r->base) : NULL;
    pthread_mutex_unlock(&sim_vmm_mu);
    return at;
}

void *sim_vmm_access(const sim_device_t *d, CUdeviceptr ptr, size_t bytes, bool write)
{
    uint8_t want = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    pthread_mutex_lock(&sim_vmm_mu);
    reservation_t *r = sim_vmm_reservation_locked(ptr);
    bool ok = bytes && sim_vmm_count_locked(r, ptr, bytes, false);
    for (mapping_t *m = ok ? sim_vmm_in_locked(r, ptr) : NULL; m && m->base < ptr + bytes;
         m = sim_vmm_in_locked(r, m->base + m->size)) {
        ok = ok && (m->access[d->ordinal] & want) == want;
    }
    char *at = ok ? r->bytes + (ptr - r->base) : NULL;
    pthread_mutex_unlock(&sim_vmm_mu);
    return at;
}
