/* Device memory: addresses, physical accounting, and which bytes are live.
 *
 * Two address ranges per device, of the same size: the one that programs see, which the host can
 * never read or write (as on hardware), and the backing, where the bytes are. So no free needs an
 * mprotect, and the kernel's limit on mappings is never met. Physical memory is counted in 2 MiB
 * pages: requests up to 1 MiB share pages in granules of 512 B, larger ones take whole pages
 * (tests/gpu/results/h200-580.json, layout). A page that was written is given back to the host
 * kernel when nothing lives in it, so fresh memory reads as zero and recycled memory does not. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GRANULES = (int)(SIM_PAGE / SIM_GRANULE) };

sim_device_t sim_devices[SIM_MAX_DEVICES];
_Atomic uint64_t sim_next_buffer_id = 1;

static CUresult heap_make(sim_heap_t *h)
{
    size_t bytes = sim_opt.memory * 4;
    if (bytes < (size_t)64 << 30) {
        bytes = (size_t)64 << 30;
    }
    if (sim_opt.addresses) {
        bytes = sim_opt.addresses;
    }
    uint32_t pages = (uint32_t)(bytes / SIM_PAGE);
    char *raw = sim_map_lazy(bytes + SIM_PAGE, false);
    h->backing = sim_ipc_backing(h, bytes);
    h->small = sim_map_lazy(pages, true);
    h->dirty = sim_map_lazy(pages, true);
    h->rec = sim_map_lazy(bytes / SIM_GRANULE * sizeof(*h->rec), true);
    if (!raw || !h->backing || !h->small || !h->dirty || !h->rec ||
        !sim_runs_init(&h->pages, pages, 0) ||
        !sim_runs_init(&h->granules, (uint32_t)(bytes / SIM_GRANULE), GRANULES)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uintptr_t base = ((uintptr_t)raw + SIM_PAGE - 1) & ~(uintptr_t)(SIM_PAGE - 1);
    h->va = raw + (base - (uintptr_t)raw);
    h->va_bytes = bytes;
    sim_runs_give(&h->pages, 0, pages);
    h->ready = true;
    return CUDA_SUCCESS;
}

CUresult sim_heap_ready(sim_device_t *d)
{
    pthread_mutex_lock(&d->heap.mu);
    CUresult rc = d->heap.ready ? CUDA_SUCCESS : heap_make(&d->heap);
    pthread_mutex_unlock(&d->heap.mu);
    return rc;
}

sim_device_t *sim_device_of(CUdeviceptr p)
{
    for (int i = 0; i < sim_opt.devices; i++) {
        sim_heap_t *h = &sim_devices[i].heap;
        if (h->va && p - (uintptr_t)h->va < h->va_bytes) {
            return &sim_devices[i];
        }
    }
    return NULL;
}

static int ordinal_of(const sim_heap_t *h)
{
    return ((const sim_device_t *)((const char *)h - offsetof(sim_device_t, heap)))->ordinal;
}

static bool count_pages(sim_heap_t *h, uint32_t n)
{
    if (h->used + n * SIM_PAGE > sim_opt.memory || !sim_shared_take(ordinal_of(h), n * SIM_PAGE)) {
        return false;
    }
    h->used += n * SIM_PAGE;
    if (h->used > h->peak) {
        h->peak = h->used;
    }
    return true;
}

static void uncount_pages(sim_heap_t *h, uint32_t n)
{
    h->used -= n * SIM_PAGE;
    sim_shared_give(ordinal_of(h), n * SIM_PAGE);
}

/* What the pool (or NULL) keeps is counted already. */
static uint32_t take_pages(sim_heap_t *h, uint32_t n, CUmemoryPool pool)
{
    uint64_t kept = pool ? atomic_load(sim_pool_kept(pool)) / SIM_PAGE : 0;
    uint32_t own = kept < n ? (uint32_t)kept : n;
    if (!count_pages(h, n - own)) {
        return SIM_NIL;
    }
    if (own) {
        atomic_fetch_sub(sim_pool_kept(pool), own * SIM_PAGE);
        h->kept -= own * SIM_PAGE;
    }
    uint32_t page = sim_runs_take(&h->pages, n);
    if (page == SIM_NIL) {
        uncount_pages(h, n);
    }
    return page;
}

