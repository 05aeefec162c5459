/* Device memory that other processes open (cuIpcGetMemHandle and the rest); events are in
 * ipc_event.c.
 *
 * With shared:PATH the bytes of each device lie in a file without a name, which others reach
 * through /proc. A handle names the process, its file and the allocation's place and id; behind the
 * bytes the file holds, for each granule, the id of the exported allocation that begins there: so a
 * handle of memory that was freed since opens nothing. Opened memory takes whole pages of
 * addresses, and no device memory: the exporter's pages are mapped there. Without shared:PATH
 * handles are made, for programs that only want one, and cannot be opened. */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x4350496d6973

typedef struct handle {
    uint64_t magic;
    int32_t pid, file, ordinal;
    uint64_t offset, size, id, id_at;
} handle_t;

_Static_assert(sizeof(handle_t) <= sizeof(CUipcMemHandle), "a handle has room for ours");

typedef struct sim_import { /* under the heap's lock */
    CUdeviceptr base;
    CUcontext ctx;
    handle_t handle;
    unsigned references;
    struct sim_import *next;
} sim_import_t;

/* Behind the bytes: one id for each granule. */
static size_t id_at(const sim_heap_t *h, size_t offset)
{
    return h->va_bytes + offset / SIM_GRANULE * sizeof(uint64_t);
}

char *sim_ipc_backing(sim_heap_t *h, size_t bytes)
{
    h->file = sim_shared_on() ? memfd_create("simcuda", MFD_CLOEXEC) : -1;
    if (h->file < 0) {
        return sim_map_lazy(bytes, true);
    }
    size_t ids = bytes / SIM_GRANULE * sizeof(uint64_t);
    void *p =
        ftruncate(h->file, (off_t)(bytes + ids)) == 0
            ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, h->file, 0)
            : MAP_FAILED;
    if (p == MAP_FAILED) {
        return NULL;
    }
    madvise(p, bytes, MADV_DONTDUMP);
    return p;
}

static uint32_t pages_of(size_t offset, size_t size)
{
    return (uint32_t)((offset % SIM_PAGE + size + SIM_PAGE - 1) / SIM_PAGE);
}

static bool note_locked(const sim_heap_t *h, size_t offset, uint64_t id)
{
    return h->file < 0 ||
           pwrite(h->file, &id, sizeof(id), (off_t)id_at(h, offset)) == (ssize_t)sizeof(id);
}

/* Its pages are the heap's own again. */
static void unmap_locked(sim_heap_t *h, const sim_alloc_t *a)
{
    size_t offset = a->base - (uintptr_t)h->va, page = offset / SIM_PAGE;
    uint32_t n = pages_of(offset, a->size);
    int how = h->file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *p =
        mmap(h->backing + page * SIM_PAGE, n * SIM_PAGE, PROT_READ | PROT_WRITE,
             how | MAP_FIXED | MAP_NORESERVE, h->file, h->file < 0 ? 0 : (off_t)(page * SIM_PAGE));
    if (p == MAP_FAILED) {
        abort(); /* what is written there from now on would be another process's */
    }
    memset(h->dirty + page, 0, n);
    for (sim_import_t **at = &h->imports; *at; at = &(*at)->next) {
        if ((*at)->base == a->base) {
            sim_import_t *removed = *at;
            *at = removed->next;
            free(removed);
            return;
        }
    }
}

void sim_ipc_freed_locked(sim_heap_t *h, const sim_alloc_t *a)
{
    if (a->kind == SIM_IMPORT) {
        unmap_locked(h, a);
    } else if (a->exported) {
        note_locked(h, a->base - (uintptr_t)h->va, 0);
    }
}

/* --- handles ---------------------------------------------------------------------------------- */

/* An interior pointer gives the handle of the allocation that it lies in [hw]. Memory of a pool has
 * no handle of this kind (cuda.h, IS_LEGACY_CUDA_IPC_CAPABLE). */
SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    CUcontext ctx;
    SIM_ENTER(cuIpcGetMemHandle);
    SIM_TRY(sim_ctx_current(&ctx));
    sim_device_t *d = sim_device_of(dptr);
    if (!pHandle || !d) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_heap_t *h = &d->heap;
    handle_t handle = {.magic = MAGIC, .pid = getpid(), .file = h->file, .ordinal = d->ordinal};
    pthread_mutex_lock(&h->mu);
    sim_alloc_t *a = sim_heap_find_locked(h, dptr);
    bool ok = a && a->kind == SIM_PLAIN && dptr - a->base < a->size;
    if (ok) {
        handle.offset = a->base - (uintptr_t)h->va;
        handle.size = a->size;
        handle.id = a->buffer_id;
        handle.id_at = id_at(h, handle.offset);
        ok = note_locked(h, handle.offset, handle.id);
        a->exported = ok;
        /* Others may write there from now on. */
        memset(h->dirty + handle.offset / SIM_PAGE, 1, pages_of(handle.offset, a->size));
    }
    pthread_mutex_unlock(&h->mu);
    if (!ok) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(pHandle, 0, sizeof(*pHandle));
    memcpy(pHandle, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

/* The exporter's file; -1 where the process has ended, or the allocation was freed. */
static int open_file(const handle_t *handle)
{
    char path[64];
    uint64_t id = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)handle->pid, (int)handle->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0 && (pread(file, &id, sizeof(id), (off_t)handle->id_at) != (ssize_t)sizeof(id) ||
                      id != handle->id)) {
        close(file);
        file = -1;
    }
    return file;
}

