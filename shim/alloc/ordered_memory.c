/* See ordered_memory.h. */
#include "shim/alloc/ordered_memory.h"
#include <errno.h>
#include "base/counters.h"
#include "base/log.h"
#include "pool/fence/order.h"
#include "registry/table/registry.h"
#include "shim/alloc/debug_fill.h"
#include "shim/alloc/device_memory.h"
#include "shim/alloc/oom.h"
#include "shim/alloc/other_streams.h"
#include "shim/alloc/shared_memory.h"
#include "shim/alloc/track.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/cuda/life_state.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/cuda/streams.h"
#include "shim/upstream/backend_async.h"
#include "shim/upstream/reclaim.h"
#include "shim/upstream/upstream.h"

static bool is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static bool is_on(const ca_context_t *context, int device)
{
    return device == CA_ORDERED_HERE || context->device == device;
}

/* What a capture that began before has in its graph is not known. */
static void want_graph_memory(void)
{
    if (!ca_capture_active())
        ca_graph_memory_want();
}

/* Whether the stream is captured; `kept`: what it touches is kept for the graph. */
static bool is_captured(CUstream stream, bool *kept)
{
    bool captured = ca_capture_asked(stream);
    *kept = ca_capture_active() && ca_graph_memory_on();
    return captured;
}

/* Reuse in order (pool/fence/order.h) knows the order of all work, whatever stream a call names:
 * memory is then allocated and freed as by the plain calls, which serves as soon, and from blocks
 * that have merged. */
static bool in_order_of_all(void)
{
    return atomic_load_explicit(&ca_order_current, memory_order_relaxed) != CA_ORDER_OFF;
}

static int serve(ca_context_t *context, ca_stream_t *order, CUstream stream, size_t bytes,
                 ca_device_effort_t effort, CUdeviceptr *address)
{
    return in_order_of_all() ? ca_device_alloc_kind(context, CA_KIND_ASYNC, bytes, effort, address)
                             : ca_device_alloc_on(context, order, stream, bytes, effort, address);
}

/* Of a block that nothing captured has. */
static CUresult give(const ca_allocation_t *record, ca_stream_t *order, const ca_context_t *user)
{
    bool others = ca_other_streams_take(record->address);
    if (others || (in_order_of_all() && user && ca_context_numbered(record->context) == user))
        return ca_device_free_behind_all(record);
    return ca_device_free_on(record, order, user);
}

/* As PyTorch means the default stream: its own cache, too, reuses what was freed there at once, and
 * submits nothing that would wait for other streams. */
static void by_default(ca_stream_t **order, ca_context_t *context, bool alone)
{
    if (alone && *order && ca_stream_is_legacy(*order))
        *order = ca_arena_default_stream(context->arena, CU_STREAM_LEGACY);
}

/* --- the context ------------------------------------------------------------------------------ */

/* The context that is current for the length of a call. The driver and our table are asked once. */
typedef struct place {
    bool pushed; /* another one, or none, was current */
    CUcontext current;
    ca_context_t *context; /* its entry, as ca_context_current returns it */
} place_t;

static CUresult push(place_t *place, CUcontext handle)
{
    CUresult code = ca_driver()->cuCtxPushCurrent_v2(handle);
    place->pushed = code == CUDA_SUCCESS;
    place->current = handle;
    return code;
}

static void leave(const place_t *place)
{
    CUcontext popped;
    if (place->pushed)
        (void)ca_driver()->cuCtxPopCurrent_v2(&popped);
}

/* NULL too where no hook sees it end. Memory of a context that the program created would end with
 * that. */
static const ca_context_t *known_primary(int device)
{
    const ca_context_t *known = ca_hooks_in_place() ? ca_context_on((unsigned)device) : NULL;
    return known && !atomic_load(&known->created) ? known : NULL;
}

/* The thread's own default stream of a device is that of the context which is current there: where
 * none of the device is, of the one that the runtime would make current. */
static CUresult enter_device(place_t *place, int device)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext primary;
    CUdevice of = CU_DEVICE_INVALID;
    CUresult code = driver->cuCtxGetCurrent(&place->current);
    if (code == CUDA_ERROR_NOT_INITIALIZED && driver->cuInit)
        code = driver->cuInit(0);
    if (code != CUDA_SUCCESS)
        return code;
    place->context = ca_context_current_is(place->current, false);
    if (place->context)
        of = place->context->device;
    else if (place->current && driver->cuCtxGetDevice)
        (void)driver->cuCtxGetDevice(&of);
    if (place->current && (device == CA_ORDERED_HERE || of == device))
        return CUDA_SUCCESS;
    place->context = NULL;
    if (device == CA_ORDERED_HERE)
        device = 0;
    const ca_context_t *known = known_primary(device);
    if (known)
        return push(place, known->handle);
    /* The reference is kept, as the runtime keeps its own: the memory needs the context. */
    code = driver->cuDevicePrimaryCtxRetain(&primary, device);
    return code == CUDA_SUCCESS ? push(place, primary) : code;
}

