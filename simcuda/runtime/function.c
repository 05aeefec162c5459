/*
 * Attributes of kernels, and libraries that a program loads itself. A cudaKernel_t is the driver's
 * CUkernel; those handed out are known to module.c, which lets them stand wherever a host stub's
 * address can (cuda_runtime_api.h: "note_cudaKernel_t").
 */
#include "rt.h"

#include <string.h>

/* The kernel and the device that its attributes are asked for. */
static cudaError_t kernel_here(const void *func, CUkernel *kernel, CUdevice *dev)
{
    RT_TRY(rt_kernel(func, kernel));
    return rt_err(rt_legacy.cuCtxGetDevice(dev));
}

static int attribute(CUkernel kernel, CUdevice dev, CUfunction_attribute what)
{
    int v = 0;
    return rt_legacy.cuKernelGetAttribute(&v, what, kernel, dev) == CUDA_SUCCESS ? v : 0;
}

RT_FN(cudaFuncGetAttributes, (struct cudaFuncAttributes * out, const void *func), out, func)
{
    CUkernel k;
    CUdevice d;
    RT_NEED(out);
    RT_TRY(kernel_here(func, &k, &d));
    memset(out, 0, sizeof *out);
    out->sharedSizeBytes = (size_t)attribute(k, d, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    out->constSizeBytes = (size_t)attribute(k, d, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
    out->localSizeBytes = (size_t)attribute(k, d, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    out->maxThreadsPerBlock = attribute(k, d, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    out->numRegs = attribute(k, d, CU_FUNC_ATTRIBUTE_NUM_REGS);
    out->ptxVersion = attribute(k, d, CU_FUNC_ATTRIBUTE_PTX_VERSION);
    out->binaryVersion = attribute(k, d, CU_FUNC_ATTRIBUTE_BINARY_VERSION);
    out->cacheModeCA = attribute(k, d, CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
    out->maxDynamicSharedSizeBytes =
        attribute(k, d, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    out->preferredShmemCarveout =
        attribute(k, d, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
    out->clusterDimMustBeSet = attribute(k, d, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
    out->requiredClusterWidth = attribute(k, d, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
    out->requiredClusterHeight = attribute(k, d, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
    out->requiredClusterDepth = attribute(k, d, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
    out->clusterSchedulingPolicyPreference =
        attribute(k, d, CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
    out->nonPortableClusterSizeAllowed =
        attribute(k, d, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
    return cudaSuccess;
}

_Static_assert((int)cudaFuncAttributeMaxDynamicSharedMemorySize ==
                   (int)CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
               "attributes");

RT_FN(cudaFuncSetAttribute, (const void *func, enum cudaFuncAttribute attr, int value), func, attr,
      value)
{
    CUkernel k;
    CUdevice d;
    RT_TRY(kernel_here(func, &k, &d));
    return rt_err(rt_legacy.cuKernelSetAttribute((CUfunction_attribute)(int)attr, value, k, d));
}

RT_FN(cudaFuncSetCacheConfig, (const void *func, enum cudaFuncCache config), func, config)
{
    CUkernel k;
    CUdevice d;
    RT_TRY(kernel_here(func, &k, &d));
    return rt_err(rt_legacy.cuKernelSetCacheConfig(k, (CUfunc_cache)(int)config, d));
}

RT_FN(cudaFuncGetName, (const char **name, const void *func), name, func)
{
    RT_NEED(name);
    *name = rt_kernel_name(func);
    return *name != NULL ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

RT_FN(cudaFuncGetParamInfo, (const void *func, size_t index, size_t *offset, size_t *bytes), func,
      index, offset, bytes)
{
    CUkernel kernel;
    RT_NEED(offset);
    RT_TRY(rt_kernel(func, &kernel));
    return rt_err(rt_legacy.cuKernelGetParamInfo(kernel, index, offset, bytes));
}

RT_FN(cudaGetKernel, (cudaKernel_t * kernel, const void *func), kernel, func)
{
    RT_NEED(kernel);
    return rt_kernel(func, kernel);
}

RT_FN(cudaGetFuncBySymbol, (cudaFunction_t * function, const void *func), function, func)
{
    CUkernel kernel;
    RT_NEED(function);
    RT_TRY(rt_kernel(func, &kernel));
    return rt_err(rt_legacy.cuKernelGetFunction(function, kernel));
}

RT_FN(cudaKernelSetAttributeForDevice,
      (cudaKernel_t kernel, enum cudaFuncAttribute attr, int value, int device), kernel, attr,
      value, device)
{
    return rt_err(
        rt_legacy.cuKernelSetAttribute((CUfunction_attribute)(int)attr, value, kernel, device));
}

/* --- libraries -------------------------------------------------------------------------------- */

RT_FN(cudaLibraryLoadData,
      (cudaLibrary_t * library, const void *code, enum cudaJitOption *jit, void **jit_values,
       unsigned int jit_count, enum cudaLibraryOption *options, void **values, unsigned int count),
      library, code, jit, jit_values, jit_count, options, values, count)
{
    RT_NEED(library);
    RT_NEED(code);
    return rt_err(rt_legacy.cuLibraryLoadData(library, code, (CUjit_option *)jit, jit_values,
                                              jit_count, (CUlibraryOption *)options, values,
                                              count));
}

RT_FN(cudaLibraryLoadFromFile,
      (cudaLibrary_t * library, const char *file, enum cudaJitOption *jit, void **jit_values,
       unsigned int jit_count, enum cudaLibraryOption *options, void **values, unsigned int count),
      library, file, jit, jit_values, jit_count, options, values, count)
{
    RT_NEED(library);
    RT_NEED(file);
    return rt_err(rt_legacy.cuLibraryLoadFromFile(library, file, (CUjit_option *)jit, jit_values,
                                                  jit_count, (CUlibraryOption *)options, values,
                                                  count));
}

RT_FN(cudaLibraryUnload, (cudaLibrary_t library), library)
{
    return rt_err(rt_legacy.cuLibraryUnload(library));
}

RT_FN(cudaLibraryGetKernel, (cudaKernel_t * kernel, cudaLibrary_t library, const char *name),
      kernel, library, name)
{
    RT_NEED(kernel);
    RT_NEED(name);
    RT_TRY(rt_err(rt_legacy.cuLibraryGetKernel(kernel, library, name)));
    rt_kernel_handed_out(*kernel, NULL); /* the caller's string may not live */
    return cudaSuccess;
}

RT_FN(cudaLibraryGetGlobal, (void **ptr, size_t *bytes, cudaLibrary_t library, const char *name),
      ptr, bytes, library, name)
{
    CUdeviceptr p = 0;
    RT_TRY(rt_err(rt_legacy.cuLibraryGetGlobal(&p, bytes, library, name)));
    if (ptr != NULL)
        *ptr = (void *)(uintptr_t)p;
    return cudaSuccess;
}

RT_FN(cudaLibraryGetManaged, (void **ptr, size_t *bytes, cudaLibrary_t library, const char *name),
      ptr, bytes, library, name)
{
    CUdeviceptr p = 0;
    RT_TRY(rt_err(rt_legacy.cuLibraryGetManaged(&p, bytes, library, name)));
    if (ptr != NULL)
        *ptr = (void *)(uintptr_t)p;
    return cudaSuccess;
}

RT_FN(cudaLibraryGetKernelCount, (unsigned int *count, cudaLibrary_t library), count, library)
{
    RT_NEED(count);
    return rt_err(rt_legacy.cuLibraryGetKernelCount(count, library));
}

RT_FN(cudaLibraryEnumerateKernels,
      (cudaKernel_t * kernels, unsigned int count, cudaLibrary_t library), kernels, count, library)
{
    RT_NEED(kernels);
    RT_TRY(rt_err(rt_legacy.cuLibraryEnumerateKernels(kernels, count, library)));
    for (unsigned i = 0; i < count; i++)
        rt_kernel_handed_out(kernels[i], NULL);
    return cudaSuccess;
}
