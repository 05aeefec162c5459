/* Patterns in memory, for the options `debug` and `zero`: what is served is filled, what is freed
 * is filled too (poison), and behind what is served lies a guard that nothing may write to
 * (redzone).
 *
 * Memory is filled at its free once the work that the plain free would have waited for has passed,
 * for which it waits; what is freed on a stream, in the order of that stream. So no work that may
 * still use the memory finds it changed, and a later read finds the pattern. While
 * anything is captured, or where a wait fails, memory is freed as it is. */
#ifndef CA_SHIM_ALLOC_DEBUG_FILL_H
#define CA_SHIM_ALLOC_DEBUG_FILL_H

#include <stdbool.h>
#include <stddef.h>
#include "config/options.h"
#include "registry/table/registry.h"
#include "shim/cuda/contexts.h"
#include "shim/cuda/cuda_decls.h"

#define CA_DEBUG_ACQUIRED 0xCA /* fresh memory */
#define CA_DEBUG_FREED 0xDF
#define CA_DEBUG_GUARD 0xFD
#define CA_DEBUG_GUARD_BYTES 256u /* behind the last byte asked for */

/* With the configuration. */
void ca_debug_configure(void);
void ca_debug_reset_after_fork(void);

/* Bytes that the pool is asked for, for a request of `bytes`. */
static inline size_t ca_debug_padded(size_t bytes)
{
    bool guarded =
        (ca_options.debug & CA_DEBUG_REDZONE) && bytes <= SIZE_MAX - CA_DEBUG_GUARD_BYTES;
    return guarded ? bytes + CA_DEBUG_GUARD_BYTES : bytes;
}

/* Makes memory that the pool gives look as the options want it; in the order of `*stream`, or where
 * that is NULL at once. `reused`: some of it was served before. With no lock held. */
CUresult ca_debug_fill_slow(ca_context_t *context, CUdeviceptr address, size_t bytes, bool reused,
                            const CUstream *stream);
static inline CUresult ca_debug_fill(ca_context_t *context, CUdeviceptr address, size_t bytes,
                                     bool reused, const CUstream *stream)
{
    if (__builtin_expect(!(ca_options.debug & CA_DEBUG_ANY), 1))
        return CUDA_SUCCESS;
    return ca_debug_fill_slow(context, address, bytes, reused, stream);
}
void ca_debug_fill_host(uint64_t address, size_t bytes, bool reused);

/* Memory of the pool is freed: its record is taken out, its block has not gone back. On a stream of
 * the context `where`; NULL: by a plain free. With no lock held. */
void ca_debug_freed_slow(const ca_allocation_t *record, const ca_context_t *where, CUstream stream);
static inline void ca_debug_freed(const ca_allocation_t *record, const ca_context_t *where,
                                  CUstream stream)
{
    if (__builtin_expect(ca_options.debug & (CA_DEBUG_POISON | CA_DEBUG_REDZONE), 0))
        ca_debug_freed_slow(record, where, stream);
}
void ca_debug_freed_host(ca_context_t *context, const ca_allocation_t *record);

#endif
