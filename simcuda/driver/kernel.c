/* Kernels: attributes, occupancy, launches. A launch takes the stream's time and touches nothing:
 * kernel_ns each, 0 by default. */
#include "sim.h"
#include "module.h"

#include <stdio.h>

enum { MAX_THREADS = 1024, DEFAULT_SHARED = 49152, MAX_SHARED = 232448, SM_THREADS = 2048 };

static CUresult kernel_of(void *handle, sim_kernel_t **out)
{
    *out = handle;
    return *out && (*out)->magic == SIM_KERNEL_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get_attribute(int *pi, CUfunction_attribute attrib, void *handle)
{
    sim_kernel_t *k;
    SIM_TRY(kernel_of(handle, &k));
    if (!pi || (int)attrib < 0 || attrib >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int dynamic = atomic_load(&k->max_dynamic_shared);
    switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *pi = MAX_THREADS;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *pi = 32;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *pi = sim_opt.arch;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *pi = dynamic ? dynamic : DEFAULT_SHARED;
        break;
    default:
        *pi = 0;
        break;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute attrib, int value, void *handle)
{
    sim_kernel_t *k;
    SIM_TRY(kernel_of(handle, &k));
    if (attrib < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
        attrib >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE; /* the others cannot be set */
    }
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > MAX_SHARED) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        atomic_store(&k->max_dynamic_shared, value);
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetAttribute);
    return get_attribute(pi, attrib, hfunc);
}

SIM_API CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    SIM_ENTER(cuFuncSetAttribute);
    return set_attribute(attrib, value, hfunc);
}

SIM_API CUresult cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel,
                                      CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuKernelGetAttribute);
    SIM_TRY(sim_device_get(dev, &d));
    return get_attribute(pi, attrib, kernel);
}

SIM_API CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel,
                                      CUdevice dev)
{
    sim_device_t *d;
    SIM_ENTER(cuKernelSetAttribute);
    SIM_TRY(sim_device_get(dev, &d));
    return set_attribute(attrib, val, kernel);
}

SIM_API CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    sim_kernel_t *k;
    SIM_ENTER(cuFuncSetCacheConfig);
    (void)config;
    return kernel_of(hfunc, &k);
}

SIM_API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    sim_kernel_t *k;
    SIM_ENTER(cuKernelSetCacheConfig);
    (void)config;
    (void)dev;
    return kernel_of(kernel, &k);
}

static CUresult get_name(const char **name, void *handle)
{
    sim_kernel_t *k;
    SIM_TRY(kernel_of(handle, &k));
    if (!name) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *name = k->name;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetName(const char **name, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetName);
    return get_name(name, hfunc);
}

SIM_API CUresult cuKernelGetName(const char **name, CUkernel hfunc)
{
    SIM_ENTER(cuKernelGetName);
    return get_name(name, hfunc);
}

/* --- occupancy ---------------------------------------------------------------------------------*/
static CUresult occupancy(int *blocks, void *func, int block_size, size_t shared)
{
    sim_kernel_t *k;
    SIM_TRY(kernel_of(func, &k));
    if (!blocks || block_size <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int n = block_size > MAX_THREADS ? 0 : SM_THREADS / block_size;
    n = n > 32 ? 32 : n;
    if (shared && (int)(MAX_SHARED / shared) < n) {
        n = (int)(MAX_SHARED / shared);
    }
    *blocks = n;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, CUfunction func,
                                                             int blockSize, size_t dynamicSMemSize)
{
    SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    return occupancy(numBlocks, func, blockSize, dynamicSMemSize);
}

SIM_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *numBlocks, CUfunction func, int blockSize, size_t dynamicSMemSize, unsigned int flags)
{
    SIM_ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    if (flags & ~1u) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return occupancy(numBlocks, func, blockSize, dynamicSMemSize);
}

