/* Debug builds count what comes by the wrappers of submissions, and keep for which tables of
 * functions the driver was asked: tests/gpu/facts_seen.c compares the first with what has reached
 * the device, and lists the second. Other builds have none of it. */
#ifndef CA_SHIM_CUDA_SEEN_H
#define CA_SHIM_CUDA_SEEN_H

#include "shim/cuda/cuda_decls.h"

#if CA_DEBUG
#include <stddef.h>

typedef struct ca_seen {
    const char *symbol;
    struct ca_seen *next;
    _Atomic unsigned long calls;
} ca_seen_t;

void ca_seen_call(ca_seen_t *wrapper);
void ca_seen_table(const CUuuid *id);
#define CA_SEEN(name)                                                                              \
    do {                                                                                           \
        static ca_seen_t seen_ = {.symbol = (name)};                                               \
        ca_seen_call(&seen_);                                                                      \
    } while (0)

/* Calls that came by wrappers whose symbols begin so. */
CA_EXPORT unsigned long cachealloc_seen(const char *begins);
/* Tables that were asked for, the first `most` times; returns how often. */
CA_EXPORT size_t cachealloc_seen_tables(CUuuid *tables, size_t most);
#else
#define CA_SEEN(name) ((void)0)
static inline void ca_seen_table(const CUuuid *id)
{
    (void)id;
}
#endif

#endif
