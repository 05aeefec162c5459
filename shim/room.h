/* Room for what the driver serves: memory that the pool keeps and nobody uses goes back to it. */
#ifndef CA_SHIM_ROOM_H
#define CA_SHIM_ROOM_H

#include <stdbool.h>
#include "shim/contexts.h"

/* Each gives back all that lies idle, or where there is nothing what work in flight lets go of: on
 * the device of `context` (NULL: nothing), on a device, on that of the current context, on every
 * device. Returns whether there was any. The calling thread's captures and context are as before.
 */
bool ca_room_make(const ca_context_t *context);
bool ca_room_make_on(CUdevice device);
bool ca_room_make_here(void);
bool ca_room_make_everywhere(void);

/* The driver's call, and again while it runs out of memory and we have some to give: what is idle,
 * then what work in flight has to let go of. `room` is one of the above, evaluated only then: with
 * nothing to give the driver's own code is the answer. */
#define CA_WITH_ROOM(room, call)                                                                   \
    ({                                                                                             \
        CUresult code_ = (call);                                                                   \
        while (code_ == CUDA_ERROR_OUT_OF_MEMORY && (room))                                        \
            code_ = (call);                                                                        \
        code_;                                                                                     \
    })

#endif
