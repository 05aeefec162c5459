/* What the order of work (pool/fence/order.h) calls a stream: a number that no other stream has as
 * long as it lives. For streams that the program made it is the handle. The legacy stream is one,
 * whether it is called 0 or 1. The per-thread default stream is one in each thread, by a number
 * that never comes again. */
#ifndef CA_SHIM_CUDA_STREAM_ID_H
#define CA_SHIM_CUDA_STREAM_ID_H

#include <stdint.h>
#include "shim/cuda/cuda_decls.h"

#define CA_STREAM_LEGACY UINT64_C(1)

/* The calling thread's; before it was asked for CA_STREAM_NOT_ASKED, which no stream has. */
#define CA_STREAM_NOT_ASKED UINT64_C(2)
extern __attribute__((visibility("hidden"))) _Thread_local uint64_t ca_stream_own;

uint64_t ca_stream_make_own(void);

/* `per_thread`: 1 in a per-thread twin, where the null stream is the thread's own. This is the
 * number, or CA_STREAM_NOT_ASKED where ca_stream_id has to look. */
static inline uint64_t ca_stream_id_again(CUstream stream, int per_thread)
{
    uint64_t handle = (uint64_t)(uintptr_t)stream;
    if (per_thread && !handle)
        return ca_stream_own;
    return handle + (handle == 0);
}

static inline uint64_t ca_stream_id(CUstream stream, int per_thread)
{
    uint64_t id = ca_stream_id_again(stream, per_thread);
    if (__builtin_expect(id != CA_STREAM_NOT_ASKED, 1))
        return id;
    return ca_stream_own != CA_STREAM_NOT_ASKED ? ca_stream_own : ca_stream_make_own();
}

/* The stream is about to be destroyed. */
void ca_stream_id_ends(CUstream stream);

#endif