SIM_API CUresult cuOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, CUfunction func,
                                                  CUoccupancyB2DSize toShared, size_t shared,
                                                  int limit)
{
    sim_kernel_t *k;
    SIM_ENTER(cuOccupancyMaxPotentialBlockSize);
    SIM_TRY(kernel_of(func, &k));
    (void)toShared;
    (void)shared;
    if (!minGridSize || !blockSize) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *blockSize = limit > 0 && limit < MAX_THREADS ? limit : MAX_THREADS;
    *minGridSize = 132 * (SM_THREADS / *blockSize > 32 ? 32 : SM_THREADS / *blockSize);
    return CUDA_SUCCESS;
}

/* --- launches
 * ------------------------------------------------------------------------------------*/
typedef struct dims {
    unsigned gx, gy, gz, bx, by, bz, shared;
} dims_t;

/* A body's argument is the first parameter, a pointer. */
static CUresult make(CUfunction f, dims_t d, void **params, sim_op_t *op)
{
    sim_kernel_t *k;
    SIM_TRY(kernel_of(f, &k));
    int most = atomic_load(&k->max_dynamic_shared);
    if (!d.gx || !d.gy || !d.gz || !d.bx || !d.by || !d.bz || d.gy > 65535 || d.gz > 65535 ||
        d.bx > MAX_THREADS || d.by > MAX_THREADS || d.bz > 64 ||
        (uint64_t)d.bx * d.by * d.bz > MAX_THREADS ||
        d.shared > (unsigned)(most > DEFAULT_SHARED ? most : DEFAULT_SHARED)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(sim_kernel_load(k));
    *op = (sim_op_t){.kind = SIM_OP_KERNEL, .u.kernel.ns = sim_opt.kernel_ns};
    op->u.kernel.body = atomic_load(&k->body);
    op->u.kernel.arg = op->u.kernel.body && params && params[0] ? *(void **)params[0] : NULL;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, CUstream h, bool pt, dims_t d, void **params,
                       bool programmatic)
{
    CUstream s;
    sim_op_t op;
    SIM_TRY(sim_stream_resolve(h, pt, &s));
    SIM_TRY(make(f, d, params, &op));
    op.u.kernel.programmatic = programmatic;
    return sim_submit(s, &op, false);
}

CUresult sim_kernel_op(const CUDA_KERNEL_NODE_PARAMS *p, sim_op_t *op)
{
    return p ? make(p->func ? p->func : (CUfunction)p->kern,
                    (dims_t){p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
                             p->blockDimZ, p->sharedMemBytes},
                    p->kernelParams, op)
             : CUDA_ERROR_INVALID_VALUE;
}

SIM_BOTH(cuLaunchKernel, cuLaunchKernel_ptsz,
         (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
          unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
          unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra),
         ((void)extra, launch(f, hStream, pt,
                              (dims_t){gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                       blockDimZ, sharedMemBytes},
                              kernelParams, false)))
SIM_BOTH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz,
         (CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
          unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
          unsigned int sharedMemBytes, CUstream hStream, void **kernelParams),
         launch(f, hStream, pt,
                (dims_t){gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                         sharedMemBytes},
                kernelParams, false))

/* Attributes that change what the launch orders; others are hints here. */
static CUresult attributes(const CUlaunchConfig *c, bool *programmatic)
{
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttribute *a = &c->attrs[i];
        if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
            a->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
            fprintf(stderr, "simcuda: an event of a launch is not modelled\n");
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            *programmatic = a->value.programmaticStreamSerializationAllowed != 0;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, bool pt, void **params)
{
    bool programmatic = false;
    if (!c || (c->numAttrs && !c->attrs)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    SIM_TRY(attributes(c, &programmatic));
    return launch(f, c->hStream, pt,
                  (dims_t){c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                           c->blockDimZ, c->sharedMemBytes},
                  params, programmatic);
}

SIM_BOTH(cuLaunchKernelEx, cuLaunchKernelEx_ptsz,
         (const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra),
         ((void)extra, launch_ex(config, f, pt, kernelParams)))

/* cuda.h, cuLaunchCooperativeKernelMultiDevice: every kernel waits for all that the streams have to
 * do, and what comes behind in any of them for all of the kernels, unless flags say otherwise. */
static void meet(const CUDA_LAUNCH_PARAMS *all, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < n; k++) {
            if (k != i) {
                sim_stream_waits_for(all[i].hStream, all[k].hStream);
            }
        }
    }
}

