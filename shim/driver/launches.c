/* Launches that may begin before the kernel in front of them has ended (programmatic stream
 * serialization), and memory that is freed and allocated again in the order of a stream. A pair of
 * such calls submits nothing, so nothing stands between the kernel that had the memory and the one
 * that gets it. Whether the driver's own calls do is not documented: a program may rely on it. So
 * the first such launch on a stream after a reuse there is made as a common one, which waits for
 * all before it; the attribute is a permission, and no program can tell. What is captured stays as
 * it is: a graph as a whole waits for what is before it. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include "base/mem.h"
#include "shim/cuda/capture.h"
#include "shim/cuda/driver_table.h"
#include "shim/cuda/seen.h"
#include "shim/cuda/streams.h"
#include "shim/cuda/submissions.h"

#define ATTRIBUTES 16u /* on the stack; there are hardly more kinds */

typedef struct launch {
    __typeof__(cuLaunchKernelEx) *real;
    CUfunction function;
    void **params, **extra;
    int per_thread;
} launch_t;

static CUresult submit(const launch_t *launch, const CUlaunchConfig *config, unsigned work)
{
    return CA_SUBMIT(ca_launch_stream(config), launch->per_thread, work,
                     launch->real(config, launch->function, launch->params, launch->extra));
}

/* Submits it as a common launch. */
static CUresult submit_common(const launch_t *launch, const CUlaunchConfig *config, unsigned work)
{
    CUlaunchAttribute some[ATTRIBUTES], *attributes = some;
    CUlaunchConfig common = *config;
    size_t bytes = config->numAttrs * sizeof(*attributes);
    if (config->numAttrs > ATTRIBUTES && !(attributes = ca_mem_map(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(attributes, config->attrs, bytes);
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (ca_attribute_overlaps((unsigned)attributes[i].id))
            attributes[i].id = 0; /* CU_LAUNCH_ATTRIBUTE_IGNORE */
    common.attrs = attributes;
    CUresult code = submit(launch, &common, work);
    if (attributes != some)
        ca_mem_unmap(attributes, bytes);
    return code;
}

static bool may_overlap(const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (ca_attribute_overlaps((unsigned)config->attrs[i].id))
            return true;
    return false;
}

/* The stream, if it handed out memory that a launch has to wait for. */
static ca_stream_t *reused_on(CUstream handle, int per_thread)
{
    const ca_driver_t *driver = ca_driver();
    if (!ca_streams_any_reused() ||
        ca_capture_includes(
            per_thread ? driver->cuStreamIsCapturing_ptsz : driver->cuStreamIsCapturing, handle))
        return NULL;
    return ca_streams_known(per_thread ? ca_stream_per_thread(handle) : handle);
}

static CUresult launch_early(const launch_t *launch, const CUlaunchConfig *config, unsigned work)
{
    ca_stream_t *stream =
        may_overlap(config) ? reused_on(config->hStream, launch->per_thread) : NULL;
    uint64_t begun = stream ? ca_stream_begin_serial(stream) : 0;
    ca_work_captured(work);
    if (!begun)
        return submit(launch, config, work);
    CUresult code = submit_common(launch, config, work);
    if (code == CUDA_SUCCESS)
        ca_stream_made_serial(stream, begun);
    return code;
}

static CUresult launch(const launch_t *launch, const CUlaunchConfig *config)
{
    unsigned work = ca_launch_work(config);
    return work ? launch_early(launch, config, work) : submit(launch, config, work);
}

CA_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function,
                                            void **params, void **extra)
{
    CA_REAL(cuLaunchKernelEx);
    CA_SEEN("cuLaunchKernelEx");
    return launch(&(launch_t){real, function, params, extra, 0}, config);
}

CA_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function,
                                                 void **params, void **extra)
{
    CA_REAL(cuLaunchKernelEx_ptsz);
    CA_SEEN("cuLaunchKernelEx_ptsz");
    return launch(&(launch_t){real, function, params, extra, 1}, config);
}
