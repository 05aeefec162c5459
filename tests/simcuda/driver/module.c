/* Modules, libraries, kernels, global variables: names without code. Any image is accepted, any
 * kernel name is found; a kernel does nothing for a set time. A global variable is 64 KiB of device
 * memory per context, made when it is first asked for. CUfunction and CUkernel are one struct here:
 * cuda.h, cuLaunchKernel: a CUkernel may be cast to CUfunction. */
#include "sim.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>

enum { IMAGE = 0x494d4147, GLOBAL_BYTES = 65536 };

typedef struct global {
    char *name;
    CUcontext ctx;
    uint64_t ctx_id;
    CUdeviceptr at;
    struct global *next;
} global_t;

typedef struct image {
    uint32_t magic;
    CUcontext ctx; /* NULL: a library, of no context */
    sim_kernel_t *kernels;
    global_t *globals;
    struct image *next, *prev;
} image_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static image_t *images;

static CUresult load(const void *data, CUcontext ctx, image_t **out)
{
    if (!data || !out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    image_t *m = calloc(1, sizeof(*m));
    if (!m) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->magic = IMAGE;
    m->ctx = ctx;
    pthread_mutex_lock(&mu);
    m->next = images;
    if (images) {
        images->prev = m;
    }
    images = m;
    pthread_mutex_unlock(&mu);
    *out = m;
    return CUDA_SUCCESS;
}

static void drop_globals_locked(image_t *m, CUcontext ctx, bool release)
{
    for (global_t **p = &m->globals, *g; (g = *p);) {
        if (ctx && g->ctx != ctx) {
            p = &g->next;
            continue;
        }
        *p = g->next;
        if (release && atomic_load(&g->ctx->alive) && atomic_load(&g->ctx->id) == g->ctx_id) {
            sim_heap_free(g->ctx->dev, g->at, false);
        }
        free(g->name);
        free(g);
    }
}

static void unload_locked(image_t *m, bool release)
{
    drop_globals_locked(m, NULL, release);
    while (m->kernels) {
        sim_kernel_t *k = m->kernels;
        m->kernels = k->next;
        free(k->name);
        free(k);
    }
    if (m->next) {
        m->next->prev = m->prev;
    }
    if (m->prev) {
        m->prev->next = m->next;
    } else {
        images = m->next;
    }
    m->magic = 0;
    free(m);
}

void sim_modules_drop_context(CUcontext ctx)
{
    pthread_mutex_lock(&mu);
    for (image_t *m = images, *next; m; m = next) {
        next = m->next;
        if (m->ctx == ctx) {
            unload_locked(m, false);
        } else {
            drop_globals_locked(m, ctx, false);
        }
    }
    pthread_mutex_unlock(&mu);
}

static CUresult unload(void *handle, bool library)
{
    image_t *m = handle;
    if (!m || m->magic != IMAGE || !m->ctx != library) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&mu);
    unload_locked(m, true);
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

static CUresult get_kernel(void *handle, const char *name, sim_kernel_t **out)
{
    image_t *m = handle;
    if (!m || m->magic != IMAGE) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!name || !out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&mu);
    sim_kernel_t *k = m->kernels;
    while (k && strcmp(k->name, name) != 0) {
        k = k->next;
    }
    if (!k && (k = calloc(1, sizeof(*k)))) {
        k->magic = SIM_KERNEL_MAGIC;
        k->name = strdup(name);
        k->image = m;
        k->next = m->kernels;
        m->kernels = k;
    }
    pthread_mutex_unlock(&mu);
    *out = k;
    return k ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult get_global(void *handle, const char *name, CUdeviceptr *at, size_t *bytes)
{
    image_t *m = handle;
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    if (!m || m->magic != IMAGE) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!name || (!at && !bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ctx = m->ctx ? m->ctx : ctx;
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    global_t *g = m->globals;
    while (g && (g->ctx != ctx || strcmp(g->name, name) != 0)) {
        g = g->next;
    }
    if (!g) {
        g = calloc(1, sizeof(*g));
        rc = g ? sim_heap_alloc(ctx->dev, ctx, GLOBAL_BYTES, SIM_GLOBAL, NULL, &g->at)
               : CUDA_ERROR_OUT_OF_MEMORY;
        if (rc == CUDA_SUCCESS) {
            g->name = strdup(name);
            g->ctx = ctx;
            g->ctx_id = atomic_load(&ctx->id);
            g->next = m->globals;
            m->globals = g;
        } else {
            free(g);
        }
    }
    if (rc == CUDA_SUCCESS && at) {
        *at = g->at;
    }
    pthread_mutex_unlock(&mu);
    if (rc == CUDA_SUCCESS && bytes) {
        *bytes = GLOBAL_BYTES;
    }
    return rc;
}

/* --- modules ----------------------------------------------------------------------------------*/
static CUresult load_module(CUmodule *module, const void *image)
{
    CUcontext ctx;
    SIM_TRY(sim_ctx_current(&ctx));
    return load(image, ctx, (image_t **)module);
}

SIM_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_ENTER(cuModuleLoadData);
    return load_module(module, image);
}

SIM_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions,
                                    CUjit_option *options, void **optionValues)
{
    SIM_ENTER(cuModuleLoadDataEx);
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return load_module(module, image);
}

