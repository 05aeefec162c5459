/*
 * Finds the driver as the real runtime does: dlopen("libcuda.so.1"), exactly one dlsym, for
 * cuGetProcAddress_v2, and that for everything else. An interposer that wants to be in the way has
 * these two places and no third, so a second dlsym here would make its tests pass for the wrong
 * reason. Drivers that lack that function are asked in older ways, see lookup.c.
 *
 * The rules of cuGetProcAddress are those of cuda.h ("Returns the requested driver API function
 * pointer"): CUDA_SUCCESS with a NULL pointer for a name that the driver has not.
 */
#include "rt.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

rt_driver_t rt_legacy, rt_perthread;

/* A function that the driver has not answers NOT_SUPPORTED and says its name, so that a hole in the
 * simulator shows where it is used. Arguments are ignored, which both of our ABIs allow. */
static CUresult missing(const char *name)
{
    fprintf(stderr, "simcuda: the driver has no %s\n", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define X(name)                                                                                    \
    static CUresult missing_##name(void)                                                           \
    {                                                                                              \
        return missing(#name);                                                                     \
    }
#include "entry_points.def"
#undef X

typedef void (*any_fn_t)(void);

typedef struct {
    const char *name;
    size_t offset;
    any_fn_t fallback;
} entry_point_t;

static const entry_point_t entry_points[] = {
#define X(name) {#name, offsetof(rt_driver_t, name), (any_fn_t)missing_##name},
#include "entry_points.def"
#undef X
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t load_result;
static int driver;             /* the driver's version, 0 without one */
static int asked = RT_VERSION; /* no more than the driver's own version, or all requests fail */

/* Base names that take other arguments from some version on. cuda.h's prototype, which the table's
 * type comes from, is the variant of 13.0 for the first four, so an older driver's would not fit;
 * it is the one before 13.0 for the last two (cuda.h has their _v2 beside it, under no macro), so
 * that one must be asked for. */
static const struct {
    const char *name;
    int since, until;
} changed[] = {
    {"cuMemAdvise", 12020, RT_VERSION},
    {"cuMemPrefetchAsync", 12020, RT_VERSION},
    {"cuStreamGetCaptureInfo", 12030, RT_VERSION},
    {"cuStreamUpdateCaptureDependencies", 12030, RT_VERSION},
    {"cuCtxGetDevice", 0, 12090},
    {"cuCtxSynchronize", 0, 12090},
};

/* The version to ask for a name with; 0: the driver is too old for it. */
static int version_for(const char *name)
{
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++)
        if (strcmp(changed[i].name, name) == 0)
            return asked < changed[i].since   ? 0
                   : asked > changed[i].until ? changed[i].until
                                              : asked;
    return asked;
}

static void fill(rt_driver_t *table, cuuint64_t flags)
{
    for (size_t i = 0; i < sizeof entry_points / sizeof entry_points[0]; i++) {
        const entry_point_t *ep = &entry_points[i];
        void *pfn = NULL;
        CUdriverProcAddressQueryResult status;
        int v = version_for(ep->name);
        CUresult r = v == 0 ? CUDA_ERROR_NOT_FOUND : rt_look_up(ep->name, &pfn, v, flags, &status);
        any_fn_t *entry = (any_fn_t *)((char *)table + ep->offset);
        *entry = r == CUDA_SUCCESS && pfn != NULL ? (any_fn_t)pfn : ep->fallback;
    }
}

static int driver_version(void)
{
    void *pfn = NULL;
    int v = 0;
    CUdriverProcAddressQueryResult status;
    if (rt_look_up("cuDriverGetVersion", &pfn, 11000, CU_GET_PROC_ADDRESS_DEFAULT, &status) ==
            CUDA_SUCCESS &&
        pfn != NULL)
        (void)((__typeof__(cuDriverGetVersion) *)pfn)(&v);
    return v;
}

static void load(void)
{
    if (!rt_look_up_open()) {
        load_result = cudaErrorInsufficientDriver;
        return;
    }
    driver = driver_version();
    if (driver / 1000 < rt_version() / 1000) {
        load_result = cudaErrorInsufficientDriver;
        return;
    }
    asked = driver < RT_VERSION ? driver : RT_VERSION;
    /* The real runtime also asks for the empty name, with no place for the status: an interposer
     * must survive it. The answer is of no interest. */
    void *nothing = NULL;
    (void)rt_look_up("", &nothing, asked, CU_GET_PROC_ADDRESS_DEFAULT, NULL);
    fill(&rt_legacy, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    fill(&rt_perthread, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    load_result = cudaSuccess;
}

cudaError_t rt_driver_load(void)
{
    pthread_once(&once, load);
    return load_result;
}

/* --- versions --------------------------------------------------------------------------------- */

/* "If no driver is installed, then 0 is returned" (cuda_runtime_api.h, cudaDriverGetVersion). */
RT_FN_UNBOUND(cudaDriverGetVersion, (int *out), out)
{
    RT_NEED(out);
    (void)rt_driver_load();
    *out = driver;
    return cudaSuccess;
}

RT_FN_UNBOUND(cudaRuntimeGetVersion, (int *out), out)
{
    RT_NEED(out);
    *out = rt_version();
    return cudaSuccess;
}

/* --- cudaGetDriverEntryPoint ------------------------------------------------------------------ */

static enum cudaDriverEntryPointQueryResult query_result(CUdriverProcAddressQueryResult s)
{
    switch (s) {
    case CU_GET_PROC_ADDRESS_SUCCESS:
        return cudaDriverEntryPointSuccess;
    case CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT:
        return cudaDriverEntryPointVersionNotSufficent;
    default:
        return cudaDriverEntryPointSymbolNotFound;
    }
}

static cudaError_t entry_point(const char *symbol, void **pfn, unsigned wanted,
                               unsigned long long flags, enum cudaDriverEntryPointQueryResult *out,
                               bool per_thread)
{
    RT_NEED(symbol);
    RT_NEED(pfn);
    if (symbol[0] == '\0')
        return cudaErrorInvalidValue;
    cuuint64_t search = flags;
    if (flags == cudaEnableDefault && per_thread)
        search = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    RT_TRY(rt_init());
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *pfn = NULL;
    CUresult r = rt_look_up(symbol, pfn, (int)wanted, search, &status);
    if (out != NULL)
        *out = query_result(status);
    /* Without a place for the status a name that is not there is an error (cuda_runtime_api.h,
     * cudaGetDriverEntryPointByVersion: cudaErrorSymbolNotFound). */
    if (r == CUDA_ERROR_NOT_FOUND)
        return out != NULL ? cudaSuccess : cudaErrorSymbolNotFound;
    if (r == CUDA_SUCCESS && *pfn == NULL && out == NULL)
        return cudaErrorSymbolNotFound;
    return rt_err(r);
}

#define ENTRY_POINT(suffix, per_thread)                                                            \
    RT_FN_UNBOUND(cudaGetDriverEntryPoint##suffix,                                                 \
                  (const char *symbol, void **pfn, unsigned long long flags,                       \
                   enum cudaDriverEntryPointQueryResult *status),                                  \
                  symbol, pfn, flags, status)                                                      \
    {                                                                                              \
        return entry_point(symbol, pfn, (unsigned)rt_version(), flags, status, per_thread);        \
    }                                                                                              \
    RT_FN_UNBOUND(cudaGetDriverEntryPointByVersion##suffix,                                        \
                  (const char *symbol, void **pfn, unsigned int wanted, unsigned long long flags,  \
                   enum cudaDriverEntryPointQueryResult *status),                                  \
                  symbol, pfn, wanted, flags, status)                                              \
    {                                                                                              \
        return entry_point(symbol, pfn, wanted, flags, status, per_thread);                        \
    }

ENTRY_POINT(, false)
ENTRY_POINT(_ptsz, true)
