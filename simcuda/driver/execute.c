/* What an operation does when its stream reaches it. No lock is held here. After a sticky error the
 * context's remaining work does nothing (cuda.h, CUDA_ERROR_ILLEGAL_ADDRESS: "leaves the process in
 * an inconsistent state and any further CUDA work will return the same error"). */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Whole pages of a device that are about to be written: one fault each instead of 512. A copy that
 * writes less leaves them as they are, so that a few bytes never cost 2 MiB. */
static void whole_pages(void *at, size_t n)
{
    uintptr_t first = ((uintptr_t)at + SIM_PAGE - 1) & ~((uintptr_t)SIM_PAGE - 1);
    uintptr_t end = ((uintptr_t)at + n) & ~((uintptr_t)SIM_PAGE - 1);
    if (end > first) {
        madvise((void *)first, end - first, MADV_HUGEPAGE);
    }
}

/* A thread sanitizer looks at every word that memset and memmove touch, and keeps four for it: half
 * the time of such a run. Of what is longer than a page it sees both ends and a byte of each 256,
 * to which all memory of a device is aligned: of two that overlap the later one begins at a byte
 * that is seen of the other. */
#ifdef __SANITIZE_THREAD__
enum { SHORT_BYTES = 4096, ALIGNED_BYTES = 256 };

void __tsan_read1(void *at);
void __tsan_write1(void *at);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

static void seen(const void *range, size_t n, void (*touch)(void *))
{
    char *at = (char *)range, *end = at + n;
    touch(at);
    touch(end - 1);
    for (at += -(uintptr_t)at % ALIGNED_BYTES; at < end; at += ALIGNED_BYTES) {
        touch(at);
    }
}

static bool unwatched_begin(void *to, const void *from, size_t n)
{
    if (n <= SHORT_BYTES) {
        return false;
    }
    if (from) {
        seen(from, n, __tsan_read1);
    }
    seen(to, n, __tsan_write1);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    return true;
}

static void unwatched_end(bool begun)
{
    if (begun) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
}
#else
static bool unwatched_begin(void *to, const void *from, size_t n)
{
    (void)to, (void)from, (void)n;
    return false;
}

static void unwatched_end(bool begun)
{
    (void)begun;
}
#endif

static bool copy_slice(sim_op_t *op, uint64_t dst_at, uint64_t src_at)
{
    for (size_t y = 0; y < op->u.copy.rows; y++) {
        void *src = sim_access(op, src_at + y * op->u.copy.src_pitch, op->u.copy.width, false,
                               !op->u.copy.src_device);
        void *dst = sim_access(op, dst_at + y * op->u.copy.dst_pitch, op->u.copy.width, true,
                               !op->u.copy.dst_device);
        if (!src || !dst) {
            return false;
        }
        if (op->u.copy.dst_device) {
            whole_pages(dst, op->u.copy.width);
        }
        bool unwatched = unwatched_begin(dst, src, op->u.copy.width);
        memmove(dst, src, op->u.copy.width);
        unwatched_end(unwatched);
    }
    return true;
}

static bool copy_all(sim_op_t *op)
{
    for (size_t z = 0; z < op->u.copy.depth; z++) {
        if (!copy_slice(op, op->u.copy.dst + z * op->u.copy.dst_slice,
                        op->u.copy.src + z * op->u.copy.src_slice)) {
            return false;
        }
    }
    return true;
}

