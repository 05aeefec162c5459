/* The public functions of include/cachealloc.h that allocate and free in the order of a stream. */
#include "include/cachealloc.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "base/lock.h"
#include "shim/alloc/ordered_memory.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/hooks/api_struct.h"

#define BYTES_MOST ((size_t)1 << 47) /* as in api_memory.c */
#define ALIGNED ((size_t)512)        /* what every block is aligned to, */
#define ALIGNED_PAGES ((size_t)4096) /* and one of so many bytes */
#define PAGES_FROM ((size_t)64 << 10)

static int number_of(CUresult code)
{
    switch (code) {
    case CUDA_SUCCESS:
        return 0;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return ENOMEM;
    case CUDA_ERROR_NOT_SUPPORTED:
        return ENOTSUP;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return EBUSY;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
        return ENODEV;
    case CUDA_ERROR_NOT_FOUND:
        return ENOENT;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_INVALID_CONTEXT:
        return EINVAL;
    default:
        return EIO; /* the device's: every call on the context fails */
    }
}

/* More than that only the size can tell. */
static bool is_aligned(size_t bytes, size_t alignment)
{
    size_t most = bytes < PAGES_FROM ? ALIGNED : ALIGNED_PAGES;
    return alignment <= most && (alignment & (alignment - 1)) == 0;
}

static __attribute__((noinline)) void *alloc_slow(size_t bytes, size_t alignment, int device,
                                                  void *stream, bool alone)
{
    CUdeviceptr address = 0;
    int saved = errno;
    if (bytes == 0)
        return NULL;
    CUresult code = CUDA_ERROR_INVALID_VALUE;
    if (bytes > BYTES_MOST)
        code = CUDA_ERROR_OUT_OF_MEMORY;
    else if (is_aligned(bytes, alignment) && device >= CA_ORDERED_HERE)
        code = ca_ordered_alloc(&address, bytes, device, stream, alone);
    errno = code == CUDA_SUCCESS ? saved : number_of(code);
    return code == CUDA_SUCCESS ? (void *)(uintptr_t)address : NULL;
}

static inline __attribute__((always_inline)) void *alloc(size_t bytes, size_t alignment, int device,
                                                         void *stream)
{
    CUdeviceptr address;
    if (bytes - 1 < BYTES_MOST && is_aligned(bytes, alignment) &&
        ca_ordered_alloc_ready(&address, bytes, device, stream, false))
        return (void *)(uintptr_t)address;
    return alloc_slow(bytes, alignment, device, stream, false);
}

CA_PUBLIC void *cachealloc_alloc(size_t bytes, size_t alignment, int device, void *stream)
{
    return alloc(bytes, alignment, device, stream);
}

static __attribute__((noinline)) int free_slow(void *pointer, int device, void *stream, bool alone)
{
    int saved = errno;
    CUresult code = device >= CA_ORDERED_HERE
                        ? ca_ordered_free((CUdeviceptr)(uintptr_t)pointer, device, stream, alone)
                        : CUDA_ERROR_INVALID_VALUE;
    errno = saved;
    return number_of(code);
}

static inline __attribute__((always_inline)) int give(void *pointer, int device, void *stream,
                                                      bool alone)
{
    if (!pointer || ca_ordered_free_pooled((CUdeviceptr)(uintptr_t)pointer, device, stream, alone))
        return 0;
    return free_slow(pointer, device, stream, alone);
}

CA_PUBLIC int cachealloc_free(void *pointer, size_t bytes, int device, void *stream)
{
    (void)bytes;
    return give(pointer, device, stream, false);
}

CA_PUBLIC int cachealloc_record_stream(void *pointer, void *stream)
{
    return pointer ? number_of(ca_ordered_used_on((CUdeviceptr)(uintptr_t)pointer, stream))
                   : ENOENT;
}

/* --- as PyTorch calls them -------------------------------------------------------------------- */

static _Atomic(cachealloc_torch_refuse_t) refuse;

CA_PUBLIC void cachealloc_torch_on_refusal(cachealloc_torch_refuse_t function)
{
    atomic_store(&refuse, function);
}

static const char *reason(int number)
{
    switch (number) {
    case ENOTSUP:
        return "the library serves nothing in this process";
    case ENODEV:
        return "there is no CUDA driver";
    case EINVAL:
        return "no such device or stream";
    default:
        return "the driver answers errors";
    }
}