/* A stream that was met before needs no context to be current. */
static CUresult enter_stream(place_t *place, CUstream stream)
{
    const ca_driver_t *driver = ca_driver();
    CUcontext owner;
    (void)driver->cuCtxGetCurrent(&place->current);
    if (!driver->cuStreamGetCtx)
        return CUDA_SUCCESS;
    CUresult code = driver->cuStreamGetCtx(stream, &owner);
    if (code != CUDA_SUCCESS)
        return code;
    return place->current == owner ? CUDA_SUCCESS : push(place, owner);
}

/* So that `stream` means what it says on `device`; the entry of its context is made. */
static CUresult enter(place_t *place, int device, CUstream stream)
{
    const ca_driver_t *driver = ca_driver_open();
    *place = (place_t){0};
    if (!driver->cuCtxGetCurrent || !driver->cuCtxPushCurrent_v2 || !driver->cuCtxPopCurrent_v2 ||
        !driver->cuDevicePrimaryCtxRetain)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult code = is_default(stream) ? enter_device(place, device) : enter_stream(place, stream);
    if (code != CUDA_SUCCESS)
        return code;
    if (!place->context)
        place->context = ca_context_current_is(place->current, true);
    ca_context_note_asked(place->context);
    /* One that is about to end serves no call, and has its device all the same. */
    const ca_context_t *context = place->context ? place->context : ca_context_of(place->current);
    if (!context || is_on(context, device))
        return CUDA_SUCCESS;
    leave(place);
    return CUDA_ERROR_INVALID_DEVICE;
}

/* The context that serves the stream, and the pool's stream, as ca_streams_find. */
static CUresult find_order(const place_t *place, CUstream stream, ca_context_t **context,
                           ca_stream_t **order)
{
    *context = place->context;
    return ca_streams_find_in(place->current, stream, context, order);
}

/* --- allocation ------------------------------------------------------------------------------- */

/* What the pool does not serve (backend:off, no host memory, no memory left in the pool's way). */
static CUresult from_driver(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    const ca_driver_t *driver = ca_driver();
    ca_count(passed_through);
    const ca_context_t *before = ca_context_known();
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;
    if (driver->cuMemAllocAsync)
        code = CA_WITH_RECLAIM(ca_reclaim_everywhere(),
                               driver->cuMemAllocAsync(address, bytes, stream));
    if (code == CUDA_ERROR_NOT_SUPPORTED) /* a device without memory pools */
        code = CA_WITH_RECLAIM(ca_reclaim(before), driver->cuMemAlloc_v2(address, bytes));
    if (code == CUDA_SUCCESS) {
        (void)ca_other_streams_take(*address); /* its free would wait on the host */
        ca_track_driver_alloc(CA_KIND_ASYNC, *address, bytes, before, stream);
    }
    return code;
}

