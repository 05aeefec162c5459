/* Out of memory: what is done about it, and said, before the program sees it. */
#ifndef CA_SHIM_ALLOC_OOM_H
#define CA_SHIM_ALLOC_OOM_H

#include <stdbool.h>
#include <stddef.h>
#include "include/cachealloc.h"
#include "registry/table/registry.h"
#include "shim/cuda/cuda_decls.h"

#define CA_OOM_HERE ((CUdevice)-1) /* the current context's device */

/* The program's own function, or NULL for none (cachealloc_on_oom). */
void ca_oom_set_function(cachealloc_oom_t wanted, void *arg);

/* Asks the program's own function (cachealloc_on_oom) for memory. Whether the call is to be made
 * once more. Under no lock of ours; false inside that function. */
bool ca_oom_retry(ca_kind_t kind, size_t bytes, CUdevice device);

/* Says what was asked, what there is and what holds it, as often as `oom_report` allows. Under no
 * lock of ours. Allocates nothing from the C library's heap; nothing large is on the stack. */
void ca_oom_report(ca_kind_t kind, size_t bytes, CUdevice device);

void ca_oom_reset_after_fork(void);

/* An allocation call, whose answer goes to the program: once more where its function says so. Of
 * which device is asked only then. */
#define CA_WITH_OOM(kind, bytes, device, call)                                                     \
    ({                                                                                             \
        CUresult oom_ = (call);                                                                    \
        if (__builtin_expect(oom_ == CUDA_ERROR_OUT_OF_MEMORY, 0)) {                               \
            CUdevice where_ = (device);                                                            \
            if (ca_oom_retry(kind, bytes, where_))                                                 \
                oom_ = (call);                                                                     \
            if (oom_ == CUDA_ERROR_OUT_OF_MEMORY)                                                  \
                ca_oom_report(kind, bytes, where_);                                                \
        }                                                                                          \
        oom_;                                                                                      \
    })

#endif
