/*
 * The simulated CUDA runtime: what its files share.
 *
 * Written from the public headers alone. Every memory, stream and launch call goes down to the
 * driver through a table of function pointers that is filled as NVIDIA's documentation asks
 * programs to fill theirs: dlopen, one dlsym for cuGetProcAddress_v2, and that for the rest. The
 * table exists twice, once asked for with the legacy flag and once with the per-thread flag, and
 * the _ptds/_ptsz twins of an API are the same body on the other table.
 *
 * An API function is written with one of the macros below. They bind the thread's context, run the
 * body and record the last error, so that a body only does its own work.
 *
 * Must not know: the simulated driver's sources, libcachealloc.
 */
#ifndef SIMCUDA_RUNTIME_RT_H
#define SIMCUDA_RUNTIME_RT_H

#include <cuda.h>
#include <cudaProfiler.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "export.h"

#define RT_VERSION 13000 /* the headers that this is built with */
#define RT_MAX_DEVICES 64

/* --- the driver table (driver.c) -------------------------------------------------------------- */

/* cuda.h maps base names to their newest variant (cuMemAlloc -> cuMemAlloc_v2), in types as in
 * field names; a request for the base name at RT_VERSION yields the same variant. */
typedef struct rt_driver {
#define X(name) __typeof__(name) *name;
#include "entry_points.def"
#undef X
} rt_driver_t;

extern rt_driver_t rt_legacy, rt_perthread;

/* Loads libcuda.so.1 once. cudaErrorInsufficientDriver where there is none, or one of an older
 * major version than the runtime (driver_types.h, cudaErrorInsufficientDriver). */
cudaError_t rt_driver_load(void);

/* The version that this runtime plays: 13000, or 12090 as libcudart.so.12; SIMCUDA=runtime:11 and
 * runtime:12 make it 11080 and 12090. With 11 the binding of contexts is the older one, see
 * context.c. */
int rt_version(void); /* version.c */

/* --- asking the driver (lookup.c) --------------------------------------------------------------
 */

/* Opens libcuda.so.1 and finds out how it is to be asked. False where there is none. */
bool rt_look_up_open(void);

/* cuGetProcAddress_v2, or what stands for it in an older driver. */
CUresult rt_look_up(const char *symbol, void **pfn, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status);

/* --- contexts (context.c) --------------------------------------------------------------------- */

cudaError_t rt_init(void);                          /* driver loaded and cuInit done; no context */
cudaError_t rt_bind(void);                          /* and a context current to this thread */
bool rt_unloading(void);                            /* the process ends, and the driver has */
bool rt_revive(cudaError_t e);                      /* bound again: the call is to be made again */
cudaError_t rt_primary(int device, CUcontext *ctx); /* retains it on first use */
cudaError_t rt_current_device(int *device);         /* of this thread; creates no context */
unsigned rt_reset_generation(void);                 /* advanced by every cudaDeviceReset */

/* --- errors (error.c) ------------------------------------------------------------------------- */

/* Records a failure as this thread's last error and hands it back. */
cudaError_t rt_done(cudaError_t e);

/* The values of CUresult and cudaError agree for every code that a forwarded call can return. */
static inline cudaError_t rt_err(CUresult r)
{
    return (cudaError_t)(int)r;
}

/* --- registered kernels and variables (module.c) ---------------------------------------------- */

/* A host stub's address, or a kernel handle that we handed out, as the driver's kernel. */
cudaError_t rt_kernel(const void *func, CUkernel *kernel);
const char *rt_kernel_name(const void *func);
void rt_kernel_handed_out(CUkernel kernel, const char *name);
cudaError_t rt_symbol(const void *symbol, CUdeviceptr *address, size_t *bytes);

/* --- copies in two and three dimensions (memcpy_nd.c) ------------------------------------------
 */

typedef struct { /* one end: a pitched range or an array */
    void *ptr;
    size_t pitch, rows;
    CUarray array;
    struct cudaPos at; /* x in bytes */
} rt_end_t;

cudaError_t rt_copy_nd(const rt_driver_t *drv, const rt_end_t *dst, const rt_end_t *src,
                       struct cudaExtent bytes, enum cudaMemcpyKind kind, bool async,
                       cudaStream_t stream);
cudaError_t rt_copy_3d(const struct cudaMemcpy3DParms *p, CUDA_MEMCPY3D *out);
cudaError_t rt_element_bytes(cudaArray_t array, size_t *bytes); /* 1 where there is none */

/* --- writing an API function ------------------------------------------------------------------ */

/* No context needed. */
#define RT_FN_UNBOUND(name, params, ...)                                                           \
    static cudaError_t name##_body params;                                                         \
    RT_EXPORT cudaError_t name params                                                              \
    {                                                                                              \
        return rt_done(name##_body(__VA_ARGS__));                                                  \
    }                                                                                              \
    static cudaError_t name##_body params

#define RT_BOUND(call)                                                                             \
    cudaError_t e = rt_bind();                                                                     \
    e = e != cudaSuccess ? e : (call);                                                             \
    return rt_done(rt_revive(e) ? (call) : e)

/* Runs with the thread's context bound; initialises on the first call. */
#define RT_FN(name, params, ...)                                                                   \
    static cudaError_t name##_body params;                                                         \
    RT_EXPORT cudaError_t name params                                                              \
    {                                                                                              \
        RT_BOUND(name##_body(__VA_ARGS__));                                                        \
    }                                                                                              \
    static cudaError_t name##_body params

/* The same, twice: the plain name on the legacy table, name##suffix on the per-thread one. The body
 * finds its table in `drv`. */
#define RT_WITH_DRV(...) (const rt_driver_t *drv, __VA_ARGS__)
#define RT_TWIN(name, suffix, params, ...)                                                         \
    static cudaError_t name##_body RT_WITH_DRV params;                                             \
    RT_EXPORT cudaError_t name params                                                              \
    {                                                                                              \
        RT_BOUND(name##_body(&rt_legacy, __VA_ARGS__));                                            \
    }                                                                                              \
    RT_EXPORT cudaError_t name##suffix params;                                                     \
    RT_EXPORT cudaError_t name##suffix params                                                      \
    {                                                                                              \
        RT_BOUND(name##_body(&rt_perthread, __VA_ARGS__));                                         \
    }                                                                                              \
    static cudaError_t name##_body RT_WITH_DRV params

/* NULL where a result must go is cudaErrorInvalidValue in all of the API. */
#define RT_NEED(pointer)                                                                           \
    do {                                                                                           \
        if ((pointer) == NULL)                                                                     \
            return cudaErrorInvalidValue;                                                          \
    } while (0)

#define RT_TRY(expr)                                                                               \
    do {                                                                                           \
        cudaError_t try_e = (expr);                                                                \
        if (try_e != cudaSuccess)                                                                  \
            return try_e;                                                                          \
    } while (0)

static inline CUdeviceptr rt_dev(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

#endif