static void fill(void *at, size_t n, unsigned elem, unsigned value)
{
    if (elem == 1) {
        memset(at, (int)value, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (elem == 2) {
            ((uint16_t *)at)[i] = (uint16_t)value;
        } else {
            ((uint32_t *)at)[i] = value;
        }
    }
}

static bool set_rows(sim_op_t *op)
{
    for (size_t y = 0; y < op->u.set.rows; y++) {
        void *at = sim_access(op, op->u.set.dst + y * op->u.set.pitch,
                              op->u.set.width * op->u.set.elem, true, false);
        if (!at) {
            return false;
        }
        whole_pages(at, op->u.set.width * op->u.set.elem);
        bool unwatched = unwatched_begin(at, NULL, op->u.set.width * op->u.set.elem);
        fill(at, op->u.set.width, op->u.set.elem, op->u.set.value);
        unwatched_end(unwatched);
    }
    return true;
}

static bool write_value(sim_op_t *op)
{
    void *at = sim_access(op, op->u.value.addr, op->u.value.bytes, true, false);
    if (at) {
        if (op->u.value.bytes == 4) { /* another stream may be waiting for it */
            __atomic_store_n((uint32_t *)at, (uint32_t)op->u.value.value, __ATOMIC_RELEASE);
        } else {
            __atomic_store_n((uint64_t *)at, op->u.value.value, __ATOMIC_RELEASE);
        }
    }
    return at != NULL;
}

static bool satisfied(const sim_op_t *op, const void *at)
{
    uint64_t want = op->u.value.value, got = 0;
    int64_t ahead;
    if (op->u.value.bytes == 4) {
        got = __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
        ahead = (int32_t)((uint32_t)got - (uint32_t)want);
    } else {
        got = __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
        ahead = (int64_t)(got - want);
    }
    switch (op->u.value.compare) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return ahead == 0;
    case CU_STREAM_WAIT_VALUE_AND:
        return (got & want) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return op->u.value.bytes == 4 ? (uint32_t) ~(got | want) != 0 : ~(got | want) != 0;
    default:
        return ahead >= 0;
    }
}

/* Until it is, or the memory or the context is no more. */
static bool wait_value(sim_op_t *op)
{
    for (;;) {
        void *at = sim_access(op, op->u.value.addr, op->u.value.bytes, false, false);
        if (!at || satisfied(op, at) ||
            atomic_load_explicit(&op->stream->ctx->sticky, memory_order_relaxed)) {
            return at != NULL;
        }
        usleep(50);
    }
}

static void free_in_order(CUdeviceptr ptr)
{
    sim_device_t *d = sim_device_of(ptr);
    sim_alloc_t a;
    if (d && sim_heap_find(d, ptr, &a)) {
        if (a.kind != SIM_GRAPH) { /* that is the same memory at the next launch */
            sim_race_forget(a.base, a.size);
        }
        sim_heap_free(d, ptr, true);
        atomic_fetch_sub(&d->frees, 1);
    }
}

void sim_execute(sim_op_t *op)
{
    CUcontext ctx = op->stream->ctx;
    int sticky = atomic_load_explicit(&ctx->sticky, memory_order_relaxed);
    bool ok = true;
    switch (op->kind) {
    case SIM_OP_COPY:
        ok = sticky || copy_all(op);
        free(op->u.copy.staged);
        break;
    case SIM_OP_SET:
        ok = sticky || set_rows(op);
        if (!sticky && sim_opt.set_ns) {
            sim_pause(sim_opt.set_ns);
        }
        break;
    case SIM_OP_VALUE:
        ok = sticky || write_value(op);
        break;
    case SIM_OP_WAIT_VALUE:
        ok = sticky || wait_value(op);
        break;
    case SIM_OP_KERNEL:
        if (!sticky && op->u.kernel.body) {
            sim_run_body(op, op->u.kernel.body, op->u.kernel.arg);
        }
        if (!sticky && op->u.kernel.ns) {
            sim_pause(op->u.kernel.ns);
        }
        break;
    case SIM_OP_HOST: /* cuda.h, cuLaunchHostFunc: not called "in the event of an error" */
        sim_race_host_function(op->clock);
        if (!sticky) {
            sim_run_body(op, op->u.host.fn, op->u.host.data);
        }
        break;
    case SIM_OP_CALLBACK: /* cuda.h, cuStreamAddCallback: it gets the error instead */
        sim_race_host_function(op->clock);
        op->u.host.cb(op->stream->legacy ? NULL : op->stream->as, (CUresult)sticky,
                      op->u.host.data);
        break;
    case SIM_OP_FREE:
        free_in_order(op->u.free_ptr);
        break;
    case SIM_OP_ALLOC:
    case SIM_OP_MARK:
    case SIM_OP_WAIT:
    case SIM_OP_PREFETCH:
    case SIM_OP_DISCARD:
        break;
    }
    if (!ok) {
        sim_ctx_fail(ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
}
