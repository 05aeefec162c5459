/* The pool's source of device memory (pool/upstream.h) over the driver: segments from
 * cuMemAlloc_v2, fences from shim/upstream/fences.c, pages from shim/upstream/pages.c. The context
 * argument of the table's functions is a ca_context_t; results are 0 or a negative errno, sizes
 * bytes. From any thread, with no lock held. */
#ifndef CA_SHIM_UPSTREAM_UPSTREAM_H
#define CA_SHIM_UPSTREAM_UPSTREAM_H

#include "pool/upstream.h"
#include "shim/cuda/contexts.h"

extern const ca_upstream_t ca_upstream_cuda;

/* Makes `context` current for a while, and the calling thread's capture mode relaxed while streams
 * are being captured: the pool's calls are not the program's and must not invalidate its captures.
 */
typedef struct ca_entered {
    ca_context_t *context;
    bool pushed;
    CUcontext before; /* the one to restore */
    bool relaxed;
    CUstreamCaptureMode mode;
    int cancel; /* the thread's cancel state, to be restored */
} ca_entered_t;

/* 0, or the driver's error; then nothing needs to be left. While a call is in flight that may
 * destroy the context it waits for that call, a second at most (then CUDA_ERROR_NOT_READY); and
 * that call waits for the threads that have entered: no call made here meets a destroyed context.
 * Until it is left the thread is not cancelled: others would wait for it. */
CUresult ca_upstream_enter(ca_context_t *context, ca_entered_t *entered);
void ca_upstream_leave(ca_entered_t *entered);

/* For the pool's tables, within their `alloc`: the driver gave `address`, and the context does not
 * end before the same thread says that it is placed. False: a free of that address was on its way
 * to the driver meanwhile and took the memory; nothing is to be said of it any more. */
bool ca_upstream_obtained(ca_context_t *context, uint64_t address);
void ca_upstream_placed(void *context, uint64_t address);

/* A free of an address that nothing here knows goes to the driver between these two calls. Such an
 * address may be one that was freed already, or whose context died: then the driver may give it to
 * a segment at that very moment, with all that is served from there. False: it has, so that the
 * free must not go there, and has not begun. */
bool ca_forward_begin(uint64_t address);
void ca_forward_end(uint64_t address);

/* Frees at the driver by `call`, a CUresult, what nothing here knows. `known`: it is in an index by
 * now; `invalid`: what is answered then. */
#define CA_FORWARD_FREE(address, known, invalid, call)                                             \
    ({                                                                                             \
        bool begun_ = ca_forward_begin(address);                                                   \
        CUresult code_ = begun_ && !(known) ? (call) : (invalid);                                  \
        if (begun_)                                                                                \
            ca_forward_end(address);                                                               \
        code_;                                                                                     \
    })

/* Whether the error is sticky: every call on the context returns it from now on. */
bool ca_upstream_is_sticky(CUresult code);

/* A driver call's answer as a result of the pool's upstream. A sticky error marks the context. */
int ca_upstream_result(ca_context_t *context, CUresult code);

/* The free memory that one arena finds on a device is all that the others have, too. */
void ca_upstream_share_free(const ca_context_t *finder, size_t bytes);

/* Before an allocation or a free that the pool would serve. CUDA_SUCCESS, or what the driver
 * answers to such a call of this thread's, because a capture forbids it: then it has had the same
 * effect on that capture. With `capture:keep` nothing is forbidden. */
CUresult ca_upstream_capture_check(void);

/* Whether releasing an idle segment waits for its context, as far as is known. */
bool ca_upstream_idle_free_waits(void);

/* Releases idle segments of the arenas on a device, `except` (may be NULL) apart, until `bytes`
 * were released. Returns the bytes released. */
size_t ca_upstream_trim_device(uint8_t device, const ca_context_t *except, size_t bytes,
                               ca_trim_t how);

/* Trims the driver's own pool on the context's device. Returns the bytes released. */
size_t ca_upstream_trim_driver(ca_context_t *context);

/* Fills memory that no work uses with a byte, and waits for that alone. */
CUresult ca_upstream_fill(ca_context_t *context, CUdeviceptr address, unsigned char value,
                          size_t bytes);

/* The same in the order of a stream of the context, without waiting. */
CUresult ca_upstream_fill_on(ca_context_t *context, CUdeviceptr address, unsigned char value,
                             size_t bytes, CUstream stream);

/* Copies memory that no work uses; `_on`: after the work of a stream of the context, for which it
 * waits. */
CUresult ca_upstream_read(ca_context_t *context, CUdeviceptr address, void *to, size_t bytes);
CUresult ca_upstream_read_on(ca_context_t *context, CUdeviceptr address, void *to, size_t bytes,
                             CUstream stream);

void ca_upstream_reset_after_fork(void);

#endif
