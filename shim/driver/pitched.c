/* The driver API's hooks: pitched memory. The driver decides the pitch, the pool serves the memory.
 *
 * A pitch that the driver answered for a width holds for every width from there up to the pitch
 * itself. That relies on three assumptions, which no documentation states and `facts:layout` asks
 * of hardware: the pitch does not depend on the height, it never falls when the width grows, and a
 * pitch, used as a width, is its own pitch. The driver serves a width without a known pitch, and
 * its answer is learned; a driver that contradicts itself serves every call from then on. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include "base/counters.h"
#include "base/lock.h"
#include "registry/table/registry.h"
#include "shim/alloc/device_memory.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/life_state.h"
#include "shim/alloc/oom.h"
#include "shim/upstream/reclaim.h"
#include "shim/alloc/track.h"
#include "shim/upstream/upstream.h"

#define INTERVALS_MAX 256

/* Widths from `least` to `pitch` have that pitch. Sorted by device and element size, then by width;
 * disjoint. The lock is not made anew after a fork: a child of a process with a context passes all
 * calls through. */
typedef struct interval {
    uint64_t asker; /* device and element size */
    size_t least, pitch;
} interval_t;

static ca_lock_t lock = CA_LOCK_INIT(CA_RANK_CONTEXTS);
static interval_t intervals[INTERVALS_MAX];
static size_t interval_count, next_victim;
static bool contradicted;

static uint64_t asker_of(const ca_context_t *context, unsigned element)
{
    return (uint64_t)context->device << 32 | element;
}

/* Under the lock: the first interval that does not end before (asker, width). */
static size_t position(uint64_t asker, size_t width)
{
    size_t low = 0, high = interval_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const interval_t *i = &intervals[middle];
        if (i->asker < asker || (i->asker == asker && i->pitch < width))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* 0 where nothing is known. */
static size_t known_pitch(uint64_t asker, size_t width)
{
    size_t pitch = 0;
    ca_lock_take(&lock);
    size_t at = position(asker, width);
    const interval_t *i = &intervals[at];
    if (!contradicted && at < interval_count && i->asker == asker && i->least <= width)
        pitch = i->pitch;
    ca_lock_drop(&lock);
    return pitch;
}

/* Under the lock. A full table drops another interval. */
static void insert(uint64_t asker, size_t width, size_t pitch)
{
    if (interval_count == INTERVALS_MAX) {
        size_t victim = next_victim++ % INTERVALS_MAX;
        interval_count--;
        memmove(&intervals[victim], &intervals[victim + 1],
                (interval_count - victim) * sizeof(*intervals));
    }
    size_t at = position(asker, width);
    memmove(&intervals[at + 1], &intervals[at], (interval_count - at) * sizeof(*intervals));
    interval_count++;
    intervals[at] = (interval_t){.asker = asker, .least = width, .pitch = pitch};
}

/* The driver answered `pitch` for `width`. */
static void learn(uint64_t asker, size_t width, size_t pitch)
{
    ca_lock_take(&lock);
    size_t at = position(asker, width);
    interval_t *next = at < interval_count && intervals[at].asker == asker ? &intervals[at] : NULL;
    if (pitch < width || (next && next->pitch != pitch && next->least <= pitch))
        contradicted = true;
    else if (!next || next->pitch != pitch)
        insert(asker, width, pitch);
    else if (next->least > width)
        next->least = width;
    ca_lock_drop(&lock);
}

static CUresult alloc_from_driver(ca_context_t *context, CUdeviceptr *address, size_t *pitch,
                                  size_t width, size_t height, unsigned element)
{
    CA_REAL(cuMemAllocPitch_v2);
    ca_count(passed_through);
    CUresult code =
        CA_WITH_RECLAIM(ca_reclaim(context), real(address, pitch, width, height, element));
    if (code != CUDA_SUCCESS)
        return code;
    if (context)
        learn(asker_of(context, element), width, *pitch);
    ca_track_driver_alloc(CA_KIND_PITCHED, *address, *pitch * height, context, NULL);
    return code;
}

static CUresult alloc(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                      unsigned element)
{
    ca_context_t *context = ca_context_current(true, NULL);
    size_t learned = context ? known_pitch(asker_of(context, element), width) : 0, bytes;
    if (!learned || __builtin_mul_overflow(learned, height, &bytes) ||
        ca_upstream_capture_check() != CUDA_SUCCESS)
        return alloc_from_driver(context, address, pitch, width, height, element);
    int result = ca_device_alloc_kind(context, CA_KIND_PITCHED, bytes, CA_DEVICE_ANY, address);
    if (result == 0) {
        *pitch = learned;
        return CUDA_SUCCESS;
    }
    if (result == -ENOMEM) {
        ca_count(out_of_memory);
        if (ca_device_over_limit(context, bytes, address))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return alloc_from_driver(context, address, pitch, width, height, element);
}

CA_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width,
                                              size_t height, unsigned element)
{
    CA_REAL(cuMemAllocPitch_v2);
    bool good =
        address && pitch && width && height && (element == 4 || element == 8 || element == 16);
    if (!good || !ca_life_active())
        return real(address, pitch, width, height, element);
    ca_count(alloc_calls);
    return CA_WITH_OOM(CA_KIND_PITCHED, width * height, CA_OOM_HERE,
                       alloc(address, pitch, width, height, element));
}