static CUresult multi_device(const CUDA_LAUNCH_PARAMS *all, unsigned n, unsigned flags)
{
    CUstream s;
    if (!all || !n || n > (unsigned)sim_opt.devices ||
        flags & ~(unsigned)(CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                            CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t devices = 0;
    for (unsigned i = 0; i < n; i++) {
        if (!all[i].hStream || all[i].hStream == CU_STREAM_LEGACY ||
            all[i].hStream == CU_STREAM_PER_THREAD) {
            return CUDA_ERROR_INVALID_VALUE; /* "may not be NULL" */
        }
        SIM_TRY(sim_stream_resolve(all[i].hStream, false, &s));
        uint32_t bit = 1u << s->ctx->dev->ordinal;
        if (devices & bit) {
            return CUDA_ERROR_INVALID_VALUE; /* "no two kernels can be launched on the same device"
                                              */
        }
        devices |= bit;
        if (sim_capture_has(s)) {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    if (!(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC)) {
        meet(all, n);
    }
    for (unsigned i = 0; i < n; i++) {
        const CUDA_LAUNCH_PARAMS *p = &all[i];
        SIM_TRY(launch(p->function, p->hStream, false,
                       (dims_t){p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY,
                                p->blockDimZ, p->sharedMemBytes},
                       p->kernelParams, false));
    }
    if (!(flags & CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC)) {
        meet(all, n);
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                      unsigned int numDevices, unsigned int flags)
{
    SIM_ENTER(cuLaunchCooperativeKernelMultiDevice);
    return multi_device(launchParamsList, numDevices, flags);
}

/* --- before CUDA 4: shape and parameters belong to the function
 * ---------------------------------*/
SIM_API CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z)
{
    sim_kernel_t *k;
    SIM_ENTER(cuFuncSetBlockShape);
    SIM_TRY(kernel_of(hfunc, &k));
    if (x < 1 || y < 1 || z < 1 || (int64_t)x * y * z > MAX_THREADS || z > 64) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    k->shape[0] = (unsigned)x;
    k->shape[1] = (unsigned)y;
    k->shape[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes)
{
    sim_kernel_t *k;
    SIM_ENTER(cuFuncSetSharedSize);
    SIM_TRY(kernel_of(hfunc, &k));
    k->shape[3] = bytes;
    return CUDA_SUCCESS;
}

static CUresult old_launch(CUfunction f, int width, int height, CUstream h)
{
    sim_kernel_t *k;
    SIM_TRY(kernel_of(f, &k));
    if (width < 1 || height < 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    dims_t d = {(unsigned)width, (unsigned)height, 1,          k->shape[0],
                k->shape[1],     k->shape[2],      k->shape[3]};
    d.bx = d.bx ? d.bx : 1;
    d.by = d.by ? d.by : 1;
    d.bz = d.bz ? d.bz : 1;
    return launch(f, h, false, d, NULL, false);
}

SIM_API CUresult cuLaunch(CUfunction f)
{
    SIM_ENTER(cuLaunch);
    return old_launch(f, 1, 1, NULL);
}

SIM_API CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    SIM_ENTER(cuLaunchGrid);
    return old_launch(f, grid_width, grid_height, NULL);
}

SIM_API CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    SIM_ENTER(cuLaunchGridAsync);
    return old_launch(f, grid_width, grid_height, hStream);
}