static sim_import_t *find_import_locked(sim_heap_t *h, const handle_t *handle)
{
    sim_import_t *i = h->imports;
    while (i && (i->handle.pid != handle->pid || i->handle.id != handle->id)) {
        i = i->next;
    }
    return i;
}

/* The record that an import is found by, and its pages. */
static sim_alloc_t *place_locked(sim_heap_t *h, const handle_t *handle, int file)
{
    uint32_t n = pages_of(handle->offset, handle->size), first, len;
    uint32_t page = sim_runs_take(&h->pages, n);
    if (page == SIM_NIL) {
        return NULL;
    }
    void *p = mmap(h->backing + page * SIM_PAGE, n * SIM_PAGE, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                   (off_t)(handle->offset / SIM_PAGE * SIM_PAGE));
    sim_alloc_t *a = p == MAP_FAILED ? NULL : sim_heap_rec_locked(h);
    if (!a) {
        sim_runs_free(&h->pages, page, &first, &len);
        return NULL;
    }
    a->base = (uintptr_t)h->va + page * SIM_PAGE + handle->offset % SIM_PAGE;
    a->size = handle->size;
    h->rec[page * (SIM_PAGE / SIM_GRANULE)] = a;
    return a;
}

static CUresult map_locked(sim_heap_t *h, sim_import_t *i, int file)
{
    sim_alloc_t *a = place_locked(h, &i->handle, file);
    if (!a) {
        free(i);
        return CUDA_ERROR_MAP_FAILED;
    }
    sim_heap_fill_locked(a, i->ctx, SIM_IMPORT, NULL);
    i->base = a->base;
    i->references = 1;
    i->next = h->imports;
    h->imports = i;
    return CUDA_SUCCESS;
}

/* "may only be opened by one CUcontext per CUdevice per other process"; opened again by that one,
 * its references are counted (cuda.h) [hw: the codes]. */
static CUresult import(sim_device_t *d, CUcontext ctx, const handle_t *handle, CUdeviceptr *out)
{
    sim_heap_t *h = &d->heap;
    CUresult rc = CUDA_SUCCESS;
    int file = open_file(handle);
    sim_import_t *fresh = calloc(1, sizeof(*fresh));
    if (file < 0 || !fresh) {
        free(fresh);
        return file < 0 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&h->mu);
    sim_import_t *i = find_import_locked(h, handle);
    if (i) {
        free(fresh);
        rc = i->ctx == ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
        i->references += rc == CUDA_SUCCESS;
    } else {
        i = fresh;
        i->ctx = ctx;
        i->handle = *handle;
        rc = map_locked(h, i, file);
    }
    if (rc == CUDA_SUCCESS) {
        *out = i->base;
    }
    pthread_mutex_unlock(&h->mu);
    close(file);
    return rc;
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *from, unsigned flags)
{
    CUcontext ctx;
    handle_t handle;
    CUdeviceptr base = 0;
    SIM_TRY(sim_ctx_current(&ctx));
    /* "Must be specified as CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS" */
    if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_capture_unsafe());
    memcpy(&handle, from, sizeof(handle));
    if (handle.magic != MAGIC) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (handle.pid == getpid()) {
        return CUDA_ERROR_INVALID_CONTEXT; /* it is of "another process" [hw: the code] */
    }
    sim_device_t *d = ctx->dev;
    if (handle.file < 0 || handle.ordinal != d->ordinal) {
        fprintf(stderr, "simcuda: IPC without shared:PATH, or between devices, is not modelled\n");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    SIM_TRY(import(d, sim_ctx_home(ctx), &handle, &base));
    sim_race_forget(base, handle.size);
    *out = base;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    SIM_ENTER(cuIpcOpenMemHandle);
    return open_handle(pdptr, &handle, Flags);
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                       unsigned int Flags)
{
    SIM_ENTER(cuIpcOpenMemHandle_v2);
    return open_handle(pdptr, &handle, Flags);
}

/* NULL: nothing was opened there. */
static unsigned *references_of_locked(sim_heap_t *h, CUdeviceptr base)
{
    sim_import_t *i = h->imports;
    while (i && i->base != base) {
        i = i->next;
    }
    return i ? &i->references : NULL;
}

/* The last reference waits as a free does [hw]. */
SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    CUcontext ctx;
    SIM_ENTER(cuIpcCloseMemHandle);
    SIM_TRY(sim_ctx_current(&ctx));
    SIM_TRY(sim_capture_unsafe());
    sim_device_t *d = sim_device_of(dptr);
    if (!d) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_heap_t *h = &d->heap;
    pthread_mutex_lock(&h->mu);
    unsigned *references = references_of_locked(h, dptr);
    bool last = references && *references == 1;
    pthread_mutex_unlock(&h->mu);
    sim_alloc_t a;
    if (last && sim_opt.free_waits && sim_heap_find(d, dptr, &a)) {
        sim_wait_owner(a.ctx);
    }
    pthread_mutex_lock(&h->mu);
    references = references_of_locked(h, dptr);
    bool there = references != NULL;
    if (there && --*references == 0) {
        sim_heap_end_import_locked(h, sim_heap_find_locked(h, dptr));
    }
    pthread_mutex_unlock(&h->mu);
    return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
