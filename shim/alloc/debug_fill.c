#include "shim/alloc/debug_fill.h"
#include <string.h>
#include "registry/table/freed.h"
#include "shim/alloc/debug_free.h"
#include "shim/alloc/debug_guard.h"
#include "shim/cuda/driver_table.h"
#include "shim/upstream/fences.h"
#include "shim/cuda/graph_memory.h"
#include "shim/upstream/upstream.h"

#define NOT_FILLED -1

void ca_debug_configure(void)
{
    if (ca_options.debug & CA_DEBUG_FREES)
        ca_freed_keep(CA_FREED_MOST);
}

void ca_debug_reset_after_fork(void)
{
    ca_debug_free_reset_after_fork();
}

static bool guards(void)
{
    return ca_options.debug & CA_DEBUG_REDZONE;
}

static bool poisons(void)
{
    return ca_options.debug & CA_DEBUG_POISON;
}

/* --- what is served --------------------------------------------------------------------------- */

/* A byte, or NOT_FILLED. A program that wants zeros gets them: fresh memory of the driver's has
 * them. */
static int acquired_byte(bool reused)
{
    if (ca_options.debug & CA_DEBUG_ZERO)
        return reused ? 0 : NOT_FILLED;
    return poisons() ? CA_DEBUG_ACQUIRED : NOT_FILLED;
}

/* Memory that comes in the order of a stream may still be at work there: it is filled in that
 * order, any other at once. */
static CUresult fill(ca_context_t *context, CUdeviceptr address, int value, size_t bytes,
                     const CUstream *stream)
{
    return stream ? ca_upstream_fill_on(context, address, (unsigned char)value, bytes, *stream)
                  : ca_upstream_fill(context, address, (unsigned char)value, bytes);
}

CUresult ca_debug_fill_slow(ca_context_t *context, CUdeviceptr address, size_t bytes, bool reused,
                            const CUstream *stream)
{
    CUresult code = CUDA_SUCCESS;
    int value = acquired_byte(reused);
    if (value != NOT_FILLED)
        code = fill(context, address, value, bytes, stream);
    if (code == CUDA_SUCCESS && guards()) {
        ca_guard_made();
        code = fill(context, address + bytes, CA_DEBUG_GUARD, CA_DEBUG_GUARD_BYTES, stream);
    }
    return code;
}

void ca_debug_fill_host(uint64_t address, size_t bytes, bool reused)
{
    char *memory = (char *)(uintptr_t)address;
    int value = acquired_byte(reused);
    if (value != NOT_FILLED)
        memset(memory, value, bytes);
    if (guards()) {
        ca_guard_made();
        memset(memory + bytes, CA_DEBUG_GUARD, CA_DEBUG_GUARD_BYTES);
    }
}

/* --- what is freed ---------------------------------------------------------------------------- */

static void freed_on(ca_context_t *context, const ca_allocation_t *record, CUstream stream)
{
    unsigned char guard[CA_DEBUG_GUARD_BYTES];
    uint64_t end = record->address + record->bytes;
    if (guards() && ca_upstream_read_on(context, end, guard, sizeof guard, stream) == CUDA_SUCCESS)
        ca_guard_check(record, guard, CA_GUARD_FREE);
    if (poisons())
        ca_upstream_fill_on(context, record->address, CA_DEBUG_FREED, record->bytes, stream);
}

static void freed_now(ca_context_t *context, const ca_allocation_t *record)
{
    unsigned char guard[CA_DEBUG_GUARD_BYTES];
    uint64_t end = record->address + record->bytes;
    if (ca_fence_synchronize(context, true) != 0)
        return;
    if (guards() && ca_upstream_read(context, end, guard, sizeof guard) == CUDA_SUCCESS)
        ca_guard_check(record, guard, CA_GUARD_FREE);
    if (poisons())
        ca_upstream_fill(context, record->address, CA_DEBUG_FREED, record->bytes);
}

/* A green context has default streams of its own: with the primary current they are not reached. */
static bool reaches(const ca_context_t *context, CUstream stream)
{
    CUcontext current = NULL;
    return (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) ||
           (ca_driver()->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context->handle);
}

void ca_debug_freed_slow(const ca_allocation_t *record, const ca_context_t *where, CUstream stream)
{
    ca_arena_t *arena = record->kind == CA_KIND_PINNED ? NULL : ca_block_arena(record->owner);
    ca_context_t *context = arena ? ca_arena_context(arena) : NULL;
    if (!context || atomic_load(&context->broken) || ca_graph_memory_wanted(record->address))
        return;
    if (where == context && reaches(context, stream))
        freed_on(context, record, stream);
    else /* another context's stream cannot work on it here */
        freed_now(context, record);
}

void ca_debug_freed_host(ca_context_t *context, const ca_allocation_t *record)
{
    char *memory = (char *)(uintptr_t)record->address;
    if (!(ca_options.debug & (CA_DEBUG_POISON | CA_DEBUG_REDZONE)) ||
        ca_fence_synchronize_host(context, true) != 0)
        return;
    if (guards())
        ca_guard_check(record, (const unsigned char *)memory + record->bytes, CA_GUARD_FREE);
    if (poisons())
        memset(memory, CA_DEBUG_FREED, record->bytes);
}