/* PyTorch takes NULL for memory. `refuse` throws an exception of C++ through this frame. */
static __attribute__((noinline)) void *torch_alloc_slow(size_t size, int device, void *stream)
{
    char message[200];
    void *pointer = alloc_slow(size, 0, device, stream, true);
    cachealloc_torch_refuse_t function = atomic_load(&refuse);
    if (pointer || size == 0 || !function)
        return pointer;
    if (errno == ENOMEM)
        snprintf(message, sizeof message,
                 "CUDA out of memory. Tried to allocate %zu bytes on device %d (cachealloc)", size,
                 device);
    else
        snprintf(message, sizeof message, "cachealloc: %zu bytes on device %d: %s", size, device,
                 errno == EBUSY ? "the stream is captured, which is seen only with LD_PRELOAD "
                                  "or in torch.cuda.graph"
                                : reason(errno));
    function("cachealloc_torch_alloc", __FILE__, __LINE__, message);
    return NULL;
}

CA_PUBLIC void *cachealloc_torch_alloc(ssize_t size, int device, void *stream)
{
    CUdeviceptr address;
    if ((size_t)size - 1 < BYTES_MOST &&
        ca_ordered_alloc_ready(&address, (size_t)size, device, stream, true))
        return (void *)(uintptr_t)address;
    return torch_alloc_slow((size_t)size, device, stream);
}

CA_PUBLIC void cachealloc_torch_free(void *pointer, ssize_t size, int device, void *stream)
{
    (void)size;
    (void)give(pointer, device, stream, true);
}

CA_PUBLIC void cachealloc_torch_record_stream(void *pointer, void *stream)
{
    (void)cachealloc_record_stream(pointer, stream);
}

/* --- PyTorch's pools: what is captured, where no hook sees it --------------------------------- */

#define POOLS 256

/* `number`: of the capture that goes on, 0 for none. Under the lock. */
typedef struct pool {
    uint64_t first, second, number;
    int device;
    unsigned begun; /* that are not released: graphs may share a pool, and each releases it once */
    bool used;
} pool_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static pool_t pools[POOLS];

static pool_t *find_pool(int device, uint64_t first, uint64_t second, bool take)
{
    pool_t *empty = NULL;
    for (size_t i = 0; i < POOLS; i++) {
        pool_t *one = &pools[i];
        if (!one->used)
            empty = empty ? empty : one;
        else if (one->device == device && one->first == first && one->second == second)
            return one;
    }
    if (take && empty)
        *empty = (pool_t){.first = first, .second = second, .device = device, .used = true};
    return take ? empty : NULL;
}

/* Without a place the gate stays closed for good: nothing that a graph has is handed out. */
CA_PUBLIC void cachealloc_torch_begin_pool(int device, uint64_t first, uint64_t second,
                                           void *filter)
{
    (void)filter;
    uint64_t number = ca_hooks_in_place() ? 0 : ca_capture_announced();
    if (!number)
        return;
    ca_lock_take(&lock);
    pool_t *pool = find_pool(device, first, second, true);
    uint64_t before = pool ? pool->number : 0;
    if (pool) {
        pool->number = number;
        pool->begun++;
    }
    ca_lock_drop(&lock);
    if (before)
        ca_capture_announced_end(before, pool);
}

CA_PUBLIC void cachealloc_torch_end_pool(int device, uint64_t first, uint64_t second)
{
    ca_lock_take(&lock);
    pool_t *pool = find_pool(device, first, second, false);
    uint64_t number = pool ? pool->number : 0;
    if (pool)
        pool->number = 0;
    ca_lock_drop(&lock);
    if (number)
        ca_capture_announced_end(number, pool);
}

/* The pool's address stands for what was captured in it. */
CA_PUBLIC void cachealloc_torch_release_pool(int device, uint64_t first, uint64_t second)
{
    cachealloc_torch_end_pool(device, first, second);
    ca_lock_take(&lock);
    pool_t *pool = find_pool(device, first, second, false);
    bool last = pool && (pool->begun == 0 || --pool->begun == 0);
    ca_lock_drop(&lock);
    if (!last)
        return;
    (void)ca_graph_memory_destroy(pool);
    ca_lock_take(&lock);
    pool->used = pool->begun != 0; /* captured into again meanwhile */
    ca_lock_drop(&lock);
    ca_graph_memory_release();
}

void ca_api_ordered_reset_after_fork(void)
{
    ca_lock_init(&lock, CA_RANK_CONTEXTS);
    for (size_t i = 0; i < POOLS; i++)
        pools[i] = (pool_t){0};
}
