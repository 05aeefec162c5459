/*
 * Kernel launches: from the <<<>>> configuration to the driver's launch. The runtime answers for
 * the configuration, with cudaErrorInvalidConfiguration, before the driver sees it; limits are
 * those of every compute capability since 5.0 (CUDA C++ Programming Guide, "Technical
 * Specifications").
 */
#include "rt.h"

#include <string.h>

/* --- <<<>>>: pushed by the caller, popped by the kernel's host stub --------------------------- */

typedef struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} config_t;

#define DEPTH 32 /* a kernel argument's evaluation may launch kernels itself: nesting, no more */
static _Thread_local config_t pushed[DEPTH];
static _Thread_local unsigned depth;

/* Not zero makes the generated code skip the launch. */
RT_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                               struct CUstream_st *stream)
{
    if (depth == DEPTH)
        return (unsigned)rt_done(cudaErrorInvalidConfiguration);
    pushed[depth++] = (config_t){grid, block, shared, stream};
    return 0;
}

RT_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                                                 void *stream)
{
    if (depth == 0)
        return rt_done(cudaErrorMissingConfiguration);
    const config_t *c = &pushed[--depth];
    *grid = c->grid;
    *block = c->block;
    *shared = c->shared;
    memcpy(stream, &c->stream, sizeof c->stream);
    return cudaSuccess;
}

/* --- launches --------------------------------------------------------------------------------- */

static bool fits(dim3 d, unsigned x, unsigned y, unsigned z)
{
    return d.x - 1 < x && d.y - 1 < y && d.z - 1 < z; /* unsigned: zero does not fit */
}

static cudaError_t check(dim3 grid, dim3 block)
{
    bool ok = fits(grid, 0x7fffffff, 65535, 65535) && fits(block, 1024, 1024, 64) &&
              (uint64_t)block.x * block.y * block.z <= 1024;
    return ok ? cudaSuccess : cudaErrorInvalidConfiguration;
}

static cudaError_t launch(const rt_driver_t *drv, CUkernel kernel, dim3 grid, dim3 block,
                          void **args, size_t shared, cudaStream_t stream)
{
    RT_TRY(check(grid, block));
    return rt_err(drv->cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y,
                                      block.z, (unsigned)shared, stream, args, NULL));
}

/* nvcc's host stubs look their kernel up once and launch by handle from then on. */
RT_FN(__cudaGetKernel, (cudaKernel_t * kernel, const void *func), kernel, func)
{
    RT_NEED(kernel);
    return rt_kernel(func, kernel);
}

RT_TWIN(__cudaLaunchKernel, _ptsz,
        (cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
         cudaStream_t stream),
        kernel, grid, block, args, shared, stream)
{
    if (kernel == NULL)
        return cudaErrorInvalidDeviceFunction;
    return launch(drv, kernel, grid, block, args, shared, stream);
}

RT_TWIN(cudaLaunchKernel, _ptsz,
        (const void *func, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream),
        func, grid, block, args, shared, stream)
{
    CUkernel kernel;
    RT_TRY(rt_kernel(func, &kernel));
    return launch(drv, kernel, grid, block, args, shared, stream);
}

RT_TWIN(cudaLaunchCooperativeKernel, _ptsz,
        (const void *func, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream),
        func, grid, block, args, shared, stream)
{
    CUkernel kernel;
    RT_TRY(rt_kernel(func, &kernel));
    RT_TRY(check(grid, block));
    return rt_err(drv->cuLaunchCooperativeKernel((CUfunction)kernel, grid.x, grid.y, grid.z,
                                                 block.x, block.y, block.z, (unsigned)shared,
                                                 stream, args));
}

_Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute), "launch attributes");

static CUlaunchConfig to_driver(const cudaLaunchConfig_t *c)
{
    CUlaunchConfig d;
    memset(&d, 0, sizeof d);
    d.gridDimX = c->gridDim.x;
    d.gridDimY = c->gridDim.y;
    d.gridDimZ = c->gridDim.z;
    d.blockDimX = c->blockDim.x;
    d.blockDimY = c->blockDim.y;
    d.blockDimZ = c->blockDim.z;
    d.sharedMemBytes = (unsigned)c->dynamicSmemBytes;
    d.hStream = c->stream;
    d.attrs = (CUlaunchAttribute *)c->attrs;
    d.numAttrs = c->numAttrs;
    return d;
}

RT_TWIN(cudaLaunchKernelExC, _ptsz,
        (const cudaLaunchConfig_t *config, const void *func, void **args), config, func, args)
{
    CUkernel kernel;
    RT_NEED(config);
    RT_TRY(rt_kernel(func, &kernel));
    RT_TRY(check(config->gridDim, config->blockDim));
    CUlaunchConfig d = to_driver(config);
    return rt_err(drv->cuLaunchKernelEx(&d, (CUfunction)kernel, args, NULL));
}

/* --- occupancy -------------------------------------------------------------------------------- */

static cudaError_t max_blocks(int *blocks, const void *func, int threads, size_t shared,
                              unsigned int flags)
{
    CUkernel kernel;
    RT_NEED(blocks);
    RT_TRY(rt_kernel(func, &kernel));
    return rt_err(rt_legacy.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, (CUfunction)kernel, threads, shared, flags));
}

RT_FN(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
      (int *blocks, const void *func, int threads, size_t shared), blocks, func, threads, shared)
{
    return max_blocks(blocks, func, threads, shared, 0);
}

RT_FN(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int *blocks, const void *func, int threads, size_t shared, unsigned int flags), blocks, func,
      threads, shared, flags)
{
    return max_blocks(blocks, func, threads, shared, flags);
}

RT_FN(cudaOccupancyAvailableDynamicSMemPerBlock,
      (size_t * bytes, const void *func, int blocks, int threads), bytes, func, blocks, threads)
{
    CUkernel kernel;
    RT_NEED(bytes);
    RT_TRY(rt_kernel(func, &kernel));
    return rt_err(rt_legacy.cuOccupancyAvailableDynamicSMemPerBlock(bytes, (CUfunction)kernel,
                                                                    blocks, threads));
}

RT_FN(cudaOccupancyMaxPotentialClusterSize,
      (int *size, const void *func, const cudaLaunchConfig_t *config), size, func, config)
{
    CUkernel kernel;
    RT_NEED(size);
    RT_NEED(config);
    RT_TRY(rt_kernel(func, &kernel));
    CUlaunchConfig d = to_driver(config);
    return rt_err(rt_legacy.cuOccupancyMaxPotentialClusterSize(size, (CUfunction)kernel, &d));
}

RT_FN(cudaOccupancyMaxActiveClusters,
      (int *clusters, const void *func, const cudaLaunchConfig_t *config), clusters, func, config)
{
    CUkernel kernel;
    RT_NEED(clusters);
    RT_NEED(config);
    RT_TRY(rt_kernel(func, &kernel));
    CUlaunchConfig d = to_driver(config);
    return rt_err(rt_legacy.cuOccupancyMaxActiveClusters(clusters, (CUfunction)kernel, &d));
}
