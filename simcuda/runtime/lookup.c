/*
 * How the driver is asked for its functions: as new a way as it knows.
 *
 *   from 12.0    one dlsym, for cuGetProcAddress_v2, which answers for all others
 *   from 11.3    the same with cuGetProcAddress, whose form then had four arguments
 *   before       dlsym for each function, by the linker's name
 *
 * cuda.h has both forms of cuGetProcAddress and the linker's names; the versions of drivers are
 * in the release notes and in cudaTypedefs.h (PFN_cuGetProcAddress_v11030, ..._v12000).
 */
#include "rt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef CUresult get_v2_t(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
typedef CUresult get_v1_t(const char *, void **, int, cuuint64_t);

static void *library;
static get_v2_t *get_v2;
static get_v1_t *get_v1;

/* cuda.h maps a base name to the linker's name of its newest form. */
static const struct {
    const char *base, *newest;
} links[] = {
#define EXPANDED(name) #name
#define X(name) {#name, EXPANDED(name)},
#include "entry_points.def"
#undef X
    {"cuDriverGetVersion", "cuDriverGetVersion"},
};

static const char *newest_form(const char *base)
{
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
        if (strcmp(links[i].base, base) == 0)
            return links[i].newest;
    return base;
}

static void *by_name(const char *base, bool per_thread)
{
    static const char *const suffixes[] = {"_ptsz", "_ptds", ""};
    const char *names[] = {newest_form(base), base};
    for (size_t n = 0; n < 2; n++) {
        for (size_t i = per_thread ? 0 : 2; i < 3; i++) {
            char name[128];
            snprintf(name, sizeof name, "%s%s", names[n], suffixes[i]);
            void *found = dlsym(library, name);
            if (found != NULL)
                return found;
        }
    }
    return NULL;
}

CUresult rt_look_up(const char *symbol, void **pfn, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult *status)
{
    if (get_v2 != NULL)
        return get_v2(symbol, pfn, version, flags, status);
    CUresult r = CUDA_SUCCESS;
    if (get_v1 != NULL)
        r = get_v1(symbol, pfn, version, flags);
    else
        *pfn = by_name(symbol, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
    if (status != NULL)
        *status = r == CUDA_SUCCESS && *pfn != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                                                    : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return r;
}

/* A simulated driver that plays an older one (SIMCUDA=driver:) still has the symbols of newer
 * functions, which then say so. */
static bool answers(void)
{
    void *pfn = NULL;
    CUdriverProcAddressQueryResult status;
    return rt_look_up("cuDriverGetVersion", &pfn, 11000, CU_GET_PROC_ADDRESS_DEFAULT, &status) !=
           CUDA_ERROR_NOT_SUPPORTED;
}

bool rt_look_up_open(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return false;
    get_v2 = (get_v2_t *)dlsym(library, "cuGetProcAddress_v2");
    if (get_v2 != NULL && answers())
        return true;
    get_v2 = NULL;
    get_v1 = (get_v1_t *)dlsym(library, "cuGetProcAddress");
    if (get_v1 == NULL || !answers())
        get_v1 = NULL;
    return true;
}