/* In a capture the memory is no node of the graph, which is kept for it: see graph_memory.h. */
static CUresult alloc(CUdeviceptr *address, size_t bytes, const place_t *place, CUstream stream,
                      bool alone)
{
    ca_context_t *context;
    ca_stream_t *order;
    bool kept, captured = is_captured(stream, &kept);
    if (captured && !kept)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult code = find_order(place, stream, &context, &order);
    if (code != CUDA_SUCCESS)
        return code;
    if (context) {
        by_default(&order, context, alone);
        int result =
            captured ? ca_device_alloc_kind(context, CA_KIND_ASYNC, bytes, CA_DEVICE_ANY, address)
                     : serve(context, order, stream, bytes, CA_DEVICE_ANY, address);
        if (result == 0)
            return CUDA_SUCCESS;
        if (result == -ENOMEM) {
            ca_count(out_of_memory);
            if (ca_device_over_limit(context, bytes, address))
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return captured ? CUDA_ERROR_OUT_OF_MEMORY : from_driver(address, bytes, stream);
}

CUresult ca_ordered_alloc(CUdeviceptr *address, size_t bytes, int device, CUstream stream,
                          bool alone)
{
    place_t place;
    if (!ca_life_active())
        return CUDA_ERROR_NOT_SUPPORTED;
    want_graph_memory();
    CUresult code = enter(&place, device, stream);
    if (code != CUDA_SUCCESS)
        return code;
    ca_count(alloc_calls);
    code = CA_WITH_OOM(CA_KIND_ASYNC, bytes, CA_OOM_HERE,
                       alloc(address, bytes, &place, stream, alone));
    leave(&place);
    return code;
}

/* Whether the stream is known, on this device, and its handle in the pool. */
static bool find_known(int device, CUstream stream, bool alone, ca_context_t **context,
                       ca_stream_t **order)
{
    bool known = ca_life_active() && !ca_capture_active() && ca_hooks_in_place() &&
                 ca_streams_find(stream, false, context, order) == CUDA_SUCCESS && *context &&
                 is_on(*context, device);
    if (known)
        by_default(order, *context, alone);
    return known;
}

bool ca_ordered_alloc_ready(CUdeviceptr *address, size_t bytes, int device, CUstream stream,
                            bool alone)
{
    ca_context_t *context;
    ca_stream_t *order;
    if (!find_known(device, stream, alone, &context, &order) ||
        serve(context, order, stream, bytes, CA_DEVICE_READY_ONLY, address) != 0)
        return false;
    ca_count(alloc_calls);
    return true;
}

/* --- free ------------------------------------------------------------------------------------- */

static bool take_pooled(CUdeviceptr address, ca_allocation_t *record)
{
    uint32_t stack = ca_debug_free_stack();
    ca_peak_before_free();
    if (!ca_registry_take_owned(address, record))
        return false;
    ca_track_erased(record, stack);
    return true;
}

bool ca_ordered_free_pooled(CUdeviceptr address, int device, CUstream stream, bool alone)
{
    ca_allocation_t record;
    ca_context_t *context;
    ca_stream_t *order;
    if (!find_known(device, stream, alone, &context, &order) || !take_pooled(address, &record))
        return false;
    ca_debug_freed(&record, context, stream);
    CUresult code = give(&record, order, context);
    if (code != CUDA_SUCCESS) {
        ca_track_restore(&record);
        return false;
    }
    ca_count(free_calls);
    return true;
}

/* What other streams use is behind all of the context's work: the driver knows of `stream` alone.
 */
static CUresult wait_for_others(CUdeviceptr address)
{
    return ca_other_streams_take(address) ? ca_driver()->cuCtxSynchronize() : CUDA_SUCCESS;
}

static CUresult to_driver(CUdeviceptr address, CUstream stream)
{
    const ca_driver_t *driver = ca_driver();
    CUresult waited = wait_for_others(address);
    if (waited != CUDA_SUCCESS)
        return waited;
    CUresult code = CUDA_ERROR_NOT_SUPPORTED;
    if (driver->cuMemFreeAsync)
        code = driver->cuMemFreeAsync(address, stream);
    return code == CUDA_ERROR_NOT_SUPPORTED ? driver->cuMemFree_v2(address) : code;
}

static CUresult free_pooled(const ca_allocation_t *record, const place_t *place, CUstream stream,
                            bool captured, bool alone)
{
    ca_context_t *context;
    ca_stream_t *order;
    CUresult code = find_order(place, stream, &context, &order);
    if (code != CUDA_SUCCESS)
        return code;
    if (captured) {
        (void)ca_other_streams_take(record->address);
        return ca_device_free_behind_all(record);
    }
    if (context)
        by_default(&order, context, alone);
    ca_debug_freed(record, context, stream);
    return give(record, order, context);
}

/* It is held behind all work in any case. */
static CUresult free_held(const ca_allocation_t *record)
{
    (void)ca_other_streams_take(record->address);
    return ca_backend_async_free(record);
}

static CUresult free_memory(CUdeviceptr address, const place_t *place, CUstream stream, bool alone)
{
    ca_allocation_t record;
    CUresult code;
    bool kept, captured = is_captured(stream, &kept);
    if (captured && !kept) {
        ca_warn_once("cachealloc_free on a stream that is captured unseen: the memory stays "
                     "allocated (with LD_PRELOAD it would be kept for the graph alone)");
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    ca_count(free_calls);
    if (!ca_track_erase(address, &record))
        return CA_FORWARD_FREE(address, ca_device_owns(address) || ca_backend_async_holds(address),
                               ca_track_invalid_free(address),
                               ca_debug_explain_refusal(address, to_driver(address, stream)));
    if (record.shared && (code = wait_for_others(address)) != CUDA_SUCCESS)
        return ca_track_refused(&record, CA_FREES_DEVICE, code);
    if (record.shared)
        return ca_shared_free_async(&record, ca_driver()->cuMemFreeAsync, stream);
    code = ca_backend_async_gave(&record) ? free_held(&record)
           : !record.owner                ? to_driver(address, stream)
           : ca_device_lost(&record)
               ? CA_FORWARD_FREE(address, ca_device_owns(address), CUDA_ERROR_INVALID_VALUE,
                                 to_driver(address, stream))
               : free_pooled(&record, place, stream, captured, alone);
    return code == CUDA_SUCCESS ? code : ca_track_refused(&record, CA_FREES_DEVICE, code);
}

CUresult ca_ordered_free(CUdeviceptr address, int device, CUstream stream, bool alone)
{
    place_t place;
    if (!ca_life_active())
        return CUDA_ERROR_NOT_SUPPORTED;
    want_graph_memory();
    CUresult code = enter(&place, device, stream);
    if (code != CUDA_SUCCESS)
        return code;
    code = free_memory(address, &place, stream, alone);
    leave(&place);
    return code;
}

CUresult ca_ordered_used_on(CUdeviceptr address, CUstream stream)
{
    ca_allocation_t record;
    if (!ca_life_active())
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!ca_registry_find(address, &record))
        return CUDA_ERROR_NOT_FOUND;
    /* A default stream's handle says too little: the next thread's own is another one. */
    if (record.kind == CA_KIND_ASYNC && !is_default(stream) &&
        (CUstream)(uintptr_t)ca_registry_stream(&record) == stream)
        return CUDA_SUCCESS;
    return ca_other_streams_add(address) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
