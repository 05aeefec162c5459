/*
 * The driver for the fact script: entry points that older headers do not declare, found at run
 * time, and the context that most facts begin with.
 */
#include "facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *driver_symbol(const char *name)
{
    static void *handle;

    if (!handle)
        handle = dlopen("libcuda.so.1", RTLD_NOW);
    return handle ? dlsym(handle, name) : NULL;
}

void *driver_entry(const char *base)
{
    get_proc_fn get = (get_proc_fn)driver_symbol("cuGetProcAddress_v2");
    void *found = NULL;
    int version = 0;

    cuDriverGetVersion(&version);
    if (!get || get(base, &found, version, 0, NULL) != CUDA_SUCCESS)
        return NULL;
    return found;
}

record_ctx_fn ctx_record(void)
{
    return (record_ctx_fn)driver_entry("cuCtxRecordEvent");
}

ctx_id_fn ctx_id(void)
{
    return (ctx_id_fn)driver_entry("cuCtxGetId");
}

stream_id_fn stream_id(void)
{
    return (stream_id_fn)driver_entry("cuStreamGetId");
}

CUresult ctx_create(CUcontext *ctx, CUdevice dev)
{
    CUresult (*create)(CUcontext *, unsigned, CUdevice) =
        (CUresult(*)(CUcontext *, unsigned, CUdevice))driver_symbol("cuCtxCreate_v2");

    return create ? create(ctx, 0, dev) : CUDA_ERROR_NOT_FOUND;
}

CUcontext use_primary(void)
{
    CUcontext ctx = NULL;
    cudaError_t e = cudaSetDevice(0);

    if (e == cudaSuccess)
        e = cudaFree(NULL);
    if (e != cudaSuccess || cuCtxGetCurrent(&ctx) != CUDA_SUCCESS || !ctx) {
        row_begin();
        row_str("note", "no context on device 0");
        row_rt("code", e);
        row_end();
        exit(3);
    }
    return ctx;
}

size_t may_take(void)
{
    size_t free_bytes = 0, total = 0;

    cuMemGetInfo(&free_bytes, &total);
    return free_bytes > total / 4 ? free_bytes - total / 4 : 0;
}
