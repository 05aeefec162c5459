/* The capture gate, process-wide: recording an event on a context while one of its streams is
 * captured would invalidate that capture, and streams of other contexts can join one. While the
 * gate is closed no fence is recorded; epochs stay open. */
#ifndef CA_SHIM_CUDA_CAPTURE_H
#define CA_SHIM_CUDA_CAPTURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "shim/cuda/cuda_decls.h"

/* Around the recording of a fence. False: a capture is under way, do not record. */
bool ca_capture_recorder_enter(void);
void ca_capture_recorder_leave(void);

/* Whether any stream is being captured. */
extern _Atomic int ca_capturing; /* streams, begin calls under way included */
static inline bool ca_capture_active(void)
{
    return atomic_load(&ca_capturing) > 0;
}

/* Whether this one is; `ask` is the driver's cuStreamIsCapturing or its per-thread twin. */
bool ca_capture_includes(__typeof__(cuStreamIsCapturing) *ask, CUstream stream);

/* The same where no hook sees captures (ca_hooks_in_place): the driver is asked in any case. */
bool ca_capture_asked(CUstream stream);

/* A program that says by itself that it captures, where no hook sees it: the gate closes, and
 * memory is kept as in a capture; the number for the end, 0 where the gate stays open. At the end
 * `graph` stands for what was captured, in ca_graph_memory_destroy. */
uint64_t ca_capture_announced(void);
void ca_capture_announced_end(uint64_t number, const void *graph);

/* The context is destroyed, and with it the captures of its streams, and of its green contexts'.
 * By its id (cuCtxGetId), if that is not 0: the handle may be another context's by now. */
void ca_capture_context_destroyed(CUcontext context, unsigned long long id);

void ca_capture_reset_after_fork(void);

#endif