SIM_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    SIM_ENTER(cuModuleLoadFatBinary);
    return load_module(module, fatCubin);
}

SIM_API CUresult cuModuleUnload(CUmodule hmod)
{
    SIM_ENTER(cuModuleUnload);
    return unload(hmod, false);
}

SIM_API CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    SIM_ENTER(cuModuleGetFunction);
    return get_kernel(hmod, name, (sim_kernel_t **)hfunc);
}

SIM_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod,
                                      const char *name)
{
    SIM_ENTER(cuModuleGetGlobal_v2);
    return get_global(hmod, name, dptr, bytes);
}

SIM_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SIM_ENTER(cuModuleGetLoadingMode);
    if (!mode) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    SIM_ENTER(cuFuncGetModule);
    sim_kernel_t *k = (sim_kernel_t *)hfunc;
    if (!hmod || !k || k->magic != SIM_KERNEL_MAGIC) {
        return hmod ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *hmod = (CUmodule)k->image;
    return CUDA_SUCCESS;
}

/* --- libraries --------------------------------------------------------------------------------*/
SIM_API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                   void **jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                   unsigned int numLibraryOptions)
{
    SIM_ENTER(cuLibraryLoadData);
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    return load(code, NULL, (image_t **)library);
}

SIM_API CUresult cuLibraryUnload(CUlibrary library)
{
    SIM_ENTER(cuLibraryUnload);
    return unload(library, true);
}

SIM_API CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    SIM_ENTER(cuLibraryGetKernel);
    return get_kernel(library, name, (sim_kernel_t **)pKernel);
}

SIM_API CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    SIM_ENTER(cuLibraryGetModule);
    if (!pMod || !library) {
        return pMod ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *pMod = (CUmodule)library;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                                    const char *name)
{
    SIM_ENTER(cuLibraryGetGlobal);
    return get_global(library, name, dptr, bytes);
}

SIM_API CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    SIM_ENTER(cuKernelGetFunction);
    sim_kernel_t *k = (sim_kernel_t *)kernel;
    if (!pFunc || !k || k->magic != SIM_KERNEL_MAGIC) {
        return pFunc ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *pFunc = (CUfunction)k;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    SIM_ENTER(cuKernelGetLibrary);
    sim_kernel_t *k = (sim_kernel_t *)kernel;
    if (!pLib || !k || k->magic != SIM_KERNEL_MAGIC) {
        return pLib ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *pLib = (CUlibrary)k->image;
    return CUDA_SUCCESS;
}