static void free_pages(sim_heap_t *h, uint32_t page, bool counted)
{
    uint32_t n = h->pages.len[page], first, len;
    for (uint32_t i = page; i < page + n; i++) {
        uint32_t from = i;
        while (i < page + n && h->dirty[i]) {
            h->dirty[i++] = 0;
        }
        if (i > from) {
            madvise(h->backing + from * SIM_PAGE, (i - from) * SIM_PAGE,
                    h->file < 0 ? MADV_DONTNEED : MADV_REMOVE);
        }
    }
    if (counted) {
        uncount_pages(h, n);
    }
    sim_runs_free(&h->pages, page, &first, &len);
}

static uint32_t take_granules(sim_heap_t *h, uint32_t n)
{
    uint32_t g = sim_runs_take(&h->granules, n);
    if (g != SIM_NIL) {
        return g;
    }
    uint32_t page = take_pages(h, 1, NULL);
    if (page == SIM_NIL) {
        return SIM_NIL;
    }
    h->small[page] = 1;
    sim_runs_give(&h->granules, page * GRANULES, GRANULES);
    return sim_runs_take(&h->granules, n);
}

static void free_granules(sim_heap_t *h, uint32_t g)
{
    uint32_t first, len;
    sim_runs_free(&h->granules, g, &first, &len);
    if (len == GRANULES) {
        uint32_t page = first / GRANULES;
        sim_runs_remove(&h->granules, first);
        h->small[page] = 0;
        free_pages(h, page, true);
    }
}

sim_alloc_t *sim_heap_rec_locked(sim_heap_t *h)
{
    if (!h->free_rec) {
        enum { BATCH = 256 };
        sim_alloc_t *block = sim_map_lazy(BATCH * sizeof(*block), true);
        for (int i = 0; block && i < BATCH; i++) {
            block[i].next = h->free_rec;
            h->free_rec = &block[i];
        }
    }
    sim_alloc_t *a = h->free_rec;
    if (a) {
        h->free_rec = a->next;
    }
    return a;
}

static void count_requested(sim_heap_t *h, size_t bytes)
{
    h->requested += bytes;
    if (h->requested > h->peak_requested) {
        h->peak_requested = h->requested;
    }
}

static CUresult alloc_locked(sim_heap_t *h, size_t bytes, CUmemoryPool pool, sim_alloc_t **out)
{
    size_t offset;
    sim_alloc_t *a = sim_heap_rec_locked(h);
    if (!a) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (bytes <= SIM_SMALL_MAX) {
        uint32_t g = take_granules(h, (uint32_t)((bytes + SIM_GRANULE - 1) / SIM_GRANULE));
        offset = g == SIM_NIL ? SIZE_MAX : g * SIM_GRANULE;
    } else {
        uint32_t p = take_pages(h, (uint32_t)((bytes + SIM_PAGE - 1) / SIM_PAGE), pool);
        offset = p == SIM_NIL ? SIZE_MAX : p * SIM_PAGE;
    }
    if (offset == SIZE_MAX) {
        a->next = h->free_rec;
        h->free_rec = a;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    a->base = (uintptr_t)h->va + offset;
    a->size = bytes;
    h->rec[offset / SIM_GRANULE] = a;
    count_requested(h, bytes);
    *out = a;
    return CUDA_SUCCESS;
}

static void link_locked(sim_alloc_t *a, CUcontext ctx)
{
    a->ctx = ctx;
    a->prev = NULL;
    a->next = ctx->allocs;
    if (a->next) {
        a->next->prev = a;
    }
    ctx->allocs = a;
}

static void unlink_locked(sim_alloc_t *a)
{
    if (a->next) {
        a->next->prev = a->prev;
    }
    if (a->prev) {
        a->prev->next = a->next;
    } else {
        a->ctx->allocs = a->next;
    }
}

void sim_heap_fill_locked(sim_alloc_t *a, CUcontext ctx, enum sim_kind kind, CUmemoryPool pool)
{
    a->buffer_id = atomic_fetch_add_explicit(&sim_next_buffer_id, 1, memory_order_relaxed);
    a->pool = pool;
    a->kind = (uint8_t)kind;
    a->sync_memops = a->freeing = a->exported = 0;
    a->graph = (sim_graph_memory_t){.owned = kind == SIM_GRAPH};
    link_locked(a, ctx);
}

CUresult sim_heap_alloc(sim_device_t *d, CUcontext ctx, size_t bytes, enum sim_kind kind,
                        CUmemoryPool pool, CUdeviceptr *out)
{
    sim_heap_t *h = &d->heap;
    sim_alloc_t *a;
    ctx = sim_ctx_home(ctx);
    if (bytes > sim_opt.memory) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&h->mu);
    CUresult rc = alloc_locked(h, bytes, pool, &a);
    if (rc == CUDA_SUCCESS) {
        sim_heap_fill_locked(a, ctx, kind, pool);
        if (pool) {
            sim_pool_count(pool, bytes, true);
        }
        *out = a->base;
    }
    pthread_mutex_unlock(&h->mu);
    if (rc == CUDA_SUCCESS) {
        sim_race_forget(*out, bytes);
    }
    return rc;
}

