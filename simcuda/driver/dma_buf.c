/* dma-buf descriptors of address ranges (cuMemGetHandleForAddressRange), and the other device that
 * has one: simcuda_dma reads and writes as a network card does, through what was there when the
 * descriptor was made. "Users are also expected to retrieve a new handle every time the underlying
 * physical allocation(s) ... are changed": afterwards it reaches nothing here. */
#include "vmm.h"
#include "../simcuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOST_PAGE = 4096 };

typedef struct range {
    ino_t inode; /* of the descriptor, which may be passed on under another number */
    CUdeviceptr base;
    size_t size;
    sim_device_t *dev;
    size_t pieces;
    uint64_t *ids; /* buffer ids of the allocation, or of the mappings, in order */
    struct range *next;
} range_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static range_t *ranges;

/* What is there at p: its id, its end and its device. */
static bool piece_at(CUdeviceptr p, uint64_t *id, CUdeviceptr *end, sim_device_t **dev)
{
    sim_device_t *d = sim_device_of(p);
    sim_alloc_t a;
    sim_vmm_t m;
    if (d && sim_heap_find(d, p, &a) && a.kind == SIM_PLAIN) {
        *id = a.buffer_id;
        *end = a.base + a.size;
    } else if (!d && sim_vmm_reserved(p) && sim_vmm_find(p, &m)) {
        d = m.dev;
        *id = m.buffer_id;
        *end = m.base + m.size;
    } else {
        return false;
    }
    *dev = d;
    return true;
}

/* Of a range all of which is there, on one device: how many pieces; the ids, where `ids` is. */
static size_t pieces_of(CUdeviceptr base, size_t size, uint64_t *ids, sim_device_t **dev)
{
    size_t n = 0;
    uint64_t id;
    sim_device_t *other;
    for (CUdeviceptr p = base, end; p < base + size; p = end, n++) {
        if (!piece_at(p, &id, &end, n ? &other : dev) || (n && other != *dev)) {
            return 0;
        }
        if (ids) {
            ids[n] = id;
        }
        if (sim_device_of(p) && end < base + size) {
            return 0; /* another allocation behind it is none of this one */
        }
    }
    return n;
}

static CUresult make(CUdeviceptr base, size_t size, int *out)
{
    struct stat st;
    sim_device_t *dev = NULL;
    size_t n = pieces_of(base, size, NULL, &dev);
    range_t *r = n ? calloc(1, sizeof(*r)) : NULL;
    uint64_t *ids = r ? calloc(n, sizeof(*ids)) : NULL;
    int fd = ids ? memfd_create("simcuda dma-buf", MFD_CLOEXEC) : -1;
    if (fd < 0 || fstat(fd, &st) != 0 || pieces_of(base, size, ids, &dev) != n) {
        free(ids);
        free(r);
        return n ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
    }
    *r = (range_t){st.st_ino, base, size, dev, n, ids, NULL};
    pthread_mutex_lock(&mu);
    r->next = ranges;
    ranges = r;
    pthread_mutex_unlock(&mu);
    *out = fd;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                               CUmemRangeHandleType handleType,
                                               unsigned long long flags)
{
    CUcontext ctx;
    SIM_ENTER(cuMemGetHandleForAddressRange);
    SIM_TRY(sim_ctx_current(&ctx));
    if (!handle || !dptr || !size || dptr % HOST_PAGE || size % HOST_PAGE || flags ||
        handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return make(dptr, size, handle);
}

/* The same pieces as when it was made. */
static bool unchanged(const range_t *r)
{
    sim_device_t *dev = NULL;
    uint64_t *ids = calloc(r->pieces, sizeof(*ids));
    bool same = ids && pieces_of(r->base, r->size, NULL, &dev) == r->pieces && dev == r->dev &&
                pieces_of(r->base, r->size, ids, &dev) == r->pieces;
    for (size_t i = 0; same && i < r->pieces; i++) {
        same = ids[i] == r->ids[i];
    }
    free(ids);
    return same;
}

/* No access rights of devices are asked: this is another one. */
static char *bytes_of(sim_device_t *d, CUdeviceptr p, size_t size, bool write)
{
    sim_heap_t *h = &d->heap;
    if (sim_device_of(p) != d) {
        return sim_vmm_bytes(p);
    }
    size_t offset = p - (uintptr_t)h->va;
    pthread_mutex_lock(&h->mu);
    for (size_t i = offset / SIM_PAGE; write && i <= (offset + size - 1) / SIM_PAGE; i++) {
        h->dirty[i] = 1;
    }
    pthread_mutex_unlock(&h->mu);
    return h->backing + offset;
}

SIM_API int simcuda_dma(int fd, size_t offset, void *bytes, size_t size, int write)
{
    struct stat st;
    char *at = NULL;
    if (size == 0 || fstat(fd, &st) != 0) {
        return -1;
    }
    pthread_mutex_lock(&mu);
    range_t *r = ranges;
    while (r && r->inode != st.st_ino) {
        r = r->next;
    }
    if (r && offset <= r->size && size <= r->size - offset && unchanged(r)) {
        at = bytes_of(r->dev, r->base + offset, size, write != 0);
    }
    pthread_mutex_unlock(&mu);
    if (at) {
        memcpy(write ? at : bytes, write ? bytes : at, size);
    }
    return at ? 0 : -1;
}
