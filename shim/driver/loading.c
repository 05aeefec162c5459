/* The driver API's hooks: code and graphs, which take device memory when they are loaded. These
 * calls are not tracked, but repeated: when one is out of memory the pool releases what would be
 * free without the shim, and the call is made once more.
 *
 * Loading is lazy by default: a module's kernels are loaded by cuModuleGetFunction, a library's by
 * cuKernelGetFunction or cuLibraryGetModule in each context, functions by cuFuncLoad, and variables
 * get their memory when they are first asked for (Programming Guide, "Lazy Loading"). So these
 * calls can run out of memory, too. So can the launch that loads its kernel: those launches are not
 * wrapped, and the option `headroom` keeps memory free for them.
 *
 * Memory of a graph's nodes is mapped by its launch, or by an upload before (Programming Guide,
 * "First Launch / cudaGraphUpload"), though cuda.h names no shortage there. */
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include "shim/upstream/async_pool.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/graph_memory.h"
#include "shim/upstream/reclaim.h"
#include "shim/cuda/submissions.h"
#include "shim/cuda/unseen.h"

CA_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path)
{
    CA_REAL(cuModuleLoad);
    ca_unseen_scan();
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(module, path));
}

CA_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    CA_REAL(cuModuleLoadData);
    ca_unseen_scan();
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(module, image));
}

CA_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                              CUjit_option *options, void **values)
{
    CA_REAL(cuModuleLoadDataEx);
    ca_unseen_scan();
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(module, image, count, options, values));
}

CA_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    CA_REAL(cuModuleLoadFatBinary);
    ca_unseen_scan();
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(module, image));
}

CA_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module,
                                               const char *name)
{
    CA_REAL(cuModuleGetFunction);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(function, module, name));
}

CA_EXPORT CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes,
                                                CUmodule module, const char *name)
{
    CA_REAL(cuModuleGetGlobal_v2);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(address, bytes, module, name));
}

CA_EXPORT CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
    CA_REAL(cuFuncLoad);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(function));
}

/* A library belongs to no context: eager loading loads it into every context. */

CA_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code,
                                             CUjit_option *jit, void **jit_values,
                                             unsigned jit_count, CUlibraryOption *options,
                                             void **values, unsigned count)
{
    CA_REAL(cuLibraryLoadData);
    ca_unseen_scan();
    return CA_WITH_RECLAIM(ca_reclaim_everywhere(),
                           real(library, code, jit, jit_values, jit_count, options, values, count));
}

CA_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path,
                                                 CUjit_option *jit, void **jit_values,
                                                 unsigned jit_count, CUlibraryOption *options,
                                                 void **values, unsigned count)
{
    CA_REAL(cuLibraryLoadFromFile);
    ca_unseen_scan();
    return CA_WITH_RECLAIM(ca_reclaim_everywhere(),
                           real(library, path, jit, jit_values, jit_count, options, values, count));
}

CA_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    CA_REAL(cuLibraryGetModule);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(module, library));
}

CA_EXPORT CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes,
                                              CUlibrary library, const char *name)
{
    CA_REAL(cuLibraryGetGlobal);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(address, bytes, library, name));
}

CA_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CA_REAL(cuKernelGetFunction);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(function, kernel));
}

CA_EXPORT CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value,
                                                CUkernel kernel, CUdevice device)
{
    CA_REAL(cuKernelSetAttribute);
    return CA_WITH_RECLAIM(ca_reclaim_on(device), real(attribute, value, kernel, device));
}

CA_EXPORT CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config,
                                                  CUdevice device)
{
    CA_REAL(cuKernelSetCacheConfig);
    return CA_WITH_RECLAIM(ca_reclaim_on(device), real(kernel, config, device));
}

/* The limits size stacks, memory for malloc in kernels and the like; cuda.h names the shortage. */
CA_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    CA_REAL(cuCtxSetLimit);
    return CA_WITH_RECLAIM(ca_reclaim_here(), real(limit, value));
}

/* A graph's nodes may be of any device. */

/* Their first member is `flags`. */
static void note_flags(const CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (params)
        ca_unseen_graph(*(const cuuint64_t *)(const void *)params);
}

