/* Out of memory: what is done about it, and said, before the program is told. */
#ifndef CA_SHIM_OOM_H
#define CA_SHIM_OOM_H

#include <stdbool.h>
#include <stddef.h>
#include "registry/registry.h"
#include "shim/cuda_decls.h"

/* Asks the program's own function (cachealloc_on_oom) for memory. Whether the call is to be made
 * once more. Under no lock of ours; false inside that function. */
bool ca_oom_retry(ca_kind_t kind, size_t bytes);

/* Says what was asked, what there is and who holds it, as often as `oom_report` allows. Under no
 * lock of ours. Allocates nothing from the heap; nothing large is on the stack. */
void ca_oom_report(ca_kind_t kind, size_t bytes);

void ca_oom_reset_after_fork(void);

/* An allocation call, whose answer goes to the program: once more where its function says so. */
#define CA_WITH_OOM(kind, bytes, call)                                                             \
    ({                                                                                             \
        CUresult oom_ = (call);                                                                    \
        if (__builtin_expect(oom_ == CUDA_ERROR_OUT_OF_MEMORY, 0)) {                               \
            if (ca_oom_retry(kind, bytes))                                                         \
                oom_ = (call);                                                                     \
            if (oom_ == CUDA_ERROR_OUT_OF_MEMORY)                                                  \
                ca_oom_report(kind, bytes);                                                        \
        }                                                                                          \
        oom_;                                                                                      \
    })

#endif
