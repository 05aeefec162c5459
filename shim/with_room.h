/* A driver call that takes device memory, made once more when it ran out of what our caches hold.
 */
#ifndef CA_SHIM_WITH_ROOM_H
#define CA_SHIM_WITH_ROOM_H

#include "shim/upstream.h"

/* `context` may be NULL: then nothing is given back. */
static inline bool ca_make_room(const ca_context_t *context)
{
    return context && ca_upstream_trim_device(context->device, NULL, SIZE_MAX) > 0;
}

#define WITH_ROOM(context, call)                                                                   \
    ({                                                                                             \
        CUresult code_ = (call);                                                                   \
        if (code_ == CUDA_ERROR_OUT_OF_MEMORY && ca_make_room(context))                            \
            code_ = (call);                                                                        \
        code_;                                                                                     \
    })

#endif
