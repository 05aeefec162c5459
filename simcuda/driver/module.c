/* Modules, libraries, kernels, global variables: names without code. Any image is accepted, any
 * kernel name is found; a kernel does nothing for a set time. A global variable is 64 KiB of device
 * memory per context, made when it is first asked for. CUfunction and CUkernel are one struct here:
 * cuda.h, cuLaunchKernel: a CUkernel may be cast to CUfunction.
 *
 * With module_bytes:N code takes device memory: a module's when it is loaded, a library's in each
 * context where a function of it is first needed, or at once with CUDA_MODULE_LOADING=EAGER (then
 * in the current context only, not in all; cuda.h, cuLibraryLoadData). */
#include "sim.h"
#include "module.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CODE "\1code" /* no variable is called so */

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

/* Memory of the image in ctx, made when it is first asked for. */
static CUresult take(image_t *m, CUcontext ctx, const char *name, size_t bytes, CUdeviceptr *at)
{
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    global_t *g = m->globals;
    while (g && (g->ctx != ctx || strcmp(g->name, name) != 0)) {
        g = g->next;
    }
    if (!g) {
        g = calloc(1, sizeof(*g));
        rc = g ? sim_heap_alloc(ctx->dev, ctx, bytes, SIM_GLOBAL, NULL, &g->at)
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
    return rc;
}

/* The image's code in ctx. */
static CUresult load_code(image_t *m, CUcontext ctx)
{
    return sim_opt.module_bytes ? take(m, ctx, CODE, sim_opt.module_bytes, NULL) : CUDA_SUCCESS;
}

CUresult sim_kernel_load(sim_kernel_t *k)
{
    image_t *m = k->image;
    CUcontext ctx;
    if (!sim_opt.module_bytes || m->ctx) {
        return CUDA_SUCCESS;
    }
    SIM_TRY(sim_ctx_current(&ctx));
    return load_code(m, ctx);
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
    SIM_TRY(take(m, m->ctx ? m->ctx : ctx, name, GLOBAL_BYTES, at));
    if (bytes) {
        *bytes = GLOBAL_BYTES;
    }
    return CUDA_SUCCESS;
}

static bool eager(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode && strcmp(mode, "EAGER") == 0;
}

/* A file that can be opened is an image. */
static CUresult check_file(const char *path)
{
    if (!path) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    close(fd);
    return CUDA_SUCCESS;
}

/* --- modules ----------------------------------------------------------------------------------*/
static CUresult load_module(CUmodule *module, const void *image)
{
    CUcontext ctx;
    image_t *m;
    SIM_TRY(sim_ctx_current(&ctx));
    SIM_TRY(load(module ? image : NULL, ctx, &m));
    CUresult rc = load_code(m, ctx);
    if (rc == CUDA_SUCCESS) {
        *module = (CUmodule)m;
    } else {
        unload(m, false);
    }
    return rc;
}

SIM_API CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    CUcontext ctx;
    SIM_ENTER(cuModuleLoad);
    SIM_TRY(sim_ctx_current(&ctx));
    SIM_TRY(check_file(fname));
    return load_module(module, fname);
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
    *mode = eager() ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncLoad(CUfunction function)
{
    SIM_ENTER(cuFuncLoad);
    sim_kernel_t *k = (sim_kernel_t *)function;
    return k && k->magic == SIM_KERNEL_MAGIC ? sim_kernel_load(k) : CUDA_ERROR_INVALID_HANDLE;
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
static CUresult load_library(CUlibrary *library, const void *image)
{
    CUcontext ctx;
    image_t *m;
    SIM_TRY(load(library ? image : NULL, NULL, &m));
    if (eager() && sim_ctx_current(&ctx) == CUDA_SUCCESS) {
        CUresult rc = load_code(m, ctx);
        if (rc != CUDA_SUCCESS) {
            unload(m, true);
            return rc;
        }
    }
    *library = (CUlibrary)m;
    return CUDA_SUCCESS;
}

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
    return load_library(library, code);
}

SIM_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
                                       CUjit_option *jitOptions, void **jitOptionsValues,
                                       unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                       void **libraryOptionValues, unsigned int numLibraryOptions)
{
    SIM_ENTER(cuLibraryLoadFromFile);
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    SIM_TRY(check_file(fileName));
    return load_library(library, fileName);
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
    if (sim_opt.module_bytes) {
        CUcontext ctx;
        SIM_TRY(sim_ctx_current(&ctx));
        SIM_TRY(load_code((image_t *)library, ctx));
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
    SIM_TRY(sim_kernel_load(k));
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