static CUresult instantiated(CUresult code, CUgraphExec *made, CUgraph graph)
{
    if (code == CUDA_SUCCESS) {
        ca_graph_memory_derived(*made, graph);
        ca_async_pool_note_graph();
    }
    return code;
}

CA_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *made, CUgraph graph,
                                                 CUgraphNode *node, char *log, size_t bytes)
{
    CA_REAL(cuGraphInstantiate_v2);
    return instantiated(
        CA_WITH_RECLAIM(ca_reclaim_everywhere(), real(made, graph, node, log, bytes)), made, graph);
}

CA_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph,
                                                       unsigned long long flags)
{
    CA_REAL(cuGraphInstantiateWithFlags);
    ca_unseen_graph(flags);
    return instantiated(CA_WITH_RECLAIM(ca_reclaim_everywhere(), real(made, graph, flags)), made,
                        graph);
}

CA_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *made, CUgraph graph,
                                                        CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CA_REAL(cuGraphInstantiateWithParams);
    note_flags(params);
    return instantiated(CA_WITH_RECLAIM(ca_reclaim_everywhere(), real(made, graph, params)), made,
                        graph);
}

CA_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *made, CUgraph graph,
                                                             CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CA_REAL(cuGraphInstantiateWithParams_ptsz);
    note_flags(params);
    return instantiated(CA_WITH_RECLAIM(ca_reclaim_everywhere(), real(made, graph, params)), made,
                        graph);
}

typedef __typeof__(cuGraphLaunch) graph_call_t;

/* The retry is prepared after the first call, so it misses a context that was destroyed during that
 * call and not since. Memory that was released just now may not have been free for that call, so it
 * does not count as seen. */
static __attribute__((noinline, cold)) CUresult reclaim_and_retry(size_t of_real, CUgraphExec graph,
                                                                  CUstream stream)
{
    graph_call_t *real;
    memcpy(&real, (const char *)ca_driver() + of_real, sizeof real);
    ca_retry_t retry = ca_retry_begin();
    retry.released -= ca_giving_just_now();
    return CA_RECLAIM_AND_RETRY(&retry, ca_reclaim_everywhere(), real(graph, stream));
}

/* Launches are many and nearly all succeed: the code for the others stays out of their way. */
#define WITH_RECLAIM(symbol)                                                                       \
    ({                                                                                             \
        CUresult code_ = real(graph, stream);                                                      \
        __builtin_expect(code_ != CUDA_ERROR_OUT_OF_MEMORY, 1)                                     \
            ? code_                                                                                \
            : reclaim_and_retry(offsetof(ca_driver_t, symbol), graph, stream);                     \
    })

/* A call that asks whether reuse in order is on, and repeats itself where it is out of memory. An
 * upload maps memory alone, but in the order of the stream. */
#define GRAPH_CALL(symbol, per_thread, work)                                                       \
    static __attribute__((noinline)) CUresult submit_##symbol(CUgraphExec graph, CUstream stream)  \
    {                                                                                              \
        CA_REAL(symbol);                                                                           \
        return CA_SUBMIT(stream, per_thread, work, WITH_RECLAIM(symbol));                          \
    }                                                                                              \
    CA_EXPORT CUresult CUDAAPI symbol(CUgraphExec graph, CUstream stream)                          \
    {                                                                                              \
        const ca_driver_t *driver =                                                                \
            atomic_load_explicit(&ca_driver_published, memory_order_acquire);                      \
        graph_call_t *real = driver ? driver->symbol : NULL;                                       \
        if (!real ||                                                                               \
            atomic_load_explicit(&ca_order_current, memory_order_relaxed) != CA_ORDER_OFF)         \
            return submit_##symbol(graph, stream);                                                 \
        return WITH_RECLAIM(symbol);                                                               \
    }
GRAPH_CALL(cuGraphUpload, 0, CA_WORK)
GRAPH_CALL(cuGraphUpload_ptsz, 1, CA_WORK)
GRAPH_CALL(cuGraphLaunch, 0, ca_graph_launch_work())
GRAPH_CALL(cuGraphLaunch_ptsz, 1, ca_graph_launch_work())