sim_alloc_t *sim_heap_find_locked(sim_heap_t *h, CUdeviceptr p)
{
    size_t offset = p - (uintptr_t)h->va;
    uint32_t page = (uint32_t)(offset / SIM_PAGE);
    uint32_t first = sim_runs_find(&h->pages, page, 0);
    if (first == SIM_NIL) {
        return NULL;
    }
    if (!h->small[page]) {
        return h->rec[(size_t)first * GRANULES];
    }
    uint32_t g = sim_runs_find(&h->granules, (uint32_t)(offset / SIM_GRANULE), page * GRANULES);
    return g == SIM_NIL ? NULL : h->rec[g];
}

/* For whole pages alone: smaller allocations share theirs. */
static bool pool_keeps(sim_heap_t *h, const sim_alloc_t *a)
{
    size_t bytes = (a->size + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
    if (!a->pool || a->size <= SIM_SMALL_MAX || !sim_pool_wants(a->pool, bytes)) {
        return false;
    }
    atomic_fetch_add(sim_pool_kept(a->pool), bytes);
    h->kept += bytes;
    return true;
}

void sim_heap_trim(sim_device_t *d, CUmemoryPool pool, size_t bytes)
{
    sim_heap_t *h = &d->heap;
    pthread_mutex_lock(&h->mu);
    size_t kept = atomic_load(sim_pool_kept(pool));
    bytes = bytes / SIM_PAGE * SIM_PAGE;
    bytes = bytes < kept ? bytes : kept;
    atomic_fetch_sub(sim_pool_kept(pool), bytes);
    h->kept -= bytes;
    uncount_pages(h, (uint32_t)(bytes / SIM_PAGE));
    pthread_mutex_unlock(&h->mu);
}

static size_t whole_pages(size_t bytes)
{
    return (bytes + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE;
}

static void free_locked(sim_heap_t *h, sim_alloc_t *a)
{
    size_t offset = a->base - (uintptr_t)h->va;
    unlink_locked(a);
    bool counted = a->kind == SIM_GRAPH ? a->graph.backed : a->kind != SIM_IMPORT;
    h->graphs -= a->kind == SIM_GRAPH && counted ? whole_pages(a->size) : 0;
    sim_ipc_freed_locked(h, a);
    h->requested -= counted ? a->size : 0;
    if (a->pool) {
        sim_pool_count(a->pool, a->size, false);
    }
    h->rec[(a->kind == SIM_IMPORT ? offset / SIM_PAGE * SIM_PAGE : offset) / SIM_GRANULE] = NULL;
    if (a->kind != SIM_GRAPH && a->kind != SIM_IMPORT && a->size <= SIM_SMALL_MAX) {
        free_granules(h, (uint32_t)(offset / SIM_GRANULE));
    } else {
        free_pages(h, (uint32_t)(offset / SIM_PAGE), counted && !pool_keeps(h, a));
    }
    a->next = h->free_rec;
    h->free_rec = a;
}

/* --- memory of graphs --------------------------------------------------------------------------*/
static bool lives(const sim_alloc_t *a)
{
    return a->kind != SIM_GRAPH || a->graph.live;
}

static bool graph_freed_locked(sim_alloc_t *a, bool marked)
{
    bool ok = a->graph.live && (marked || a->graph.unfreed);
    a->graph.live -= ok;
    a->graph.unfreed = a->graph.unfreed && marked;
    return ok;
}

/* Nothing in it is live: memory that no executable graph needs is freed, and the record with the
 * node. */
static void graph_idle_locked(sim_heap_t *h, sim_alloc_t *a)
{
    if (a->graph.live) {
        return;
    }
    if (a->graph.backed && !a->graph.wanted) {
        uncount_pages(h, h->pages.len[(a->base - (uintptr_t)h->va) / SIM_PAGE]);
        h->requested -= a->size;
        h->graphs -= whole_pages(a->size);
        a->graph.backed = false;
    }
    if (!a->graph.owned) {
        free_locked(h, a);
    }
}

CUresult sim_heap_graph_reserve(sim_device_t *d, CUcontext ctx, size_t bytes, CUdeviceptr *out,
                                uint64_t *id)
{
    sim_heap_t *h = &d->heap;
    uint32_t page = SIM_NIL;
    pthread_mutex_lock(&h->mu);
    sim_alloc_t *a = bytes <= sim_opt.memory ? sim_heap_rec_locked(h) : NULL;
    if (a) {
        page = sim_runs_take(&h->pages, (uint32_t)((bytes + SIM_PAGE - 1) / SIM_PAGE));
    }
    if (page != SIM_NIL) {
        a->base = (uintptr_t)h->va + page * SIM_PAGE;
        a->size = bytes;
        h->rec[(size_t)page * GRANULES] = a;
        sim_heap_fill_locked(a, sim_ctx_home(ctx), SIM_GRAPH, NULL);
        *out = a->base;
        *id = a->buffer_id;
    } else if (a) {
        a->next = h->free_rec;
        h->free_rec = a;
    }
    pthread_mutex_unlock(&h->mu);
    if (page == SIM_NIL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_race_forget(*out, bytes);
    return CUDA_SUCCESS;
}

static sim_alloc_t *graph_find_locked(sim_heap_t *h, CUdeviceptr p, uint64_t id)
{
    sim_alloc_t *a = sim_heap_find_locked(h, p);
    return a && a->kind == SIM_GRAPH && a->base == p && (!id || a->buffer_id == id) ? a : NULL;
}

CUresult sim_heap_graph_back(sim_device_t *d, CUdeviceptr p, uint64_t id, bool on)
{
    sim_heap_t *h = &d->heap;
    pthread_mutex_lock(&h->mu);
    sim_alloc_t *a = graph_find_locked(h, p, id);
    CUresult rc = a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* it died with its context */
    if (a && on && !a->graph.backed) {
        if (count_pages(h, h->pages.len[(p - (uintptr_t)h->va) / SIM_PAGE])) {
            count_requested(h, a->size);
            h->graphs += whole_pages(a->size);
            a->graph.backed = true;
        } else {
            rc = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (rc == CUDA_SUCCESS) {
        a->graph.wanted = on;
        graph_idle_locked(h, a);
    }
    pthread_mutex_unlock(&h->mu);
    return rc;
}

size_t sim_heap_graph_bytes(sim_device_t *d)
{
    pthread_mutex_lock(&d->heap.mu);
    size_t bytes = d->heap.graphs;
    pthread_mutex_unlock(&d->heap.mu);
    return bytes;
}

bool sim_heap_graph_change(sim_device_t *d, CUdeviceptr p, uint64_t id, sim_graph_change_t change)
{
    sim_heap_t *h = &d->heap;
    pthread_mutex_lock(&h->mu);
    sim_alloc_t *a = graph_find_locked(h, p, id);
    sim_graph_memory_t *m = a ? &a->graph : NULL;
    bool ok = a != NULL;
    switch (ok ? change : SIM_GRAPH_IS_THERE) {
    case SIM_GRAPH_IS_THERE:
        break;
    case SIM_GRAPH_IS_UNFREED:
        ok = m->unfreed;
        break;
    case SIM_GRAPH_FREE_NODE_OWN:
        ok = !m->own_free && !m->other_free;
        m->own_free = true;
        break;
    case SIM_GRAPH_FREE_NODE_OTHER:
        ok = !m->own_free;
        m->other_free = m->other_free || ok;
        break;
    case SIM_GRAPH_ALLOCATED:
        m->live++;
        m->unfreed = !m->own_free;
        break;
    case SIM_GRAPH_FREE_BEGUN:
        ok = m->unfreed || m->own_free;
        m->unfreed = false;
        break;
    case SIM_GRAPH_DISOWNED:
        m->owned = false;
        graph_idle_locked(h, a);
        break;
    }
    pthread_mutex_unlock(&h->mu);
    return ok;
}

CUresult sim_heap_free(sim_device_t *d, CUdeviceptr p, bool marked)
{
    sim_heap_t *h = &d->heap;
    pthread_mutex_lock(&h->mu);
    sim_alloc_t *a = (p - (uintptr_t)h->va) % SIM_GRANULE ? NULL : sim_heap_find_locked(h, p);
    bool ok = a && a->base == p && a->kind != SIM_IMPORT &&
              (a->kind == SIM_GRAPH ? graph_freed_locked(a, marked) : a->freeing == marked);
    if (ok) {
        sim_dead_note(a->base, a->size, 0);
    }
    if (ok && a->kind == SIM_GRAPH) {
        graph_idle_locked(h, a);
    } else if (ok) {
        free_locked(h, a);
    }
    pthread_mutex_unlock(&h->mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A pool's memory is the device's: it outlives a context that was created (H200: drv_async_context
 * of tests/preload). Whether it outlives a primary one is not known [hw]; here it does not. */
void sim_heap_drop_context(sim_device_t *d, CUcontext ctx)
{
    pthread_mutex_lock(&d->heap.mu);
    for (sim_alloc_t *a = ctx->allocs, *next; a; a = next) {
        next = a->next;
        if (a->kind == SIM_ASYNC && !ctx->primary) {
            unlink_locked(a);
            link_locked(a, d->primary);
        } else {
            sim_dead_note(a->base, a->size, atomic_load(&ctx->id));
            free_locked(&d->heap, a);
        }
    }
    pthread_mutex_unlock(&d->heap.mu);
}

void sim_heap_end_import_locked(sim_heap_t *h, sim_alloc_t *a)
{
    sim_dead_note(a->base, a->size, 0);
    free_locked(h, a);
}

bool sim_heap_find(sim_device_t *d, CUdeviceptr p, sim_alloc_t *out)
{
    pthread_mutex_lock(&d->heap.mu);
    sim_alloc_t *a = sim_heap_find_locked(&d->heap, p);
    bool in = a && p - a->base < a->size && lives(a);
    if (in) {
        *out = *a;
    }
    pthread_mutex_unlock(&d->heap.mu);
    return in;
}

bool sim_heap_update(sim_device_t *d, CUdeviceptr p, int sync_memops, int freeing)
{
    pthread_mutex_lock(&d->heap.mu);
    sim_alloc_t *a = sim_heap_find_locked(&d->heap, p);
    bool ok = a && lives(a) &&
              !(freeing > 0 && (sim_alloc_freeing(a) || a->base != p || a->kind == SIM_IMPORT));
    if (ok && sync_memops >= 0) {
        a->sync_memops = (uint8_t)sync_memops;
    }
    if (ok && freeing >= 0 && a->kind == SIM_GRAPH) {
        a->graph.unfreed = !freeing;
    } else if (ok && freeing >= 0) {
        a->freeing = (uint8_t)freeing;
    }
    pthread_mutex_unlock(&d->heap.mu);
    return ok;
}

/* Every device access of every operation comes through here, when it happens; the race check looks
 * at the same bytes when the operation is submitted. */
void *sim_access(const sim_op_t *op, uint64_t ptr, size_t bytes, bool write, bool host_ok)
{
    sim_device_t *d = sim_device_of(ptr);
    char *at = NULL;
    sim_host_t host;
    if (d) {
        sim_heap_t *h = &d->heap;
        pthread_mutex_lock(&h->mu);
        sim_alloc_t *a = sim_heap_find_locked(h, ptr);
        if (a && lives(a) && ptr - a->base <= a->size && bytes <= a->size - (ptr - a->base)) {
            size_t offset = ptr - (uintptr_t)h->va;
            at = h->backing + offset;
            for (size_t p = offset / SIM_PAGE; write && p <= (offset + bytes - 1) / SIM_PAGE; p++) {
                h->dirty[p] = 1;
            }
        }
        pthread_mutex_unlock(&h->mu);
    } else if (sim_vmm_reserved(ptr)) {
        at = sim_vmm_access(sim_op_by(op, op->stream, write), ptr, bytes, write);
    } else if (host_ok || (sim_host_find((void *)(uintptr_t)ptr, &host) &&
                           bytes <= host.size - (size_t)((char *)(uintptr_t)ptr - host.base))) {
        at = (char *)(uintptr_t)ptr;
    }
    if (!at) {
        sim_dead_executed(op, ptr, bytes, write);
    }
    return at;
}
