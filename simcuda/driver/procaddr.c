/* cuGetProcAddress: names, versions and the per-thread twins, from the one list. The rules are
 * those of cuda.h's text above cuGetProcAddress ("Returns the requested driver API function
 * pointer"). */
#include "sim.h"

#include <cudaProfiler.h>

#include <stdio.h>
#include <string.h>

typedef struct fn {
    const char *base;
    void (*address)(void);
    int version;
    bool per_thread;
} fn_t;

enum { PLAIN = 0, PTHREAD = 1 };

static const fn_t fns[] = {
#define SIM_FN(link, base, version, kind) {#base, (void (*)(void))link, version, kind},
#include "api.def"
#undef SIM_FN
};

/* Base names hashed once; the list is short and never changes. */
enum { BUCKETS = 2048 };
static int16_t bucket_first[BUCKETS], next_same[sizeof(fns) / sizeof(fns[0])];
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static unsigned hash(const char *s)
{
    unsigned h = 2166136261u;
    for (; *s; s++) {
        h = (h ^ (unsigned char)*s) * 16777619u;
    }
    return h % BUCKETS;
}

static void index_build(void)
{
    memset(bucket_first, 0xff, sizeof(bucket_first));
    for (int i = 0; i < SIM_ID_COUNT; i++) {
        unsigned h = hash(fns[i].base);
        next_same[i] = bucket_first[h];
        bucket_first[h] = (int16_t)i;
    }
}

/* The newest variant that the version allows; a per-thread twin wins where it is wanted and as
 * new: "If a per-thread version is not found, the API will return the legacy version". */
static const fn_t *pick(const char *base, int version, bool per_thread, bool *known)
{
    const fn_t *best = NULL;
    *known = false;
    for (int i = bucket_first[hash(base)]; i >= 0; i = next_same[i]) {
        const fn_t *f = &fns[i];
        if (strcmp(f->base, base) != 0 || sim_without((enum sim_id)i) ||
            (f->per_thread && !per_thread)) {
            continue;
        }
        *known = true; /* newer than the driver: `without`, it does not know the name */
        if (f->version > version) {
            continue;
        }
        if (!best || (f->per_thread && !best->per_thread) ||
            (f->per_thread == best->per_thread && f->version > best->version)) {
            best = f;
        }
    }
    return best;
}

static CUresult lookup(const char *symbol, void **pfn, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t all =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    bool known = false;
    if (!symbol || !pfn || (flags & ~all) || version > sim_opt.driver) {
        return CUDA_ERROR_INVALID_VALUE; /* "greater than the driver version" */
    }
    pthread_once(&index_once, index_build);
    const fn_t *f =
        pick(symbol, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &known);
    /* "will return CUDA_SUCCESS and set the returned pfn to NULL if ... not supported ..., no ABI
     * compatible driver function exists ... or if the driver symbol is invalid" ("" included). */
    *pfn = f ? (void *)f->address : NULL;
    if (status) {
        *status = f       ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    SIM_ENTER_IF(cuGetProcAddress, false);
    return lookup(symbol, pfn, cudaVersion, flags, NULL);
}

SIM_API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                     cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    SIM_ENTER_IF(cuGetProcAddress_v2, false);
    return lookup(symbol, pfn, cudaVersion, flags, status);
}

int sim_stub_called(int id, const char *name);

int sim_stub_called(int id, const char *name)
{
    CUresult rc = sim_enter((enum sim_id)id, false);
    if (rc != CUDA_SUCCESS) {
        return (int)rc;
    }
    fprintf(stderr, "simcuda: %s is not modelled\n", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}
