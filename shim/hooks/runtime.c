/* The runtime API's hooks, an optimisation over the driver API's. They only ever answer with
 * success, on the fast path; every other call goes to the caller's real function, which comes down
 * into the driver API's hooks. So the runtime initialises contexts, chooses error codes and keeps
 * the last error. */
#include <errno.h>
#include <stdbool.h>
#include "base/counters.h"
#include "base/mutation.h"
#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/cuda/capture.h"
#include "shim/alloc/debug_fill.h"
#include "shim/alloc/device_memory.h"
#include "shim/cuda/driver_table.h"
#include "shim/alloc/fast_path.h"
#include "shim/cuda/life_state.h"
#include "shim/upstream/mempools.h"
#include "shim/alloc/pinned_memory.h"
#include "shim/hooks/runtime_table.h"
#include "shim/cuda/streams.h"
#include "shim/alloc/track.h"

/* Before runtime 12 cudaSetDevice reaches the driver only with the next runtime call: until one has
 * gone through, the driver's current context may be another device's. */
static _Thread_local bool delegate_next;

/* In a wrapper: `real` is the caller's function, or the wrapper returns at once. */
#define REAL_OF(symbol, caller)                                                                    \
    __typeof__(symbol) *real = (__typeof__(symbol) *)ca_runtime_real(CA_RUNTIME_##symbol, caller); \
    if (!real)                                                                                     \
    return cudaErrorSharedObjectSymbolNotFound
#define REAL(symbol) REAL_OF(symbol, __builtin_return_address(0))

/* The slow path of a wrapper: a function of its own, since it would cost the fast path registers.
 */
#define SLOW_PATH static __attribute__((noinline)) cudaError_t

/* Around a call of a real allocation function: the driver API's hooks track the stack as it is
 * here, without the runtime's own frames, the same as the fast path does. */
#define WITH_STACK(call)                                                                           \
    ({                                                                                             \
        if (ca_life_active())                                                                      \
            ca_track_runtime_stack = ca_track_stack();                                             \
        delegate_next = false;                                                                     \
        cudaError_t code_ = (call);                                                                \
        ca_track_runtime_stack = 0;                                                                \
        code_;                                                                                     \
    })

/* While a stream is captured the driver API's hooks ask whether the call is allowed. */
static bool may_serve(void)
{
    return ca_life_active() && ca_options.x_runtime_hooks && !delegate_next && !ca_capture_active();
}

static bool served_alloc(void **address, CUdeviceptr pointer)
{
    ca_count(alloc_calls);
    ca_count(lane_r_allocs);
    ca_fast_remember(CA_API_RUNTIME);
    *address = (void *)(uintptr_t)pointer;
    return true;
}

static bool served_free(void)
{
    ca_count(free_calls);
    ca_count(lane_r_frees);
    ca_fast_remember(CA_API_RUNTIME);
    return true;
}

static bool serve_alloc(void **address, size_t bytes)
{
    CUdeviceptr pointer;
    ca_context_t *context = ca_context_current(false, NULL);
    return context && ca_device_alloc(context, bytes, CA_DEVICE_READY_ONLY, &pointer) == 0 &&
           served_alloc(address, pointer);
}

static bool serve_pinned(void **address, size_t bytes, unsigned flags)
{
    void *pointer;
    ca_context_t *context = ca_context_current(false, NULL);
    return context && ca_pinned_alloc(context, flags, bytes, CA_DEVICE_READY_ONLY, &pointer) == 0 &&
           served_alloc(address, (CUdeviceptr)(uintptr_t)pointer);
}

/* Other memory stays registered: the driver API's hooks must find it. */
static bool take_pooled(const void *address, ca_allocation_t *record)
{
    uint32_t stack = ca_debug_free_stack();
    ca_peak_before_free();
    if (!ca_registry_take_owned((uint64_t)(uintptr_t)address, record))
        return false;
    ca_track_erased(record, stack);
    return true;
}

/* The record has been erased; `code` says whether its block was freed. */
static bool finish_free(const ca_allocation_t *record, CUresult code)
{
    if (code != CUDA_SUCCESS) {
        ca_track_restore(record);
        return false;
    }
    return served_free();
}

/* `free_plain` refuses memory of the other kind, for which the driver API's hooks then answer.
 * Where no context is current the runtime makes one first. */
static bool serve_free(const void *address, CUresult (*free_plain)(const ca_allocation_t *))
{
    ca_allocation_t record;
    return ca_context_check_current() == CUDA_SUCCESS && take_pooled(address, &record) &&
           finish_free(&record, free_plain(&record));
}

/* Whether the stream is known, and its handle in the pool. */
static bool known_order(CUstream stream, ca_context_t **context, ca_stream_t **order)
{
    return may_serve() && ca_streams_find(stream, false, context, order) == CUDA_SUCCESS &&
           *context;
}

static bool serve_alloc_async(void **address, size_t bytes, CUstream stream)
{
    CUdeviceptr pointer;
    ca_context_t *context;
    ca_stream_t *order;
    return ca_options.stream_ordered == CA_STREAM_ORDERED_POOL &&
           known_order(stream, &context, &order) && ca_mempool_served(context) &&
           ca_device_alloc_on(context, order, stream, bytes, CA_DEVICE_READY_ONLY, &pointer) == 0 &&
           served_alloc(address, pointer);
}

static bool serve_free_async(const void *address, CUstream stream)
{
    ca_allocation_t record;
    ca_context_t *context;
    ca_stream_t *order;
    if (!known_order(stream, &context, &order) || !take_pooled(address, &record))
        return false;
    ca_debug_freed(&record, context, stream);
    return finish_free(&record, ca_device_free_on(&record, order, context));
}

SLOW_PATH malloc_slow(void **address, size_t bytes, void *caller)
{
    uint64_t pointer;
    int large = address ? ca_fast_alloc_large(CA_API_RUNTIME, bytes, &pointer) : -ENOENT;
    if (large == 0) {
        *address = (void *)(uintptr_t)pointer;
        return cudaSuccess;
    }
    if (large == -ENOENT && address && bytes && may_serve() && serve_alloc(address, bytes))
        return cudaSuccess;
    REAL_OF(cudaMalloc, caller);
    return WITH_STACK(real(address, bytes));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMalloc(void **address, size_t bytes)
{
    uint64_t pointer;
    if (address && ca_fast_alloc(CA_API_RUNTIME, bytes, &pointer)) {
        *address = (void *)(uintptr_t)pointer;
        return cudaSuccess;
    }
    return malloc_slow(address, bytes, __builtin_return_address(0));
}

SLOW_PATH free_slow(void *address, void *caller)
{
    if (address && may_serve() && serve_free(address, ca_device_free_plain))
        return cudaSuccess;
    REAL_OF(cudaFree, caller);
    delegate_next = false;
    return real(address);
}

CA_EXPORT cudaError_t CUDARTAPI cudaFree(void *address)
{
    uint64_t pointer = (uint64_t)(uintptr_t)address;
    if (ca_fast_free(CA_API_RUNTIME, &pointer))
        return cudaSuccess;
    return free_slow((void *)(uintptr_t)pointer, __builtin_return_address(0));
}

SLOW_PATH malloc_host_slow(void **address, size_t bytes, void *caller)
{
    if (address && bytes && may_serve() && serve_pinned(address, bytes, 0))
        return cudaSuccess;
    REAL_OF(cudaMallocHost, caller);
    return WITH_STACK(real(address, bytes));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMallocHost(void **address, size_t bytes)
{
    uint64_t pointer;
    if (address && ca_fast_alloc_pinned(CA_API_RUNTIME, bytes, 0, &pointer)) {
        *address = (void *)(uintptr_t)pointer;
        return cudaSuccess;
    }
    return malloc_host_slow(address, bytes, __builtin_return_address(0));
}

SLOW_PATH host_alloc_slow(void **address, size_t bytes, unsigned flags, void *caller)
{
    /* The flags' values are the driver's. */
    if (address && bytes && may_serve() && serve_pinned(address, bytes, flags))
        return cudaSuccess;
    REAL_OF(cudaHostAlloc, caller);
    return WITH_STACK(real(address, bytes, flags));
}

CA_EXPORT cudaError_t CUDARTAPI cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    uint64_t pointer;
    if (address && ca_fast_alloc_pinned(CA_API_RUNTIME, bytes, flags, &pointer)) {
        *address = (void *)(uintptr_t)pointer;
        return cudaSuccess;
    }
    return host_alloc_slow(address, bytes, flags, __builtin_return_address(0));
}

SLOW_PATH free_host_slow(void *address, void *caller)
{
    if (address && may_serve() && serve_free(address, ca_pinned_free_plain))
        return cudaSuccess;
    REAL_OF(cudaFreeHost, caller);
    delegate_next = false;
    return real(address);
}

CA_EXPORT cudaError_t CUDARTAPI cudaFreeHost(void *address)
{
    uint64_t pointer = (uint64_t)(uintptr_t)address;
    if (address && ca_fast_free_pinned(CA_API_RUNTIME, &pointer))
        return cudaSuccess;
    return free_host_slow((void *)(uintptr_t)pointer, __builtin_return_address(0));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMallocManaged(void **address, size_t bytes, unsigned flags)
{
    REAL(cudaMallocManaged);
    return WITH_STACK(real(address, bytes, flags));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMallocPitch(void **address, size_t *pitch, size_t width,
                                                size_t height)
{
    REAL(cudaMallocPitch);
    return WITH_STACK(real(address, pitch, width, height));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMalloc3D(struct cudaPitchedPtr *pitched,
                                             struct cudaExtent extent)
{
    REAL(cudaMalloc3D);
    return WITH_STACK(real(pitched, extent));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream)
{
    if (address && bytes && serve_alloc_async(address, bytes, stream))
        return cudaSuccess;
    REAL(cudaMallocAsync);
    return WITH_STACK(real(address, bytes, stream));
}

CA_EXPORT cudaError_t CUDARTAPI cudaMallocAsync_ptsz(void **address, size_t bytes,
                                                     cudaStream_t stream)
{
    if (address && bytes && serve_alloc_async(address, bytes, ca_stream_per_thread(stream)))
        return cudaSuccess;
    REAL(cudaMallocAsync_ptsz);
    return WITH_STACK(real(address, bytes, stream));
}

CA_EXPORT cudaError_t CUDARTAPI cudaFreeAsync(void *address, cudaStream_t stream)
{
    if (address && serve_free_async(address, stream))
        return cudaSuccess;
    REAL(cudaFreeAsync);
    delegate_next = false;
    return real(address, stream);
}

CA_EXPORT cudaError_t CUDARTAPI cudaFreeAsync_ptsz(void *address, cudaStream_t stream)
{
    if (address && serve_free_async(address, ca_stream_per_thread(stream)))
        return cudaSuccess;
    REAL(cudaFreeAsync_ptsz);
    delegate_next = false;
    return real(address, stream);
}

CA_EXPORT cudaError_t CUDARTAPI cudaSetDevice(int device)
{
    REAL(cudaSetDevice);
    cudaError_t code = real(device);
    delegate_next = !CA_MUTATED(setdevice_trusted);
    if (delegate_next)
        ca_thread_forget();
    return code;
}
